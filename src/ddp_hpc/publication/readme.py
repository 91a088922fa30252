"""The README of a pack, filled in from its tables: the answer first, then how sure it is, then what each file is."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from ddp_hpc import __version__
from ddp_hpc.analysis.claim_verdict import KINDS, verdict_in_words
from ddp_hpc.analysis.columns import rows_of
from ddp_hpc.analysis.formatting import cell, in_a_cell, in_words
from ddp_hpc.analysis.report import answer
from ddp_hpc.config.claims import ARITHMETIC, MEASURED, OWN
from ddp_hpc.publication import pack as names
from ddp_hpc.publication.citation import CODE_LICENCE, SOFTWARE
from ddp_hpc.publication.evidence import only_losses
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

OF_KIND = {  # headings
    MEASURED: "What the sources have measured or state",
    ARITHMETIC: "Arithmetic of a formula: no measurement, neither theirs nor ours",
    OWN: "Expectations of our own: no source states them",
}


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
        answers=[one.text for one in answer.found(pack.study_runs, tables)],
        citation=f"Of: {study.citation.rstrip('.')}." if study.citation else "",
        claims=list(_claims(tables.get("claims", pd.DataFrame()))),
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


def _claims(claims: pd.DataFrame) -> Iterator[tuple[str, str, list[list[str]]]]:
    """Yield the heading of each kind of claim that there is, what its numbers beside ours are, and a row per claim."""
    for kind in KINDS:
        rows = [row for row in rows_of(claims) if row["kind"] == kind]
        if rows:
            number = "compared with" if kind == OWN else "published"
            yield OF_KIND[kind], number, [[in_a_cell(text) for text in _claim(row)] for row in rows]


def _claim(row: Mapping[str, Any]) -> Iterator[str]:
    unit = f" {row['unit']}" if pd.notna(row["unit"]) else ""
    numbers = {name: cell(row[name]) for name in ("published", "ours", "ours_low", "ours_high", "runs")}
    yield row["statement"]
    yield row["source"]
    yield from (f"{numbers[name]}{unit}" if numbers[name] else "" for name in ("published", "ours"))
    yield f"{numbers['ours_low']} to {numbers['ours_high']}" if numbers["ours_low"] and numbers["ours_high"] else ""
    yield numbers["runs"]
    why = f": {row['reason']}" if pd.notna(row["reason"]) else ""
    yield f"**{verdict_in_words(row)}**, expected {row['expected']}{why}"


def _records(pack: Pack, planned: int) -> str:
    kept = sum((pack.root / names.RUNS / run / "run.parquet").is_file() for run in pack.runs)
    steps = "its steps"
    if only_losses(pack.root):
        steps = "when its steps ended, with which loss (not what else ranks measured, so not which were slow)"
    return f"the records of {kept} of {counted(planned, 'run')}: `run.parquet`, and {steps}, evaluations, GPU samples"


def _facts(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, values in sorted({**facts["common"], **facts["differing"]}.items()):
        if name.startswith(SHOWN):
            several = len(values) > 1
            yield name, "; ".join(f"{text} (in {counted(runs, 'run')})" if several else text for text, runs in values)
