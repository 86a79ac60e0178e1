"""Reads the logs of any run into the form in which it is judged."""
