"""Starts and reads the meters of a run: one telemetry process per node, owned by the node's first rank."""

import traceback
from dataclasses import dataclass, replace

import torch
from mpi4py import MPI
from torch import Tensor

from ddp_hpc.models._replica import Replica
from ddp_hpc.profiling.telemetry import NodeSamples, NodeTelemetry


@dataclass(frozen=True, kw_only=True)
class Metered:
    """What was metered on a rank: its node's samples, if it is the one that samples there, and its model's work."""

    samples: NodeSamples | None = None
    ranks: tuple[int, ...] = ()  # of the node
    flop_per_sample: float | None = None
    no_flop: str = "counted on rank 0"
    bug: str = ""  # the traceback of an error of ours


class NodeMeter:
    """The meter of this node, held by its first rank; `comm` has all ranks of the run."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._meter: NodeTelemetry | None = None
        self._ranks: tuple[int, ...] = ()

    def start(self, device: torch.device) -> None:
        """Begin to sample the GPUs that the ranks of this node use. All ranks must call, each with its device."""
        uuid = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None
        node = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        found = node.gather((self._comm.rank, uuid), root=0)
        node.Free()
        if found is not None:
            self._ranks = tuple(rank for rank, _ in found)
            self._meter = NodeTelemetry([uuid for _, uuid in found if uuid is not None])

    def stop(self) -> Metered:
        """End the sampling; return what there is."""
        return Metered(samples=self._meter.stop() if self._meter else None, ranks=self._ranks)


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
