"""What ranks that do not go on are doing, and who of them does something else."""
