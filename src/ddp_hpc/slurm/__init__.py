"""What is asked of Slurm, and what it answers."""
