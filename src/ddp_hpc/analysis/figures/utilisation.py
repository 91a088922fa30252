"""Usage of the GPUs over the ranks, beside power, clocks, MFU and the exposed exchange: why busy is not fast."""

import pandas as pd
from matplotlib.figure import Figure

from ddp_hpc.analysis.figures._curves import handles, numbered, over_ranks
from ddp_hpc.analysis.figures._layout import columns_of, finished, grid, head, nothing
from ddp_hpc.analysis.figures._panels import columns_but, panels
from ddp_hpc.analysis.figures._style import HEADROOM, plain_numbers
from ddp_hpc.config.study import Study

INPUTS = ("utilisation",)
CAPTION = (
    "Usage of the GPUs as the driver tells it, beside what shows whether they compute: power, clock, MFU, exposed "
    "exchange and speed; medians over the runs."
)
OF_GPUS = True

LINE = ("exchange", "exchange_options")
# what stands over a column's panel, factor, the end of its axis if it has one
PANELS = {
    "gpu_utilisation_mean": ("busy: any kernel runs (%)", 100, 100),
    "power_mean_w": ("power of a GPU (W)", 1, None),
    "sm_clock_mean_mhz": ("clock (MHz)", 1, None),
    "mfu": ("MFU: of the peak FLOP/s (%)", 100, None),
    "exchange_share": ("exposed exchange (% of a step)", 100, 100),
    "samples_per_s_per_rank": ("samples/s of a rank", 1, None),
}


def draw(tables: dict[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return up to six panels over the ranks, again for each batch size and whatever else varies."""
    table = tables["utilisation"]
    known = table[table["runs"] > 0]
    if known.empty:
        return nothing(coverage, "none has ended well", table)
    known, looks = numbered(known, LINE, study)
    shown = panels(known, columns_but(known, *LINE, "world_size"))
    drawn = {column: how for column, how in PANELS.items() if known[column].notna().any()} or PANELS
    figure, axes = grid(len(drawn) * len(shown), 1.55, most_columns=3)  # up to two rows for each panel of the study
    for place, panel in enumerate(shown):
        here = axes[place * len(drawn) : (place + 1) * len(drawn)]
        for one, (column, (words, factor, end)) in zip(here, drawn.items(), strict=True):
            head(one, words, small=[panel.title] if panel.title and one is here[0] else [])
            over_ranks(one, panel.rows, looks, column, _why(panel.rows, column), factor, top=end and HEADROOM * end)
    for one in (one for one in axes if one.lines):
        plain_numbers(one.yaxis)
    for one in axes[-columns_of(axes[0]) :]:
        one.set_xlabel("world size (ranks)" if one.lines else "")
    notes = [
        "Busy counts kernels that wait for other ranks: what rises alone, without power, MFU and speed, is waiting."
    ]
    notes += [f"Not known is {PANELS[name][0]}: {_why(known, name)}." for name in PANELS if name not in drawn]
    return finished(figure, coverage, notes, handles(looks), known)


def _why(rows: pd.DataFrame, column: str) -> str:
    """Return the first part of the rows' reasons that is of a column: `energy_j, mfu: no GPU is used`."""
    of = {"power_mean_w": "energy_j", "sm_clock_mean_mhz": "gpu_utilisation_mean"}.get(column, column)
    parts = [part.partition(": ") for reason in rows["reason"].dropna() for part in reason.split("; ")]
    return next((why for names, _, why in parts if of in names.split(", ")), "not known")
