"""From nodes, facts and settings to one frozen plan; no socket, no process, no clock, no environment."""
