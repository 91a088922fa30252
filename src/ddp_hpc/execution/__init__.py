"""One attempt at one run: its supervisor, the processes of its ranks, how they end, and what they record."""
