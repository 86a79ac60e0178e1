"""One small pure function a check: facts and settings in, what was seen and its remedy out."""
