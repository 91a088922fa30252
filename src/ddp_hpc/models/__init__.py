"""Models: one model, one file."""
