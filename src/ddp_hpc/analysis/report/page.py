"""Writes the report of a study: one HTML file without dependencies, readable offline, in dark mode and on paper."""

import base64
import re
from io import StringIO
from pathlib import Path

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from ruamel.yaml import YAML

from ddp_hpc import __version__
from ddp_hpc.analysis.claim_verdict import SIGNS, summary
from ddp_hpc.analysis.columns import rows_of
from ddp_hpc.analysis.formatting import cell, in_words, readable
from ddp_hpc.analysis.report.provenance import of_runs
from ddp_hpc.analysis.report.warnings import flags, lacking
from ddp_hpc.config import catalog
from ddp_hpc.config.study import OF_STUDIES, Study
from ddp_hpc.runs import records
from ddp_hpc.runs.schema import RUN
from ddp_hpc.runs.study_runs import StudyRuns
from ddp_hpc.system.files import replaced

HIDDEN = ("spec_hash", "code_hash", "ended_at")  # in the table of runs
SIGNIFICANT_DIGITS = 6
POINTS_PER_REM = 7.0  # letters of 7 points in a figure are then about as large as the text
# null comes to the page as a word or as NaN (the only value that differs from itself)
NULL_IS_BLANK = "function (data) { return data === '<NA>' || data !== data ? '' : data; }"
# what the table of runs holds beside the records, or judges otherwise
DERIVED = {
    "status": "how the run ended: ok, diverged, oom_gpu, or why it has no result",
    "min_loss": "least mean loss over the study's loss_window",
    "time_to_s": "training time at the first evaluation that had the test metric of winner_by; null if none had",
    "time_before_s": "training time at the evaluation before that, 0 if it was the first; at the last if none had it",
    "excluded": "why the run may not win; blank if it may",
    "slow_steps_share": "share of train_s beyond steps x step_s: near 0 on a quiet machine",
    "step_low_s": "low end of the 95 % interval of step_s, within this run",
    "step_high_s": "high end of the 95 % interval of step_s, within this run",
    "drift_percent": "trend of the step times from the first step to the last, of the first",
    "drifting": "that trend is beyond the noise of the steps, and at least 5 %",
    "slow_ranks": "ranks whose own work takes longer than that of the others by 10 % or more; blank if none does",
    "attempts": "how often the run was started",
}
SHOWN = ("winners", "scaling", "exchanges", "pairs", "phases")  # tables that any study may have on its page


def make(study_runs: StudyRuns, study_folder: Path) -> Path:
    """Write `report/index.html` from the tables and figures in `study_folder`, and from the runs' provenance.

    Tables and figures that are not there are left out; the page says so. A record that cannot be read is named by a
    RecordError.
    """
    study = study_runs.study
    files = {name: study_folder / "tables" / f"{name}.parquet" for name in catalog.names("table")}
    tables = {name: pd.read_parquet(file) for name, file in files.items() if file.is_file()}
    provenance = of_runs(study_runs)
    known = {name: catalog.constants("table", name) for name in tables}
    known = {name: constants for name, constants in known.items() if constants.get("FOR_READING", True)}
    asked = [name for name in study.table_names if name in known and not OF_STUDIES & known[name].keys()]
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
        flags=flags(study_runs, tables, provenance),
        rules=in_words(study.rules, study.looks),
        tables={
            name: readable(tables[name], records.read_metadata(files[name])["left_out"])
            for name in (*SHOWN, *asked)
            if name in tables
        },
        captions={name: constants.get("CAPTION", name) for name, constants in known.items()},
        asked=[(name, name.replace("_", " ").capitalize()) for name in asked],
        pictures=[_picture(study_folder / "figures" / f"{name}.svg") for name in study.figure_names],
        runs=_interactive(tables["runs"]) if "runs" in tables else "",
        dictionary=_dictionary([str(name) for name in tables["runs"]]) if "runs" in tables else [],
        claims=_claims(tables["claims"]) if "claims" in tables else [],
        verdicts=summary(tables["claims"]["verdict"]) if "claims" in tables else "",
        provenance=provenance,
        source=_source(study),
    )
    file = study_folder / "report" / "index.html"
    file.parent.mkdir(parents=True, exist_ok=True)
    with replaced(file) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return file


def _claims(table: pd.DataFrame) -> list[dict[str, str]]:
    """Return the claims in the order of the study: all as text, numbers with their unit, and a sign of the verdict."""
    shown = []
    for row in rows_of(table):
        texts = {name: cell(value) for name, value in row.items()}
        unit = f" {texts['unit']}" if texts["unit"] else ""
        interval = f"{texts['ours_low']} to {texts['ours_high']} ({row['interval_from']})" if texts["ours_low"] else ""
        published = f"{texts['published']}{unit}" if texts["published"] else "in words only"
        ours = f"{texts['ours']}{unit}" if texts["ours"] else ""
        sign = SIGNS[row["verdict"]]
        shown.append(texts | {"published": published, "ours": ours, "interval": interval, "sign": sign})
    return shown


def _dictionary(columns: list[str]) -> list[tuple[str, str, str]]:
    """Return name, unit and meaning of the columns of the table of runs, in its order."""
    metadata = {name: RUN.field(name).metadata for name in RUN.names}
    told = [[metadata.get(name, {}).get(key, b"").decode() for key in (b"unit", b"meaning")] for name in columns]
    return [(name, unit, DERIVED.get(name, meaning)) for name, (unit, meaning) in zip(columns, told, strict=True)]


def _picture(file: Path) -> dict[str, str | float]:
    """Return a figure of the page; `uri` holds it whole, and is empty if it has not been drawn."""
    beside = file.with_suffix(".txt")
    caption = str(catalog.constants("figure", file.stem).get("CAPTION", file.stem))
    caption = beside.read_text(encoding="utf-8") if beside.is_file() else caption
    svg = file.read_bytes() if file.is_file() else b""
    size = re.search(rb'<svg[^>]*\swidth="([\d.]+)pt"', svg)
    return {
        "name": file.stem,
        "caption": caption,
        "uri": f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}" if svg else "",
        "width_rem": round(float(size[1]) / POINTS_PER_REM, 1) if size else 40,
    }


def _interactive(runs: pd.DataFrame) -> Markup:
    """Return the table of all runs, which sorts, searches and filters without the network (itables)."""
    import itables
    from itables.javascript import generate_init_offline_itables_html, to_html_datatable

    differ = [name for name in runs if name not in HIDDEN and (len(runs) < 2 or runs[name].nunique(dropna=False) > 1)]
    shown = runs[[name for name in differ if runs[name].notna().any()]].copy()
    for name in shown.select_dtypes("float"):
        shown[name] = [float(f"{value:.{SIGNIFICANT_DIGITS}g}") for value in shown[name]]
    for name in shown.select_dtypes("string"):
        shown[name] = shown[name].fillna("")
    blank = itables.JavascriptFunction(NULL_IS_BLANK)
    table = to_html_datatable(
        shown,
        connected=False,
        table_id="runs-table",
        classes="display compact nowrap",
        showIndex=False,
        maxBytes=0,
        maxRows=0,
        maxColumns=0,
        column_filters="footer",
        columnDefs=[{"targets": list(range(shown.shape[1])), "render": blank}],
        scrollX=True,
        pageLength=25,
        display_logo_when_loading=False,
    )
    return Markup(generate_init_offline_itables_html(itables.options.dt_bundle) + table)


def _source(study: Study) -> str:
    """Return the study as YAML, without what is at its default."""
    text, yaml = StringIO(), YAML(typ="safe", pure=True)
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 100
    yaml.dump(study.model_dump(mode="json", exclude_defaults=True), text)
    return text.getvalue()
