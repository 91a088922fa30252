"""The command line `ddp-hpc`: parse, call, print; nothing else."""
