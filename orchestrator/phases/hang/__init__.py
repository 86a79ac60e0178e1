"""Notices a run that hangs, and saves the evidence while it still runs."""
