"""Programs for the run's own interpreter on the nodes, one file each: sent as text, never imported by the launcher."""
