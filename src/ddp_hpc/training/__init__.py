"""The training loop in one rank, and what it is made of."""
