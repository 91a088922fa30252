"""The artifact description and evaluation that SC and ACM ask authors for, filled in from a pack: appendix.tex.

What only the paper knows, which of its figures and tables rest on the pack, is left to the author, as a comment.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ddp_hpc import __version__
from ddp_hpc.analysis.latex import escape
from ddp_hpc.analysis.report import answer
from ddp_hpc.analysis.report.publishable import RULES, publishable
from ddp_hpc.config import catalog
from ddp_hpc.publication import pack as names
from ddp_hpc.publication.citation import SOFTWARE, home
from ddp_hpc.publication.pack import Pack, folder_name
from ddp_hpc.system.terminal import counted, rank_time

MOST = 12  # expected numbers
_OF_MACHINE = {  # facts of provenance, by what a reader calls them
    "processors": "processor",
    "machine.cores": "cores of a host",
    "machine.sockets": "sockets of a host",
    "machine.last_cache": "last-level cache",
    "machine.memory_gb": "memory of a host in GB",
    "machine.virtual": "virtual machine",
    "GPUs": "GPU",
    "hosts": "hosts",
}
_OF_SOFTWARE = {
    "machine.system": "system",
    "software.kernel": "kernel",
    "machine.libc": "C library",
    "software.python": "Python",
    "software.torch": "torch",
    "software.numpy": "numpy",
    "software.mpi": "MPI",
    "software.cuda": "CUDA",
    "software.nccl": "NCCL",
}


def text(pack: Pack, facts: Mapping[str, Any]) -> str:
    """Return appendix.tex, to be put in a paper by `\\input`; `facts` are those of `derived.facts`."""
    runs, known = pack.tables["runs"], {**facts["differing"], **facts["common"]}
    passed = publishable(pack.study, pack.tables, pack.study_runs.runs)
    commits = facts["common"].get("source.commit", [[None]])
    environment = Environment(
        loader=PackageLoader("ddp_hpc.publication"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
        finalize=lambda value: escape(str(value)),
    )
    return environment.get_template("appendix.tex.j2").render(
        title=pack.title,
        address=home(pack),
        folder=folder_name(pack),
        study=pack.study.name,
        runs=counted(len(runs), "training"),
        answers=[sentence.text for sentence in answer.found(pack.study_runs, pack.tables)],
        how_sure=answer.how_sure(pack.study_runs, pack.tables),
        rules=RULES,
        expected=[(f"{one.of}: {one.what}", one.value, one.interval) for one in passed.numbers[:MOST]],
        more=len(passed.numbers[MOST:]),
        judged=passed.count,
        why_not=[f"{why} ({count})" for why, count in passed.others],
        machine=list(_told(known, _OF_MACHINE)),
        software=list(_told(known, _OF_SOFTWARE)),
        most_ranks=int(runs["world_size"].max()),
        data=list(_data(pack)),
        rank_hours=rank_time(float((runs["wall_s"] * runs["world_size"].astype("float64")).sum())),
        one_by_one=rank_time(float(runs["wall_s"].sum())).replace("rank-", ""),
        source=SOFTWARE,
        version=__version__,
        commit=commits[0][0] or "",
        lock=names.LOCK,
        tables=", ".join(pack.tables),
        figures=", ".join(pack.study.figure_names) or "none",
    )


def _told(known: Mapping[str, Any], called: Mapping[str, str]) -> Iterator[str]:
    """Yield what the records say, e.g. `processor: AMD EPYC`; several values with how many runs have each."""
    for name, words in called.items():
        values = known.get(name, [])
        several = len(values) > 1
        told = "; ".join(f"{text} (in {counted(runs, 'run')})" if several else str(text) for text, runs in values)
        if told:
            yield f"{words}: {told}"


def _data(pack: Pack) -> Iterator[str]:
    """Yield from where each data set is."""
    if any(spec.program for spec in pack.expansion.specs):
        yield "the programs of the study say themselves from where their data is"
    for name in sorted({spec.dataset.name for spec in pack.expansion.specs if not spec.program}):
        about = catalog.constants("dataset", name)
        if "URL" in about:
            digests = f", SHA-256 {about['SHA256']}" if "SHA256" in about else ""
            yield f"{name}: {about['URL']}{digests}; `ddp-hpc data {name}` fetches and checks it"
        else:
            yield f"{name}: comes with the program or a package that it needs, nothing is fetched"
