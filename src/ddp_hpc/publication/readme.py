"""The README of a pack, filled in from its tables: the answer first, then how sure it is, then what each file is."""

from collections.abc import Iterator, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ddp_hpc import __version__
from ddp_hpc.analysis.formatting import in_words
from ddp_hpc.analysis.report import answer
from ddp_hpc.publication import pack as names
from ddp_hpc.publication.citation import CODE_LICENCE, SOFTWARE
from ddp_hpc.publication.pack import Pack
from ddp_hpc.runs.records import read_metadata
from ddp_hpc.system.terminal import counted, rank_time

SHOWN = (
    "processors",
    "GPUs",
    "hosts",
    "machine.",
    "software.",
    "source.",
    "gradient_path",
    "ranks_on_nodes",
)  # facts, by their beginnings


def text(pack: Pack, facts: Mapping[str, Any]) -> str:
    """Return README.md; `facts` are those of `derived.facts`."""
    study, said, runs = pack.study, pack.publication, pack.tables["runs"]
    tables = pack.tables
    commits = facts["common"].get("source.commit", [[None]])
    environment = Environment(
        loader=PackageLoader("ddp_hpc.publication"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("README.md.j2").render(
        title=pack.title,
        name=study.name,
        answers=[sentence.text for sentence in answer.found(pack.study_runs, tables)],
        coverage=f"Coverage: {read_metadata(pack.root / names.TABLES / 'runs.parquet')['coverage']}",
        rules=in_words(study.rules, study.looks),
        flags=facts["warnings"],
        notes=said.notes.strip(),
        tables=", ".join(tables),
        figures=", ".join(f"`{name}`" for name in study.figure_names),
        records=_records(pack, len(runs)),
        machine=(pack.root / names.MACHINE).is_file(),
        code_files=sum(name.startswith(f"{names.CODE}/") for name in pack.files),
        own_files=[name for name in pack.files if name.startswith(f"{names.PROJECT}/")],
        own_outputs=bool(pack.own_outputs),
        version=__version__,
        address=SOFTWARE,
        commit=commits[0][0],
        rank_hours=rank_time(float((runs["wall_s"] * runs["world_size"].astype("float64")).sum())),
        facts=list(_facts(facts)),
        doi=said.doi,
        licence=said.licence,
        code_licence=CODE_LICENCE,
        creators="; ".join(creator.name for creator in said.creators),
    )


def _records(pack: Pack, planned: int) -> str:
    kept = sum((pack.root / names.RUNS / run / "run.parquet").is_file() for run in pack.runs)
    return f"the records of {kept} of {counted(planned, 'run')}: `run.parquet`, and its steps, evaluations, GPU samples"


def _facts(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, values in sorted({**facts["common"], **facts["differing"]}.items()):
        if name.startswith(SHOWN):
            several = len(values) > 1
            yield name, "; ".join(f"{text} (in {counted(runs, 'run')})" if several else text for text, runs in values)
