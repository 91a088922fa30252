"""Starts and reads the meters of a run: one telemetry process per node, owned by the node's first rank.

Where Slurm gives each task its own GPU, the first rank may not see those of the others: they meter their own then.
"""

import traceback
from dataclasses import dataclass, replace

import torch
from mpi4py import MPI
from torch import Tensor

from ddp_hpc.models._replica import Replica
from ddp_hpc.profiling.telemetry import NodeSamples, NodeTelemetry, metered_by


@dataclass(frozen=True, kw_only=True)
class Metered:
    """What was metered on a rank: its node's samples, if it is the one that samples there, and its model's work."""

    samples: NodeSamples | None = None  # of some of its GPUs
    ranks: tuple[int, ...] = ()  # of the node
    flop_per_sample: float | None = None
    no_flop: str = "counted on rank 0"
    bug: str = ""  # the traceback of an error of ours


class NodeMeter:
    """The meter of this node, held by its first rank, or of a GPU that that one does not see; `comm` has all ranks."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._meter: NodeTelemetry | None = None
        self._ranks: tuple[int, ...] = ()

    def start(self, device: torch.device) -> None:
        """Begin to sample the GPUs that the ranks of this node use. All ranks must call, each with its device."""
        uuid = _uuid(device) if device.type == "cuda" else None
        visible = {_uuid(number) for number in range(torch.cuda.device_count())} if uuid else set()
        node = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        first, found = node.rank == 0, node.allgather((self._comm.rank, uuid, visible))
        node.Free()
        own = metered_by(self._comm.rank, found)
        if first or own:
            self._ranks = tuple(rank for rank, *_ in found)
            self._meter = NodeTelemetry(own)

    def sample_now(self) -> None:
        """Sample at once: a window of the training begins or ends here."""
        if self._meter:
            self._meter.sample_now()

    def stop(self) -> Metered:
        """End the sampling; return what there is."""
        return Metered(samples=self._meter.stop() if self._meter else None, ranks=self._ranks)


def _uuid(device: torch.device | int) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


def with_work(metered: Metered, replica: Replica, example: Tensor | None) -> Metered:
    """Add the work of a sample, such as the inputs `example`, when the training is over and the exchange is closed."""
    from ddp_hpc.profiling import flops

    try:
        assert example is not None, "the trainer leaves one"
        inputs = torch.stack([example.to(replica.weights.device)] * flops.FEW)
        trained = [span.parameter for span in replica.spans]
        return replace(metered, flop_per_sample=flops.per_sample(replica.model, trained, inputs))
    except RuntimeError as error:  # of the model, which need not take so few samples
        return replace(metered, no_flop=f"{type(error).__name__}: {error}")
    except Exception as error:  # a result must not fail for a number beside it
        return replace(metered, no_flop=bug_of(error), bug=traceback.format_exc())


def bug_of(error: Exception) -> str:
    """Return the reason of columns that are null because of an error that should not be."""
    return f"a bug in ddp-hpc: {type(error).__name__}: {error}; provenance.bugs of the run's record has the traceback"
