"""One strategy of gradient exchange (communication), one file."""
