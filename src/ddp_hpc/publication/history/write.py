"""Writes a history: history.csv with all numbers, the figure of step times, and a page that can be read offline."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ddp_hpc import __version__
from ddp_hpc.analysis.compare.significance import BETTER, WORSE
from ddp_hpc.analysis.figures import _versions as step_times
from ddp_hpc.analysis.figures._save import save
from ddp_hpc.analysis.figures._style import style
from ddp_hpc.analysis.report.units import SECONDS, digits
from ddp_hpc.analysis.tables._frame import columns
from ddp_hpc.publication.history.development import Developed, Track, Value, changes
from ddp_hpc.publication.history.versions import Version
from ddp_hpc.system.files import replaced

NAME = "history"
WIDTH, HEIGHT, MARGIN = 96, 22, 4  # of the small curve of a line, in pixels
MOST_LINES = 500  # of a table on the page
COLUMNS = columns(
    "quantity line version commit uncommitted_changes ended_at value low high interval_from winner",
    "against verdict change_percent change_low_percent change_high_percent reason",
)
FIRST, NOTHING = "the first version", "no point in common with those before"
QUANTITIES = {
    "step_s": "Step time",
    "winner": "Winners",
    "efficiency": "Parallel efficiency",
    "test_metric": "Test metric",
    "final_loss": "Final loss",
}


def write(developed: Developed, to: Path) -> Path:
    """Write table, figure and page into the folder `to`, made if need be, and return the page."""
    to.mkdir(parents=True, exist_ok=True)
    table = rows(developed)
    with replaced(to / f"{NAME}.csv") as temporary:
        table.to_csv(temporary, index=False)
    steps = table[table["quantity"] == "step_s"].rename(columns={"line": "point"})
    number = {version.name: at for at, version in enumerate(developed.versions)}
    steps = steps.assign(version=steps["version"].map(number))
    with style():
        drawn = step_times.draw(steps, [version.name for version in developed.versions])
        svg = save(drawn, to, NAME, step_times.CAPTION, developed.study)
    with replaced(to / "index.html") as temporary:
        temporary.write_text(_page(developed, svg), encoding="utf-8")
    return to / "index.html"


def rows(developed: Developed) -> pd.DataFrame:
    """Return all numbers, a row for each line and version that has it."""
    found = [
        _row(quantity, line, version, value)
        for quantity, lines in developed.lines.items()
        for line in lines
        for version, value in zip(developed.versions, line.values, strict=True)
        if value
    ]
    return pd.DataFrame(found, columns=COLUMNS)


def _row(quantity: str, line: Track, version: Version, value: Value) -> tuple[Any, ...]:
    what = (quantity, line.name, version.name, version.commit, version.dirty, version.ended)
    number = (value.value, value.low, value.high, value.basis, value.text or None)
    change = (value.change_percent, value.change_low, value.change_high)
    return (*what, *number, value.against or None, value.verdict or None, *change, value.reason or None)


def _page(developed: Developed, svg: Path) -> str:
    loaders = [PackageLoader("ddp_hpc.publication.history"), PackageLoader("ddp_hpc.analysis.report")]
    environment = Environment(
        loader=ChoiceLoader(loaders), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("history.html.j2").render(
        study=developed.study,
        software=__version__,
        versions=developed.versions,
        changes=[list(changes(developed, at)) or [NOTHING if at else FIRST] for at in range(len(developed.versions))],
        picture=base64.b64encode(svg.read_bytes()).decode(),
        caption=svg.with_suffix(".txt").read_text(encoding="utf-8"),
        tables=[
            (quantity, words, _unit(developed.lines[quantity], quantity), _shown(developed, quantity))
            for quantity, words in QUANTITIES.items()
            if developed.lines[quantity]
        ],
        more={quantity: max(0, len(lines) - MOST_LINES) for quantity, lines in developed.lines.items()},
    )


def _unit(lines: Sequence[Track], quantity: str) -> str:
    """Return the unit of a table: of times the one that suits the largest."""
    if quantity != "step_s":
        return "" if quantity in ("winner", "test_metric", "final_loss") else "%"
    largest = max(value.value for line in lines for value in line.values if value)
    return next((unit for unit, seconds in SECONDS.items() if largest >= seconds), "us")


def _shown(developed: Developed, quantity: str) -> list[tuple[str, list[dict[str, str]], Markup]]:
    """Return the lines of a table as texts: those that changed first, else in the order of the study."""
    lines = developed.lines[quantity]
    unit = _unit(lines, quantity)
    factor = 1 / SECONDS[unit] if unit in SECONDS else 100 if unit == "%" else 1
    first = sorted(lines, key=lambda line: not any(_sign(value) for value in line.values))
    return [
        (line.name, [_cell(value, factor) for value in line.values], _curve(line.values)) for line in first[:MOST_LINES]
    ]


def _cell(value: Value | None, factor: float) -> dict[str, str]:
    """Return what a cell says: the value, its interval, and what has changed."""
    if value is None:
        return {"value": "", "interval": "", "change": "", "sign": "", "about": "not trained by this version"}
    middle, low, high = (factor * one for one in (value.value, value.low, value.high))
    half = (high - low) / 2
    known = np.isfinite(half)
    change = f"{value.change_percent:+.1f} %" if _sign(value) and value.change_percent is not None else ""
    if value.text:
        change = value.verdict
    against = f", against {value.against}: {value.verdict}" if value.against and value.verdict else ""
    return {
        "value": value.text or digits(middle, half if known else np.nan),
        "interval": f"{digits(low, half)} to {digits(high, half)}" if known and not value.text else "",
        "change": change,
        "sign": _sign(value),
        "about": f"{value.basis}{against}{f' ({value.reason})' if value.reason else ''}",
    }


def _sign(value: Value | None) -> str:
    """Return the class of what has changed by more than the noise."""
    return {WORSE: "worse", BETTER: "better"}.get(value.verdict, "") if value else ""


def _curve(values: Sequence[Value | None]) -> Markup:
    """Return a line as a small curve, with a mark where it has changed."""
    there = [(at, value) for at, value in enumerate(values) if value and np.isfinite(value.value)]
    if len(there) < 2 or there[0][1].text:
        return Markup("")
    known = [value.value for _, value in there]
    low, span = min(known), (max(known) - min(known)) or 1.0
    span = max(span, 0.05 * abs(max(known)))  # what hardly moves looks flat
    step = (WIDTH - 2 * MARGIN) / max(1, len(values) - 1)
    places = [
        (MARGIN + at * step, HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (value.value - low) / span, _sign(value))
        for at, value in there
    ]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in places)
    marks = "".join(
        f'<circle class="{sign or "point"}" cx="{x:.1f}" cy="{y:.1f}" r="{3 if sign else 1.5}"/>'
        for x, y, sign in places
    )
    curve = f'<path class="curve" d="{path}"/>{marks}'
    return Markup(f'<svg class="small" width="{WIDTH}" height="{HEIGHT}" aria-hidden="true">{curve}</svg>')
