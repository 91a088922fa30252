"""Which steps of which runs can be traced."""

from collections.abc import Sequence

from ddp_hpc.config import catalog
from ddp_hpc.config.spec import RunSpec


def why_not(spec: RunSpec, steps: Sequence[int]) -> str | None:
    """Return why a run cannot trace the steps from the first to the last of `steps`; None if it can.

    A run for a given time may end before it reaches them.
    """
    first, last = steps
    if spec.steps_asked is not None and last > spec.steps_asked:
        return f"given steps {first} to {last}, the run has {spec.steps_asked}"
    if not catalog.constants("exchange", spec.exchange.name)["SYNCHRONOUS"]:
        return f"with exchange {spec.exchange.name!r} each rank takes its steps by itself, none can be taken twice"
    return None
