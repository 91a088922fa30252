"""Writes the report of a study: one HTML file without dependencies, readable offline, in dark mode and on paper."""

import base64
import gzip
import json
import re
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from ruamel.yaml import YAML

from ddp_hpc import __version__
from ddp_hpc.analysis.claim_verdict import KINDS, SIGNS, summary, verdict_in_words
from ddp_hpc.analysis.columns import rows_of
from ddp_hpc.analysis.formatting import Readable, cell, in_words
from ddp_hpc.analysis.report import answer, runs_table
from ddp_hpc.analysis.report.provenance import Provenance, of_runs
from ddp_hpc.analysis.report.publishable import RULES, publishable
from ddp_hpc.analysis.report.row_runs import runs_of_rows
from ddp_hpc.analysis.report.run_cards import cards
from ddp_hpc.analysis.report.units import for_page
from ddp_hpc.analysis.report.warnings import flags, lacking
from ddp_hpc.config import catalog
from ddp_hpc.config.claims import MEASURED, OWN
from ddp_hpc.config.study import OF_STUDIES, Study
from ddp_hpc.runs import records
from ddp_hpc.runs.study_runs import StudyRuns
from ddp_hpc.system.files import replaced

PACKED_FROM = 200_000  # bytes: what is larger lies in the page compressed, and a script unpacks it
MOST_ROWS = 2_000  # of a table on the page
POINTS_PER_REM = 7.0  # letters of 7 points in a figure are then about as large as the text
NAMED = 4  # of what is out of date
SHOWN = ("winners", "scaling", "exchanges", "pairs", "phases")  # tables that any study may have on its page


def old(outdated: Sequence[str], study: str) -> str:
    """Return that the page shows what was made before records, rules or code were changed, and what to do."""
    more = f" and {len(outdated) - NAMED} more" if len(outdated) > NAMED else ""
    return (
        f"made before the records, the rules or the code were changed: {', '.join(outdated[:NAMED])}{more}; "
        f"`ddp-hpc run {study}` makes them and the page anew"
    )


def make(study_runs: StudyRuns, study_folder: Path, place: Path | None = None, *, outdated: Sequence[str] = ()) -> Path:
    """Write `report/index.html` from the tables and figures in `study_folder`, and from the runs' provenance.

    Tables and figures that are not there are left out; the page says so. Its links lead to runs from where it lies, or
    will lie: `place`. Of tables and figures that are `outdated` it warns. A record that cannot be read is named by a
    RecordError.
    """
    study = study_runs.study
    files = {name: study_folder / "tables" / f"{name}.parquet" for name in catalog.names("table")}
    tables = {name: pd.read_parquet(file) for name, file in files.items() if file.is_file()}
    provenance = of_runs(study_runs)
    known = {name: catalog.constants("table", name) for name in tables}
    known = {name: constants for name, constants in known.items() if constants.get("FOR_READING", True)}
    asked = [name for name in study.table_names if name in known and not OF_STUDIES & known[name].keys()]
    shown = [name for name in (*SHOWN, *asked) if name in tables]
    loader = PackageLoader("ddp_hpc.analysis.report")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.get_template("report.html.j2").render(
        study=study,
        version=__version__,
        coverage=study_runs.coverage(),
        statuses=study_runs.runs["status"].value_counts().to_dict(),
        lacking=lacking(study_runs.runs),
        flags=[*([f"{old(outdated, study.name)}."] if outdated else []), *flags(study_runs, tables, provenance)],
        found=answer.found(study_runs, tables),
        sure=answer.how_sure(study_runs, tables),
        publishable=publishable(study, tables, study_runs.runs),
        most_rows=MOST_ROWS,
        publishing_rules=RULES,
        rules=in_words(study.rules, study.looks),
        tables={name: _shown(tables[name], records.read_metadata(files[name])["left_out"]) for name in shown},
        row_runs={name: runs_of_rows(tables[name].head(MOST_ROWS), study_runs.runs) for name in shown},
        captions={name: constants.get("CAPTION", name) for name, constants in known.items()},
        asked=[(name, name.replace("_", " ").capitalize()) for name in asked],
        pictures=[_picture(study_folder / "figures" / f"{name}.svg") for name in study.figure_names],
        files=_files(study, study_folder),
        claims=_claims(tables["claims"]) if "claims" in tables else [],
        verdicts=_verdicts(tables["claims"]) if "claims" in tables else "",
        provenance=provenance,
        source=_source(study),
        **_runs(study_runs, tables, provenance, place or study_folder),
    )
    file = study_folder / "report" / "index.html"
    file.parent.mkdir(parents=True, exist_ok=True)
    with replaced(file) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return file


def _shown(table: pd.DataFrame, left_out: list[str]) -> Readable:
    """Return a table as the page shows it: of a long one the first rows, which a note says."""
    shown = for_page(table.head(MOST_ROWS), left_out)
    if len(table) > MOST_ROWS:
        shown.notes.append(f"The first {MOST_ROWS:,} of {len(table):,} rows; all are in the files above.")
    return shown


def _packed(content: bytes) -> str:
    """Return text that the page's `unpacked` makes into the content again; the same content makes the same text."""
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def _verdicts(table: pd.DataFrame) -> str:
    return summary(zip(table["kind"], table["verdict"], strict=True))


def _claims(table: pd.DataFrame) -> list[dict[str, str]]:
    """Return the claims in the order of the study: all as text, numbers with their unit, and a sign of the verdict."""
    shown = []
    for row in rows_of(table):
        texts = {name: cell(value) for name, value in row.items()}
        unit = f" {texts['unit']}" if texts["unit"] else ""
        interval = f"{texts['ours_low']} to {texts['ours_high']} ({row['interval_from']})" if texts["ours_low"] else ""
        in_words = "in words only" if row["kind"] == MEASURED else ""
        own = " (not the source's)" if row["kind"] == OWN else ""
        published = f"{texts['published']}{unit}{own}" if texts["published"] else in_words
        ours = f"{texts['ours']}{unit}" if texts["ours"] else ""
        texts |= {"published": published, "ours": ours, "interval": interval, "told": verdict_in_words(row)}
        more = {"sign": SIGNS[row["verdict"]], "of": "" if row["kind"] == MEASURED else KINDS[row["kind"]]}
        shown.append(texts | more)
    return shown


def _runs(
    study_runs: StudyRuns, tables: dict[str, pd.DataFrame], provenance: Provenance, study_folder: Path
) -> dict[str, Any]:
    """Return what the page says of single runs: the table of all, what its columns mean, and the cards behind it."""
    made = cards(study_runs, tables, provenance, study_folder / "report")
    number = {card["id"]: place for place, card in enumerate(made["runs"], 1)}
    text = json.dumps(made, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    packed = len(text) > PACKED_FROM
    plain = re.sub(r"[<>&]", lambda sign: f"\\u{ord(sign[0]):04x}", text)  # harmless within a script
    return {
        "packed": packed,
        "points": [card["point"] for card in made["runs"]],
        "cards": Markup(_packed(text.encode()) if packed else plain),
        "runs": runs_table.interactive(tables["runs"], number) if "runs" in tables else "",
        "dictionary": runs_table.dictionary(tables["runs"]) if "runs" in tables else [],
    }


def _files(study: Study, study_folder: Path) -> dict[str, dict[str, list[str]]]:
    """Return the files that lie beside the page: of the study's tables and figures, by name their endings."""
    found: dict[str, dict[str, list[str]]] = {}
    for kind, names in (("tables", study.table_names), ("figures", study.figure_names)):
        for file in (file for name in names for file in sorted((study_folder / kind).glob(f"{name}.*"))):
            if file.stem in names:  # one put aside has another
                found.setdefault(kind, {}).setdefault(file.stem, []).append(file.suffix[1:])
    return found


def _picture(file: Path) -> dict[str, str | float]:
    """Return a figure of the page: `uri` holds it whole, or `packed`, if it is large; neither if it is not drawn."""
    beside = file.with_suffix(".txt")
    caption = str(catalog.constants("figure", file.stem).get("CAPTION", file.stem))
    caption = beside.read_text(encoding="utf-8") if beside.is_file() else caption
    svg = file.read_bytes() if file.is_file() else b""
    size = re.search(rb'<svg[^>]*\swidth="([\d.]+)pt" height="([\d.]+)pt"', svg)
    packed = len(svg) > PACKED_FROM
    return {
        "name": file.stem,
        "caption": caption,
        "uri": f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}" if svg and not packed else "",
        "packed": _packed(svg) if packed else "",
        "ratio": f"{float(size[1]):.0f} / {float(size[2]):.0f}" if size else "auto",
        "width_rem": round(float(size[1]) / POINTS_PER_REM, 1) if size else 40,
    }


def _source(study: Study) -> str:
    """Return the study as YAML, without what is at its default."""
    text, yaml = StringIO(), YAML(typ="safe", pure=True)
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 100
    yaml.dump(study.model_dump(mode="json", exclude_defaults=True), text)
    return text.getvalue()
