"""From lines of logs to what each rank and agent said, and what the catalogue knows of it."""
