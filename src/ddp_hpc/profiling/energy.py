"""Joules from samples: of a counter that may stand still or go back, else of power integrated over time.

All times are seconds on one clock. A window is a part of the time that counts, between two pauses of the training.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Window = tuple[float, float]

LEAST_COVERED = 0.9  # of the windows, for a sum to be given; what is not covered is taken to be like the rest
LONG_GAP_S = 2.0  # between two samples of power: what was between them is not known


@dataclass(frozen=True, kw_only=True)
class Joules:
    """The energy of some windows."""

    total_j: float | None  # None: not known, for the `reason`
    rise_j: Floats  # within the windows up to each sample, nan where that is not known
    error_j: float | None = None  # by how much the total may be off at most; None: no bound is known
    reason: str = ""


def inside(t_s: Floats, windows: Sequence[Window]) -> NDArray[np.bool_]:
    """Return which moments lie in a window, its ends included."""
    found = np.zeros(len(t_s), dtype=np.bool_)
    for begin, end in windows:
        found |= (t_s >= begin) & (t_s <= end)
    return found


def elapsed(t_s: Floats, windows: Sequence[Window]) -> Floats:
    """Return the time within the windows up to each moment."""
    passed = np.zeros(len(t_s))
    for begin, end in windows:
        passed += np.clip(t_s, begin, end) - begin
    return passed


def by_counter(t_s: Floats, counter_j: Floats, windows: Sequence[Window]) -> Joules:
    """Return the energy by which a counter, nan where it was not read, rises within the windows.

    Between two samples it rises evenly; where it goes back (a driver was loaded anew), what is used there is not known.
    """
    known = np.isfinite(counter_j)
    steps_j = np.diff(counter_j[known])
    back = bool((steps_j < 0).any())
    joules = _within(t_s, known, np.where(steps_j < 0, np.nan, steps_j), windows, "the counter went back" * back)
    if joules.total_j == 0.0:  # it moves a few times a second only
        return _unknown(t_s, "the counter did not move")
    if joules.total_j is None or back:
        return joules
    edges = [edge for window in windows for edge in window]
    if edges[0] < t_s[known][0] or edges[-1] > t_s[known][-1]:
        return joules
    return replace(joules, error_j=sum(_off_at(t_s[known], counter_j[known], edge) for edge in edges))


def _off_at(t_s: Floats, counter_j: Floats, edge_s: float) -> float:
    """Return by how much a counter that is updated now and then may be off at a moment, between two samples, at most.

    What it counts is then at least what the sample before it says, and at most what the first update after it brings.
    """
    before = max(int(np.searchsorted(t_s, edge_s, "right")) - 1, 0)
    after = min(int(np.searchsorted(t_s, edge_s)), len(t_s) - 1)
    later = np.flatnonzero(counter_j[after:] > counter_j[after])
    highest = counter_j[after + later[0]] if len(later) else counter_j[after] + np.diff(counter_j).max(initial=0.0)
    taken = float(np.interp(edge_s, t_s, counter_j))
    return float(max(highest - taken, taken - counter_j[before], 0.0))


def by_power(t_s: Floats, power_w: Floats, windows: Sequence[Window]) -> Joules:
    """Return power, nan where it was not read, integrated over the windows by the trapezoid rule."""
    known = np.isfinite(power_w)
    times, power = t_s[known], power_w[known]
    steps_j = (power[1:] + power[:-1]) / 2 * np.diff(times)
    usual_s = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    steps_j[np.diff(times) > max(LONG_GAP_S, 4 * usual_s)] = np.nan
    return _within(t_s, known, steps_j, windows)


def _within(
    t_s: Floats, known: NDArray[np.bool_], steps_j: Floats, windows: Sequence[Window], more: str = ""
) -> Joules:
    """Return the joules within the windows, of energies between known samples, nan where they are not known."""
    times = t_s[known]
    whole_s = sum(end - begin for begin, end in windows)
    if not whole_s:
        return _unknown(t_s, "not the whole training was metered: the run was resumed")
    if len(times) < 2:
        return _unknown(t_s, "fewer than two samples")
    steps_s, sure = np.diff(elapsed(times, windows)), np.isfinite(steps_j)
    counted_j = np.where(sure, steps_j * (steps_s / np.diff(times)), 0.0)
    covered_s = float(steps_s[sure].sum())
    if covered_s < LEAST_COVERED * whole_s:
        return _unknown(t_s, f"{more}; " * bool(more) + f"sampled in {covered_s:.2f} of {whole_s:.2f} s of training")
    rise_j = np.concatenate([[0.0], np.cumsum(counted_j)]) * (whole_s / covered_s)
    return Joules(total_j=float(rise_j[-1]), rise_j=np.interp(t_s, times, rise_j))


def _unknown(t_s: Floats, reason: str) -> Joules:
    return Joules(total_j=None, rise_j=np.full(len(t_s), np.nan), reason=reason)


def at_rest_w(power_w: Floats, utilisation: Floats) -> float | None:
    """Return the least power of any sample while no kernel ran; None if there is no such sample."""
    rest = power_w[(utilisation == 0) & np.isfinite(power_w)]
    return float(rest.min()) if len(rest) else None
