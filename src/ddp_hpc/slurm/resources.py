"""What one run asks of a machine: nodes, ranks, GPUs, cores, memory and time.

`request` decides, from the spec, the machine file, the run's past attempts and the times of runs like it. The module
`sbatch` puts it in Slurm's words.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ddp_hpc.config import catalog
from ddp_hpc.config.machine import Machine, MachineError, Partition
from ddp_hpc.config.spec import RunSpec

MARGIN = 1.5  # on the longest of the runs like it: nodes differ, and so do the neighbours on a file system
START_MIN = 5  # the start of a job, before its ranks are up
JOB_MB, RANK_MB = 500, 500  # at least: two Snakemakes of 155 MB in each job, 263 MB in a rank of a small model


class ImpossibleError(MachineError):
    """A run that the machine cannot take: what is too much, and what would fit."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What one run asks for. `ranks_per_node` is of the fullest node; only the last may have fewer."""

    partition: str
    nodes: int
    tasks: int  # ranks
    ranks_per_node: int
    gpus: int  # in all
    gpu_type: str | None
    cores_per_rank: int
    mem_mb: int  # of each node
    runtime_min: int
    exclusive: bool
    price_per_node_hour: float | None = None  # then and there
    currency: str | None = None

    @property
    def even(self) -> bool:
        """Whether all nodes have equally many ranks."""
        return self.tasks == self.nodes * self.ranks_per_node


@dataclass(frozen=True, kw_only=True)
class Past:
    """An attempt that failed: its status, and what it had asked for, as far as that is known."""

    status: str
    runtime_min: int | None = None
    mem_mb: int | None = None


def request(
    spec: RunSpec,
    machine: Machine,
    *,
    past: Sequence[Past] = (),
    measured_s: Sequence[float] = (),
    runtime_min: int | None = None,
) -> Request:
    """Return what a run asks of `machine`.

    n ranks on GPUs are n tasks with a GPU each; a rank has the cores of its node / the GPUs of its node (CPU only:
    `threads_per_rank`, else one), a node gives as much of its memory as of its GPUs or cores. Ranks fill as few nodes
    as possible, or `ranks_per_node` on each with `placement: spread`.

    Args:
        past: its attempts that failed; time is doubled after `timeout`, memory after `oom_host`.
        measured_s: wall times of finished runs that take as long.
        runtime_min: minutes that the study gives where nothing was measured.

    Raises:
        MachineError: there is no such partition, or it cannot give that (ImpossibleError says what would fit).
    """
    try:
        return _request(spec, machine, past, measured_s, runtime_min)
    except ImpossibleError as error:
        fitting = []
        for other in machine.partitions:
            with suppress(ImpossibleError):
                _request(spec.model_copy(update={"partition": other}), machine, (), (), runtime_min)
                fitting.append(other)
        where = f"it would fit partition {' or '.join(fitting)}" if fitting else "no other partition could take it"
        raise ImpossibleError(f"{error}; {where}") from None


def _request(
    spec: RunSpec, machine: Machine, past: Sequence[Past], measured_s: Sequence[float], runtime_min: int | None
) -> Request:
    name, partition = machine.partition(spec.partition)
    on_gpus = _uses_gpus(spec, name, partition)
    slots = _slots(spec, name, partition, on_gpus)
    ranks = spec.ranks_per_node if spec.placement == "spread" else min(spec.world_size, slots)
    nodes = math.ceil(spec.world_size / ranks)
    _check_nodes(spec, name, partition, slots, nodes, on_gpus)
    if on_gpus:
        gpus_used, cores = min(ranks, partition.gpus_per_node), partition.cores_per_node // slots
        share = gpus_used / partition.gpus_per_node
    else:
        gpus_used, cores = 0, spec.threads_per_rank or 1
        share = ranks * cores / partition.cores_per_node
    exclusive = machine.memory == "exclusive"
    whole_mb, share = partition.memory_mb_per_node, 1.0 if exclusive else share
    used_up = [2 * one.mem_mb for one in past if one.status == "oom_host" and one.mem_mb]
    return Request(
        partition=name,
        nodes=nodes,
        tasks=spec.world_size,
        ranks_per_node=ranks,
        gpus=min(spec.world_size, nodes * gpus_used),
        gpu_type=partition.gpu_type if on_gpus else None,
        cores_per_rank=cores,
        mem_mb=min(whole_mb, max(int(share * whole_mb), JOB_MB + RANK_MB * ranks, *used_up)),
        runtime_min=_runtime(spec, machine, name, past, measured_s, runtime_min),
        exclusive=exclusive,
        price_per_node_hour=machine.price_per_node_hour,
        currency=machine.currency,
    )


def _uses_gpus(spec: RunSpec, name: str, partition: Partition) -> bool:
    if spec.device == "cuda" and not partition.gpus_per_node:
        raise ImpossibleError(f"device: cuda, but the nodes of partition {name} have no GPU")
    if spec.device == "cpu" or not partition.gpus_per_node:
        return False
    if "cuda" not in catalog.devices(spec.exchange.name):
        raise ImpossibleError(
            f"exchange {spec.exchange.name!r} works on the CPU only, and the nodes of partition {name} have GPUs, "
            "which a run without `device` takes; give `device: cpu`"
        )
    return True


def _slots(spec: RunSpec, name: str, partition: Partition, on_gpus: bool) -> int:
    """Return how many ranks fill a node."""
    threads, cores, slots = spec.threads_per_rank or 1, partition.cores_per_node, partition.gpus_per_node
    if spec.share_gpu and spec.world_size > slots * partition.nodes:
        slots = math.ceil(spec.world_size / partition.nodes)
    share = cores // slots if on_gpus else cores
    if threads > share or not share:
        of_ranks = f" for {slots} ranks" if on_gpus else ""
        raise ImpossibleError(
            f"threads_per_rank={threads}, but a node of partition {name} has {cores} cores{of_ranks}; "
            f"expected: up to {share}"
        )
    return slots if on_gpus else cores // threads


def _check_nodes(spec: RunSpec, name: str, partition: Partition, slots: int, nodes: int, on_gpus: bool) -> None:
    has = f"{partition.gpus_per_node} GPUs" if on_gpus else f"cores for {slots} ranks"
    each, spread = f"a node of partition {name} has {has}", spec.placement == "spread"
    ranks = spec.ranks_per_node if spread else slots
    if ranks > slots:
        raise ImpossibleError(f"ranks_per_node={ranks}, but {each}; expected: 1 to {slots}")
    if nodes > partition.nodes:
        way = f"spread, {ranks} to a node," if spread else f"{ranks} to a node"
        raise ImpossibleError(
            f"world_size={spec.world_size}, {way} needs {nodes} nodes, and partition {name} gives {partition.nodes}; "
            f"expected there: up to {partition.nodes * ranks} ranks"
        )
    if nodes > 1 and catalog.constants("exchange", spec.exchange.name).get("ONE_NODE"):
        raise ImpossibleError(
            f"exchange {spec.exchange.name!r} works within one node, and world_size={spec.world_size} needs {nodes}, "
            f"for {each}; expected there: up to {ranks} ranks"
        )


def _runtime(
    spec: RunSpec, machine: Machine, name: str, past: Iterable[Past], measured_s: Sequence[float], of_study: int | None
) -> int:
    """Return the minutes to ask for: of runs like it, with a margin; else the study's; else the machine's."""
    most = machine.partitions[name].max_minutes or math.inf
    if measured_s:
        minutes = math.ceil(max(measured_s) * MARGIN / 60) + START_MIN
    elif of_study is not None:
        minutes = of_study
        if minutes > most:
            raise ImpossibleError(f"runtime_min={minutes}, but jobs of partition {name} end after {most} minutes")
    else:
        minutes = machine.runtime_min
    training_min = math.ceil((spec.budget.seconds or 0) / 60)
    if training_min > most:
        limit = f"{most} minutes ({60 * most} s)"
        raise ImpossibleError(f"budget: {spec.budget}, but jobs of partition {name} end after {limit}")
    if training_min:
        minutes = max(minutes, training_min + START_MIN)
    too_short = [2 * one.runtime_min for one in past if one.status == "timeout" and one.runtime_min]
    return int(min(most, max(minutes, *too_short, 1)))
