"""Somebody else's cluster, with other partitions and GPUs: what config/README.md says of a new machine is enough."""
