"""Packing of runs into Slurm jobs: one job per run, or one job for all, and which costs fewer node-hours."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ddp_hpc.config.machine import Machine, Partition
from ddp_hpc.slurm.resources import MARGIN, START_MIN, Request
from ddp_hpc.system.terminal import counted

# what a job of its own, or a step of a shared one, adds to each run, by `make bench-slurm` on two cores: Slurm's share
# and that of Snakemake in the job
JOB_S, STEP_S = 3.1, 1.1


@dataclass(frozen=True)
class Packing:
    """What the missing runs of a partition cost in node-seconds.

    `shared_node_s` is what one job for all takes at least: as if nothing in it ever lay idle for lack of a run that
    fits, but for what the longest run leaves idle.
    """

    partition: str
    runs: int  # whose time is known; the others are left out
    nodes: int  # of the one job: as many as the largest run needs
    own_node_s: float  # if each is a job of its own
    starts_node_s: float  # the part of it that goes into starts
    shared_node_s: float
    shared_s: float  # how long that job takes at least
    exclusive: bool  # runs are to have their nodes to themselves, which runs that share a job have not
    line: str  # the sbatch line of the one job

    @property
    def better(self) -> str:
        """`own` or `shared`."""
        return "shared" if self.shared_node_s < self.own_node_s and not self.exclusive else "own"


def packings(study: str, asked: Mapping[str, Request], seconds: Mapping[str, float], machine: Machine) -> list[Packing]:
    """Return what both packings cost for each partition in which two or more of the missing runs have a known time."""
    found = []
    for name in dict.fromkeys(one.partition for one in asked.values()):
        of = [(one, seconds[run]) for run, one in asked.items() if one.partition == name and run in seconds]
        if len(of) > 1:
            found.append(_packing(study, name, machine.partitions[name], of))
    return found


def _packing(study: str, name: str, partition: Partition, of: list[tuple[Request, float]]) -> Packing:
    nodes = max(one.nodes for one, _ in of)
    shares = [1.0 if one.exclusive else min(1.0, one.ranks_per_node / _slots(one, partition)) for one, _ in of]
    used = [(one.nodes * share, seconds) for (one, seconds), share in zip(of, shares, strict=True)]
    starts = sum(JOB_S * size for size, _ in used)
    work = sum((seconds + STEP_S) * size for size, seconds in used)
    shared_s = max(work / nodes, max(seconds for _, seconds in used) + STEP_S)
    return Packing(
        partition=name,
        runs=len(of),
        nodes=nodes,
        own_node_s=sum(seconds * size for size, seconds in used) + starts,
        starts_node_s=starts,
        shared_node_s=nodes * shared_s,
        shared_s=shared_s,
        exclusive=any(one.exclusive for one, _ in of),
        line=_line(study, name, partition, [one for one, _ in of], nodes, shared_s),
    )


def _slots(one: Request, partition: Partition) -> int:
    """Return how many ranks like those of a run fill a node."""
    return partition.gpus_per_node if one.gpus else partition.cores_per_node // one.cores_per_rank


def _line(study: str, name: str, partition: Partition, of: list[Request], nodes: int, seconds: float) -> str:
    on_gpus, cores = any(one.gpus for one in of), max(one.cores_per_rank for one in of)
    slots = min(_slots(one, partition) for one in of)
    minutes = math.ceil(seconds * MARGIN / 60) + START_MIN
    gpus = f" --gpus-per-node={partition.gpus_per_node}" if on_gpus else ""
    return (
        f"sbatch --partition={name} --nodes={nodes} --ntasks-per-node={slots}{gpus} --cpus-per-task={cores} "
        f"--time={min(minutes, partition.max_minutes or minutes)} "
        f"--wrap 'ddp-hpc run {study} --profile profiles/allocation'"
    )


def lines(found: list[Packing], of: int) -> list[str]:
    """Return the packings in words; `of` runs are missing."""
    if of > 1 and not found:
        return ["whether one job for all pays is not known: no runs like them have finished"]
    said = []
    for one in found:
        own, shared = one.own_node_s / 3600, one.shared_node_s / 3600
        known = counted(one.runs, "run") if one.runs == of else f"{one.runs} of {of} runs, whose time is known,"
        better = "one job pays" if one.better == "shared" else "jobs of their own pay"
        because = ": runs are to have their nodes to themselves (memory: exclusive)" if one.exclusive else ""
        starts = one.starts_node_s / one.own_node_s
        said += [
            f"{known} on {one.partition}: {better}{because}",
            f"  each a job of its own: {own:,.2f} node-hours, {starts:.0%} for starts; {one.runs} waits in the queue",
            f"  all in one job: {shared:,.2f} node-hours or more; one wait in the queue: {one.line}",
        ]
    return said
