"""The table of all runs: results, then what varies, the rest when asked; it sorts and filters offline (itables)."""

import re
from collections.abc import Mapping

import pandas as pd
from markupsafe import Markup

from ddp_hpc.analysis.columns import varying
from ddp_hpc.analysis.definitions import about
from ddp_hpc.analysis.formatting import options
from ddp_hpc.analysis.report.units import in_units, unit_names

NUMBER = "no."
HIDDEN = ("spec_hash", "code_hash", "ended_at")  # never shown
RESULTS = ("status", "train_s", "samples_per_s", "test_metric", "loss_area_loss_s", "time_to_s", "min_loss", "step_s")
BESIDE = ("excluded", "reason")  # shown last
SIGNIFICANT_DIGITS = 4
# null comes to the page as a word or as NaN (the only value that differs from itself)
NULL_IS_BLANK = "function (data) { return data === '<NA>' || data !== data ? '' : data; }"
# what would be longer than it is exact: 1.17e+14 for 117000000000000; a sort and a filter have the whole number
LARGE_IN_SHORT = (
    "function (data, type) { if (data === '<NA>' || data !== data) return ''; return type === 'display' && typeof data "
    "=== 'number' && Math.abs(data) >= 1e7 ? data.toExponential() : data; }"
)
LINK = (
    "function (data, type) { return type === 'display' && data ? `<a href=\"#run-${data}\">run ${data}</a>` : data; }"
)
LATEX = "function (event, table) { tableAsLatex(table.buttons.exportData({columns: ':visible'}), event); }"


def interactive(runs: pd.DataFrame, number: Mapping[str, int]) -> Markup:
    """Return the table of all runs, each with its number in the plan, which leads to what is known of the run.

    One that is planned no longer, in a table that is out of date, has the number 0.
    """
    import itables
    from itables.javascript import generate_init_offline_itables_html, to_html_datatable

    differ = [name for name in runs if name not in HIDDEN and (len(runs) < 2 or runs[name].nunique(dropna=False) > 1)]
    kept = [name for name in differ if runs[name].notna().any()]
    front = [*(name for name in RESULTS if name in kept), *(name for name in varying(runs) if name in kept)]
    front += [name for name in BESIDE if name in kept]
    shown = in_units(runs[[*front, *(name for name in kept if name not in front)]])
    for name in shown.select_dtypes("float"):
        shown[name] = [float(f"{value:.{SIGNIFICANT_DIGITS}g}") for value in shown[name]]
    for name in shown.select_dtypes("string"):
        shown[name] = shown[name].fillna("")
    for name in (name for name in shown if str(name).endswith("_options")):
        shown[name] = shown[name].map(options)
    large = [1 + place for place, name in enumerate(shown) if pd.api.types.is_float_dtype(shown[name])]
    shown.insert(0, NUMBER, [number.get(run, 0) for run in runs["run"]])
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
        columnDefs=[
            {"targets": 0, "render": itables.JavascriptFunction(LINK)},
            {"targets": large, "render": itables.JavascriptFunction(LARGE_IN_SHORT)},
            {"targets": list(range(1, shown.shape[1])), "render": itables.JavascriptFunction(NULL_IS_BLANK)},
            {"targets": list(range(1 + len(front), shown.shape[1])), "visible": False},
        ],
        buttons=[
            {"extend": "colvis", "text": "Columns"},
            {"extend": "copyHtml5", "text": "Copy", "title": None, "exportOptions": {"columns": ":visible"}},
            {"extend": "csvHtml5", "text": "CSV", "filename": "runs", "exportOptions": {"columns": ":visible"}},
            {"text": "LaTeX", "action": itables.JavascriptFunction(LATEX)},
        ],
        scrollX=True,
        pageLength=25,
        display_logo_when_loading=False,
    )
    table = re.sub(r"<sup><noscript>.*?</sup>", "", table)  # a link to where itables explains itself
    return Markup(generate_init_offline_itables_html(itables.options.dt_bundle) + table)


def dictionary(runs: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Return name, unit and meaning of the columns of the table of runs, in its order."""
    names, found = unit_names(runs), []
    for name in map(str, runs):
        unit, meaning = about(name)
        here = f", here as {names[name]}" if names.get(name, name) != name else ""
        found.append((name, unit + here, meaning))
    return found
