"""Which scheme suits which arithmetic intensity: efficiency, and speed against the reference, over FLOP per byte."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_hpc.analysis.columns import rows_of, show_component, split
from ddp_hpc.analysis.figures._curves import SIDE_BY_SIDE, Look, curves, handles, numbered, top_of
from ddp_hpc.analysis.figures._layout import finished, grid, head, in_lines, nothing, say
from ddp_hpc.analysis.figures._panels import columns_but, panels
from ddp_hpc.analysis.figures._style import HEADROOM, IDEAL, plain_numbers
from ddp_hpc.config.study import Study

INPUTS = ("schemes",)
CAPTION = (
    "Schemes over the arithmetic intensity, the work of a rank's step over the bytes of the parameters: efficiency "
    "against one rank, and how many times as fast as the reference."
)

SCHEME = ("exchange", "exchange_options")
SAME_LINE = ("model", "model_options", "dataset", "dataset_options")
ALONG = "flop_per_parameter_byte"
ROOM = 2.8  # times: from the outermost points to the ends of their logarithmic axis


def draw(tables: dict[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return two panels, again for each number of ranks and whatever else varies."""
    table = tables["schemes"]
    known = table[(table["runs"] > 0) & table[ALONG].notna() & (table["world_size"] > 1)]
    if known.empty:
        why = "of none that has ended well is the work known" if (table["runs"] > 0).any() else "none has ended well"
        return nothing(coverage, f"several ranks, and {why}")
    known, looks = numbered(known, SCHEME, study)
    shown = panels(known, columns_but(known, *SCHEME, *SAME_LINE, "batch_size"))
    figure, axes = grid(2 * len(shown), 2.0)
    for efficiency, speed, panel in zip(axes[::2], axes[1::2], shown, strict=True):
        head(efficiency, panel.title, "efficiency")
        head(speed, panel.title, f"times as fast as {study.rules.reference_exchange}")
        _panel(efficiency, panel.rows, looks, "weak_efficiency")
        if panel.rows["times_as_fast"].notna().any():
            _panel(speed, panel.rows, looks, "times_as_fast")
        else:
            say(speed, "the reference has not run")
    over = "over the rounds" if (known["runs"] > 1).any() else "within the only run"
    named = [look | {"label": name} for look, name in zip(looks, _names(known), strict=True)]
    legend = [*handles(named), Line2D([], [], label="one rank; the reference", **IDEAL)]
    notes = [f"Bars: 95 % intervals {over}, an arrow where one leaves the axis.", SIDE_BY_SIDE]
    return finished(figure, coverage, notes, legend, known)


def _names(known: pd.DataFrame) -> list[str]:
    """Return the lines in words: the scheme, if its exchange says which it is, and the exchange."""
    first = rows_of(known.drop_duplicates("line").sort_values("line"))
    schemes = ["" if pd.isna(row["scheme"]) else f"{row['scheme']}: " for row in first]
    exchanges = [show_component(row["exchange"], row.get("exchange_options", "{}")) for row in first]
    return [scheme + exchange for scheme, exchange in zip(schemes, exchanges, strict=True)]


def _panel(axes: Axes, rows: pd.DataFrame, looks: list[Look], column: str) -> None:
    """Draw a line for each scheme and model, along its batch sizes."""
    axes.axhline(1, **IDEAL)
    shown = rows[rows[column].notna()]
    top = max(HEADROOM, top_of(shown, column)) if len(shown) else HEADROOM
    axes.set(xscale="log", xlim=(rows[ALONG].min() / ROOM, ROOM * rows[ALONG].max()), ylim=(0, top))
    for _, part in split(shown, [name for name in SAME_LINE if name in shown]):
        curves(axes, part, looks, ALONG, column, apart=True, top=top)
    axes.set_xlabel(in_lines("FLOP of a step per byte of the parameters", axes))
    plain_numbers(axes.xaxis)
