"""Tables and rules formatted for reading: short numbers, headings with units, and what all rows share said once."""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ddp_hpc.analysis.definitions import UNITS
from ddp_hpc.config.spec import shown
from ddp_hpc.config.study import Rules

_HEADINGS = {
    "loss_area_loss_s": "loss area (loss x s)",
    "standard_error_loss_s": "standard error (loss x s)",
    "standard_error_s": "standard error (s)",
    "time_to_s": "time to the test metric (s)",
    "samples_per_s": "rate (samples/s)",
    "train_s": "training (s)",
    "core_wait_share": "waiting for cores (share)",
    "throttled_by_quota_share": "throttled by the quota (share)",
    "others_core_share": "cores used by others (share)",
    "slow_steps_share": "slow steps (share)",
    "oversubscribed": "too few cores",
    "placement_verified": "placed as asked",
    "karp_flatt": "Karp-Flatt",
    "eligible_points": "points that may win",
    "excluded_because": "why the others may not",
    "excluded": "why it may not win",
    "forward_backward_s": "forward and backward (s)",
    "h2d_s": "copy to device (s)",
    "samples_per_s_per_rank": "samples/s per rank",
    "gpu_utilisation_mean": "busy: any kernel runs",
    "mfu": "MFU",
    "times_as_fast": "times as fast as the reference",
    "metric_per_s": "metric per second",
    "best_t_s": "time of the best (s)",
    "common_t_s": "time to the common metric (s)",
    "gather_wait_s": "gather: waiting (s)",
    "gather_move_s": "gather: moving (s)",
    "weak_efficiency": "weak-scaling efficiency",
    "parameter_bytes": "parameters (B)",
    "flop_per_parameter_byte": "FLOP per parameter byte",
    "gpu_data_path": "data path of GPUs",
    "link_share": "share of the link",
}
# by rule: of the one that wins, and what is sought
_BEST = {
    "loss_area": ("with the smallest loss area wins", "the true least area"),
    "test_metric": ("with the best test metric at the end wins", "the true best"),
}
WHOLE = 1e7  # up to here, large numbers are written in full
NO_SERIAL_FRACTION = (
    "Karp-Flatt is blank where it lies outside 0 to 1: slower than one rank, or a speedup above the number of ranks."
)


@dataclass(frozen=True)
class Readable:
    """A table for readers: its cells as texts under headings, which columns are numbers, and notes.

    Those `for_authors` are about the files, which readers of an article do not have.
    """

    texts: pd.DataFrame
    numeric: list[bool]
    notes: list[str]
    for_authors: tuple[str, ...] = ()


def cell(value: Any) -> str:
    """Return a value for reading: four significant digits or an integer, yes or no, nothing for null."""
    if pd.isna(value):
        return ""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if 1e4 <= abs(value) < WHOLE else f"{value:.4g}"


def heading(name: str) -> str:
    """Return the heading of a column, with its unit: `step (s)` for `step_s`."""
    if name in _HEADINGS:
        return _HEADINGS[name]
    for unit in ("us", "ms"):
        if name.endswith(f"_{unit}") and (in_s := _HEADINGS.get(f"{name.removesuffix(unit)}s", "")).endswith("(s)"):
            return f"{in_s.removesuffix('(s)')}({unit})"
    suffix = next((suffix for suffix in UNITS if name.endswith(suffix)), "")
    words = name.removesuffix(suffix).replace("_", " ").strip()
    return f"{words} ({UNITS[suffix]})" if suffix else words


def as_texts(frame: pd.DataFrame) -> pd.DataFrame:
    """Return all values for reading, each by itself; options of a choice as words: `channels 16`."""
    texts = frame.astype(object).map(cell)
    for name in (name for name in texts if str(name).endswith("_options")):
        texts[name] = texts[name].map(options)
    return texts


def in_a_cell(text: str) -> str:
    """Return a string as Markdown that stays in its cell: one line, and no HTML."""
    plain = " ".join(text.splitlines()).replace("&", "&amp;").replace("<", "&lt;")
    return plain.replace("\\", "\\\\").replace("|", "\\|")


def options(text: str) -> str:
    """Return options in words: `channels 16` for the JSON that a record has."""
    return shown("", json.loads(text)).strip(" ()") if text.startswith("{") else text


def readable(
    frame: pd.DataFrame, left_out: Collection[str] = (), texts_of: Callable[[pd.DataFrame], pd.DataFrame] = as_texts
) -> Readable:
    """Return a table for readers, without the columns `left_out` and those that hold one value only, which notes name.

    Numbers that would mislead are blank. `texts_of` makes texts of a table whose numbers are rounded by one another.
    """
    notes, shown = [], frame
    if "karp_flatt" in frame and "karp_flatt" not in left_out:
        outside = (frame["karp_flatt"] < 0) | (frame["karp_flatt"] > 1)
        if outside.any():
            shown = frame.assign(karp_flatt=frame["karp_flatt"].mask(outside))
            notes.append(NO_SERIAL_FRACTION)
    kept = [str(name) for name in shown if name not in left_out]
    same = [name for name in kept if len(shown) > 1 and shown[name].nunique(dropna=False) == 1]
    texts = texts_of(shown)
    known = [f"{heading(name)} {text}" for name in same if (text := texts[name].iloc[0])]
    if known:
        notes.append(f"The same in all rows: {', '.join(known)}.")
    columns = [name for name in kept if name not in same]
    numeric = [pd.api.types.is_numeric_dtype(shown[name]) and shown[name].dtype != "boolean" for name in columns]
    texts = texts[columns]
    texts.columns = pd.Index([heading(name) for name in columns])
    gone = [str(name) for name in frame if name in left_out]
    more = (f"Left out here, but in the Parquet and CSV files: {', '.join(gone)}.",) if gone else ()
    return Readable(texts, numeric, notes, more)


def in_words(rules: Rules, looks: Sequence[int]) -> list[str]:
    """Return the rules of the judgement as sentences, those that apply to a study with such `looks`."""
    steps = "one step" if rules.loss_window == 1 else f"{rules.loss_window} steps"
    threshold = "any loss" if rules.loss_threshold is None else f"a least loss up to {rules.loss_threshold:g}"
    metric = f"test metric ({rules.metric})" if rules.metric else "test metric"
    if isinstance(by := rules.winner_by, str):
        best, truly = _BEST[by]
        best = best.replace("test metric", metric)
    else:
        best = (
            f"that has a {metric} of {by.time_to:g} or better first wins, by the training time at its evaluations. "
            "Who never has it loses, and may need more budget. Times count from the evaluation before, for the others"
        )
        truly = "the true least time"
    winner = (
        f"Of the runs that ended well, with all samples seen, {threshold} (over {steps}) and a core for every thread, "
        f"the one {best}."
    )
    apart = f"Points that cannot be distinguished from the winner: {truly} is among them and it in 95 % of cases"
    if looks[-1] > 1:
        weak = " Two repeats are a weak test: only large differences are significant." if looks[-1] == 2 else ""
        if len(looks) > 1:
            weak = f" The limits allow for results that are looked at {len(looks)} times."
        repeats = " to ".join(map(str, dict.fromkeys((looks[0], looks[-1]))))
        pool = "points of the same exchange and world size share their variance, of all if that leaves few degrees of"
        return [winner, f"{apart} (Gupta's rule), by the variance between the {repeats} repeats; {pool} freedom.{weak}"]
    if rules.stop_when_beaten:
        winner += (
            " Runs stopped once their area had passed that of a complete one: they cannot win, areas are lower bounds."
        )
    if by == "test_metric":
        return [winner, "Each point ran once, and how the metric differs between seeds is not known: see `repeats`."]
    return [
        winner,
        f"{apart}, as far as time goes: each point ran once, so how the loss differs between seeds is not known. The "
        "noise of time is that between runs that do the same work per step (they differ in learning rate, seed, budget "
        f"or evaluations); differences below {100 * rules.area_noise:g} % never count. Where no runs do the same work, "
        "nothing is told apart. Repeats would give more certainty.",
    ]
