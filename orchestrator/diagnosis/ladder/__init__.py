"""The judge: the first rung that holds says which rank broke first, and why."""
