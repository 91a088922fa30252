"""What planning, the workflow and the exchanges cost on this machine: `ddp-hpc bench`."""
