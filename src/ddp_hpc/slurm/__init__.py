"""Requests to Slurm and its answers."""
