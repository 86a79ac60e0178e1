"""What runs on a node: Python 3.9 and later, standard library only, sent over stdin, never installed."""
