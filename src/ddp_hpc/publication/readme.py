"""The README of a pack, filled in from its tables: the answer first, then how sure it is, then what each file is."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from ddp_hpc import __version__
from ddp_hpc.analysis.claim_verdict import summary
from ddp_hpc.analysis.columns import rows_of
from ddp_hpc.analysis.formatting import cell, heading, in_words
from ddp_hpc.publication import pack as names
from ddp_hpc.publication.citation import CODE_LICENCE, SOFTWARE
from ddp_hpc.publication.pack import Pack
from ddp_hpc.runs.records import read_metadata
from ddp_hpc.system.terminal import counted, rank_time

SHOWN = (
    "processors",
    "GPUs",
    "hosts",
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
        answers=list(answers(tables)) or ["No run may win, and none can be compared with one rank: see the tables."],
        coverage=f"Coverage: {read_metadata(pack.root / names.TABLES / 'runs.parquet')['coverage']}",
        rules=in_words(study.rules, study.looks),
        flags=facts["warnings"],
        notes=said.notes.strip(),
        tables=", ".join(tables),
        figures=", ".join(f"`{name}`" for name in study.figure_names),
        records=_records(pack, len(runs)),
        machine=(pack.root / names.MACHINE).is_file(),
        code_files=sum(name.startswith(f"{names.CODE}/") for name in pack.files),
        version=__version__,
        address=SOFTWARE,
        commit=commits[0][0],
        rank_hours=rank_time(float((runs["wall_s"] * runs["world_size"].astype("float64")).sum())),
        facts=list(_facts(facts)),
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


def answers(tables: Mapping[str, pd.DataFrame]) -> Iterator[str]:
    """Yield what was found, a sentence each: winners, how much faster they are than one rank, what claims came to."""
    for row in rows_of(tables.get("winners", pd.DataFrame())):
        if row.get("winner") is not None and not pd.isna(row["winner_runs"]):
            yield _won(row)
            yield from _faster(row, tables.get("scaling", pd.DataFrame()))
    if "claims" in tables:
        yield f"{summary(tables['claims']['verdict'])[0].upper()}{summary(tables['claims']['verdict'])[1:]}."


def _won(row: Mapping[str, Any]) -> str:
    groups = list(row)[: list(row).index("winner")]
    where = ", ".join(f"{heading(name)} {cell(row[name])}" for name in groups if cell(row[name]))
    known = {
        name: cell(row[name]) for name in ("loss_area_loss_s", "time_to_s", "test_metric", "min_loss") if name in row
    }
    numbers = ", ".join(f"{heading(name)} {value}" for name, value in known.items() if value)
    rivals = (
        f"; cannot be distinguished from it: {row['cannot_be_told_from']}" if cell(row["cannot_be_told_from"]) else ""
    )
    return f"With {where}, {row['winner']} wins: {numbers}{rivals}."


def _faster(won: Mapping[str, Any], scaling: pd.DataFrame) -> Iterator[str]:
    """Yield how much faster the point that has won trains than one rank does, by the first kind of scaling there is."""
    if scaling.empty or not won["world_size"] > 1:
        return
    axes = [
        name
        for name in scaling.columns
        if name in won and name in ("exchange", "world_size", "batch_size", "learning_rate")
    ]
    same = scaling[(scaling[axes] == pd.Series({name: won[name] for name in axes})).all(axis="columns")]
    for row in rows_of(same.head(1)):
        if pd.isna(row["speedup"]):
            yield f"Its speedup is not known: {row['reason']}."
            continue
        known = not pd.isna(row["speedup_low"])
        interval = (
            f" ({cell(row['speedup_low'])} to {cell(row['speedup_high'])}, {row['interval_from']})" if known else ""
        )
        crowded = " More threads than cores ran: this time means nothing." if row["oversubscribed"] is True else ""
        yield (
            f"It trains {cell(row['speedup'])} times as fast as one rank does{interval}, a parallel efficiency of "
            f"{cell(row['efficiency'])} ({row['kind']}).{crowded}"
        )
