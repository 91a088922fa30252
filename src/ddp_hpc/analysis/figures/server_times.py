"""What a parameter server does in a step over the ranks: SHM-Learn-Dist (Biswas, 2017), figures 6.4 to 6.6, and more.

The source's time to gather holds what rank 0 waits for the slowest rank; here waiting and moving have a panel each.
"""

import pandas as pd
from matplotlib.figure import Figure

from ddp_hpc.analysis.figures._curves import handles, interval_note, numbered, over_ranks
from ddp_hpc.analysis.figures._layout import finished, first_reason, grid, head, label_outer, nothing
from ddp_hpc.analysis.figures._panels import columns_but
from ddp_hpc.config.study import Study

INPUTS = ("server_times",)
CAPTION = "Times at a parameter server per step, at rank 0, over the ranks: means and their 95 % intervals."

PANELS = {
    "gather_wait": "gather: waiting",
    "gather_move": "gather: moving",
    "average": "average",
    "distribute": "distribute",
}


def draw(tables: dict[str, pd.DataFrame], study: Study, coverage: str) -> Figure:
    """Return a panel for each time in milliseconds, a line for each setting that differs in more than the ranks."""
    times = tables["server_times"]
    known = times[times["runs"] > 0]
    if known.empty:
        return nothing(coverage, "none of a parameter server has ended well")
    known, looks = numbered(known, columns_but(known, "world_size"), study)
    figure, axes = grid(len(PANELS), 1.75)
    for one, (name, words) in zip(axes, PANELS.items(), strict=True):
        head(one, words)
        over_ranks(one, known, looks, f"{name}_s", first_reason(known, "not known"), 1e3, apart=True)
    label_outer(axes, "world size (ranks)", "rank 0: ms per step")
    notes = [
        "Gathering is waiting, until the slowest rank has its gradients, and moving them; distributing is of weights.",
        interval_note(known),
    ]
    return finished(figure, coverage, notes, handles(looks) if len(looks) > 1 else [], known)
