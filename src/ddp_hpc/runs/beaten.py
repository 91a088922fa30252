"""Runs that were stopped as beaten: by whom, and which of them have to go on after all.

Records of such runs count as finished only for studies with the rule `stop_when_beaten`, and as long as a complete run
of their group is there that beats them. The folder of a run says that it was stopped, and whether it is not to be.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddp_hpc.config import beaten
from ddp_hpc.runs.attempt import Store

if TYPE_CHECKING:
    from ddp_hpc.runs.study_runs import StudyRuns

_COLUMNS = (
    *("status", "samples_asked", "samples_seen", "loss_area_loss_s", "min_loss", "oversubscribed"),
    *("test_metric", "test_metric_name"),
)
_PLACE = ("placement_verified", "device_used")


@dataclass(frozen=True)
class Rival:
    """A complete run that may win, and its loss area."""

    run: str
    area: float


def asked(study_runs: "StudyRuns") -> dict[str, dict[str, Any]]:
    """Return by run, of those that may stop, with which others it competes, and by which rules."""
    study, runs = study_runs.study, {one.spec.hash: one.run for one in study_runs.planned}
    if not study.rules.stop_when_beaten:
        return {}
    rules = {"loss_threshold": study.rules.loss_threshold, "loss_window": study.rules.loss_window}
    rivals = beaten.rivals(study, [one.spec for one in study_runs.planned])
    return {runs[spec]: {"runs": [runs[one] for one in others]} | rules for spec, others in rivals.items() if others}


def rival(store: Store, run: str, loss_threshold: float | None, loss_window: int, device: str | None) -> Rival | None:
    """Return a run if it has ended, may win, and ran on such a device (None: on any)."""
    from ddp_hpc.runs import records
    from ddp_hpc.runs.eligibility import AREA, exclusion

    try:
        row = records.read_run(store.file(run), [*_COLUMNS, *_PLACE]).to_pylist()[0]
        if loss_window > 1 and row["status"] == "ok":
            row["min_loss"] = _least_over(store, run, loss_window)
    except (records.RecordError, OSError):  # it is not there, or being put there
        return None
    if row["placement_verified"] is False or device not in (None, row["device_used"]):
        return None
    return None if exclusion(row, loss_threshold) else Rival(run, float(row[AREA]))


def _least_over(store: Store, run: str, window: int) -> float:
    import pyarrow.compute as pc

    from ddp_hpc.runs import records
    from ddp_hpc.runs.eligibility import least_mean

    counted = (pc.field("rank") == 0) & ~pc.field("warm_up")
    steps = records.read("steps", store.file(run, "steps"), ("step", "rank", "loss", "warm_up"), counted)
    return least_mean(steps.sort_by("step")["loss"].to_numpy(), window)


def best(store: Store, runs: Iterable[str], loss_threshold: float | None, loss_window: int) -> Rival | None:
    """Return the run with the least area of those that have ended and may win; None if none has."""
    found = (rival(store, run, loss_threshold, loss_window, None) for run in runs if store.finished(run))
    return min((one for one in found if one), key=lambda one: one.area, default=None)


def unsettled(study_runs: "StudyRuns", stopped: Sequence[str]) -> set[str]:
    """Return which of the stopped runs are to go on.

    Without the rule, or where that was asked for, or where no complete run of its group beats one any more.
    """
    from ddp_hpc.runs import records

    store, rules, found = study_runs.store, study_runs.study.rules, set[str]()
    by_run, known = asked(study_runs), dict[tuple[str, ...], Rival | None]()
    for run in stopped:
        others = tuple(other for other in by_run.get(run, {}).get("runs", ()) if other not in stopped)
        if others not in known:
            known[others] = best(store, others, rules.loss_threshold, rules.loss_window)
        least = known[others]
        row = records.read_run(store.file(run), ["loss_area_loss_s"]).to_pylist()[0]
        area = row["loss_area_loss_s"] or 0.0
        if store.run(run).whole or least is None or area <= (1 + rules.area_noise) * least.area:
            found.add(run)
    return found
