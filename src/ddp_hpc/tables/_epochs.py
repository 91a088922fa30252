"""Epochs: how many samples, and steps, a run takes to see its training set once."""

import pandas as pd

from ddp_hpc.ledger import Ledger
from ddp_hpc.tables._ranks import provenance


def train_samples(ledger: Ledger, run: str) -> int | None:
    """Return the samples that a finished run trained on, an epoch; None where its record does not say."""
    samples = provenance(ledger, run).get("train_samples")
    return int(samples) if samples else None


def steps_per_epoch(samples: int | None, world_size: int, batch_size: int) -> float | None:
    """Return the steps of all ranks together in an epoch; not whole where the global batch does not divide it."""
    return samples / (world_size * batch_size) if samples else None


def the_same(values: list[int | None]) -> int | None:
    """Return what all known values are; None where they differ, or none is known."""
    known = {value for value in values if not pd.isna(value)}
    return known.pop() if len(known) == 1 else None
