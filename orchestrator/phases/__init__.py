"""The phases of a run, from connect to collect: functions with typed inputs and outputs."""
