"""What is stored of a run: its records and their schema, its identity, its state, the lease on its folder."""
