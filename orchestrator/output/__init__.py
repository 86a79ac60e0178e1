"""The only room that prints: what people read, what programs read, and the training output."""
