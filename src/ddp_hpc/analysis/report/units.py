"""Numbers as the page shows them: one unit per column, by its largest value, and the digits that an interval allows."""

import math
import re
from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pandas as pd

from ddp_hpc.analysis.columns import ERRORS
from ddp_hpc.analysis.formatting import Readable, as_texts, cell, readable
from ddp_hpc.config.spec import SPEC_COLUMNS

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
HOURS = {"hours": 3600.0, "minutes": 60.0, "seconds": 1.0, "milliseconds": 1e-3, "microseconds": 1e-6}  # rank-hours
MOST_DIGITS = 6  # significant ones
_TIME = re.compile(r"^(?!.*(?:_per|_loss)_s$)(.*)_(s|ms|us|hours)$")
_END = re.compile(r"_(low|high|least|largest)(?=_|$)")


def for_page(frame: pd.DataFrame, left_out: Collection[str] = ()) -> Readable:
    """Return a table for readers of the page; the columns left out have the names that they have in the files."""
    names = unit_names(frame)
    shown = readable(in_units(frame), [names.get(name, name) for name in left_out], rounded)
    gone = [str(name) for name in frame if name in left_out]
    return replace(shown, for_authors=(f"Only in the files: {', '.join(gone)}.",) if gone else ())


def time(seconds: float) -> str:
    """Return a time with its unit, in three digits: `0.52 s`, `43.1 us`."""
    unit = _unit(abs(seconds))
    return f"{seconds / SECONDS[unit]:.3g} {unit}"


def unit_names(frame: pd.DataFrame) -> dict[str, str]:
    """Return by column of times how it is called in the unit that suits it; an interval has that of its middle."""
    largest: dict[str, float] = {}
    for name in frame.select_dtypes("number"):
        if found := _TIME.match(str(name)):
            values = frame[name].astype("float64").abs().to_numpy()
            most = float(values[np.isfinite(values)].max(initial=0.0)) * _seconds(str(name))
            largest[_middle(str(name))] = max(largest.get(_middle(str(name)), 0.0), most)
    return {
        str(name): f"{found[1]}_{_unit(largest[_middle(str(name))], found[2])}"
        for name in frame
        if (found := _TIME.match(str(name))) and _middle(str(name)) in largest
    }


def in_units(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose times are in the units, and under the names, that suit them."""
    names = unit_names(frame)
    changed = {name: new for name, new in names.items() if new != name}
    scaled = {name: frame[name] * (_seconds(name) / _seconds(new)) for name, new in changed.items()}
    return frame.assign(**scaled).rename(columns=changed)


def _seconds(name: str) -> float:
    """Return the unit of a column of times, in seconds."""
    return (SECONDS | HOURS)[name.rpartition("_")[2]]


def _unit(seconds: float, now: str = "s") -> str:
    """Return the largest unit, of the kind that a time has `now`, of which it has at least one."""
    units = HOURS if now in HOURS else SECONDS
    return next((unit for unit, size in units.items() if seconds >= size or seconds == 0), list(units)[-1])


def _middle(name: str) -> str:
    """Return the column of which this one has an end: `step_s` for `step_low_s`."""
    return _END.sub("", name)


def rounded(frame: pd.DataFrame) -> pd.DataFrame:
    """Return all values for reading; those with an interval have the digits that it allows."""
    texts, names = as_texts(frame), [str(name) for name in frame]
    ends: dict[str, dict[str, str]] = {}
    for name in names:
        if (end := _END.search(name)) and end[1] in ("low", "high"):
            ends.setdefault(_middle(name), {})[end[1]] = name
    for middle, own in ends.items():
        if len(own) < 2 or middle not in names or middle in SPEC_COLUMNS:
            continue
        low, high = (frame[own[end]].astype("float64") for end in ("low", "high"))
        for name in (name for name in names if _middle(name) == middle):
            texts[name] = [
                digits(value, (above - below) / 2)
                for value, below, above in zip(frame[name].astype("float64"), low, high, strict=True)
            ]
    for value, error in ERRORS.items():
        if value in names and error in names:
            for name in (value, error):
                texts[name] = [digits(*both) for both in zip(frame[name], frame[error], strict=True)]
    return texts


def digits(value: float, half_width: float) -> str:
    """Return a number with the second digit of half the width of its interval as its last; not 0 for what is more."""
    if not math.isfinite(value) or not 0 < half_width < math.inf:
        return cell(value)
    places = 1 - math.floor(math.log10(half_width))
    if value:
        places = min(places, MOST_DIGITS - 1 - math.floor(math.log10(abs(value))))
    rounded = round(value, places)
    return f"{rounded:.{max(places, 0)}f}" if rounded or not value else f"{value:.1g}"
