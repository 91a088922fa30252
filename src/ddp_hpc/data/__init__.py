"""One dataset, one file."""
