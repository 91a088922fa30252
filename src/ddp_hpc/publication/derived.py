"""All of a pack that is made from its evidence: who has the one can make the other again, to the byte."""

import json
from pathlib import Path
from typing import Any

from ddp_hpc.analysis import figures, tables
from ddp_hpc.analysis.report import page
from ddp_hpc.analysis.report.provenance import of_runs
from ddp_hpc.analysis.report.warnings import flags
from ddp_hpc.publication import appendix, citation, crate, datapackage, readme
from ddp_hpc.publication import pack as names
from ddp_hpc.publication.pack import Pack


def make_tables(pack: Pack, root: Path) -> None:
    """Make all tables of a pack from its records, below the folder `root`."""
    for name in pack.table_names:
        tables.make(name, pack.study_runs, root / names.TABLES)


def make_figures(pack: Pack, root: Path) -> None:
    """Draw all figures from the tables below `root`, then write the page of all."""
    for name in pack.study.figure_names:
        figures.make(name, pack.study, root / names.TABLES, root / names.FIGURES)
    page.make(pack.study_runs, root, pack.root)


def facts(pack: Pack) -> str:
    """Return what the records say of software, machine and code: by name each value, and how many runs have it.

    With it stand the warnings of the page about runs and tables.
    """
    found = of_runs(pack.study_runs)
    warnings = flags(pack.study_runs, pack.tables, found)
    return in_json({"runs": found.runs, "common": found.common, "differing": found.differing, "warnings": warnings})


def descriptions(pack: Pack) -> dict[str, str]:
    """Return how a pack describes itself, from its tables and the facts in it: texts by file."""
    told = json.loads((pack.root / names.FACTS).read_text(encoding="utf-8"))
    made = {
        names.README: readme.text(pack, told),
        names.APPENDIX: appendix.text(pack, told),
        names.DATACITE: in_json(citation.datacite(pack)),
        names.ZENODO: in_json(citation.zenodo(pack)),
        names.CITATION: citation.cff(pack),
        **citation.licences(pack),
        names.DATA_PACKAGE: in_json(datapackage.of(pack)),
    }
    return made | {names.CRATE: in_json(crate.of(pack, told, made))}


def in_json(values: Any) -> str:
    """Return JSON for people and programs: the same values give the same text."""
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"
