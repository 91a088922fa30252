"""The rows and lines that the planning verbs show."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ddp_hpc import catalog
from ddp_hpc.durations import duration
from ddp_hpc.ledger import Ledger, state_of
from ddp_hpc.plan import Item
from ddp_hpc.project import Project
from ddp_hpc.statuses import FAILED, FINISHED, STATUSES
from ddp_hpc.study import StudyError

MOST_LINES = 40


def studies(project: Project) -> list[dict[str, Any]]:
    """Return a row per study: its runs and how many are finished; a wrong study says so in its row."""
    rows: list[dict[str, Any]] = []
    for name in project.studies:
        try:
            ledger = project.ledger(name)
        except StudyError as error:
            rows.append(
                {"study": name, "runs": None, "finished": None, "description": f"WRONG: {error}".split("\n")[0]}
            )
            continue
        finished = sum(project.store.finished(planned.run) for planned in ledger.planned)
        description = ledger.study.description
        rows.append({"study": name, "runs": len(ledger.planned), "finished": finished, "description": description})
    return rows


def choices(kind: str) -> list[dict[str, Any]]:
    """Return a row per choice of a kind: its options, and its first line of documentation; or what is wrong with it."""
    rows = []
    for name in catalog.names(kind):
        try:
            options = catalog.options(kind, name).values()
            what = catalog.summary(kind, name)
        except catalog.CatalogError as error:
            rows.append({kind: name, "options": None, "what": f"WRONG: {error}"})
            continue
        listed = ", ".join(f"{option.name}: {option.annotation} = {option.default}" for option in options)
        rows.append({kind: name, "options": listed or None, "what": what})
    return rows


def points(project: Project, name: str) -> list[dict[str, Any]]:
    """Return a row per planned run of a study: the fields that vary, and its name."""
    ledger = project.ledger(name)
    columns = [planned.spec.columns() for planned in ledger.planned]
    varying = [field for field in columns[0] if len({row[field] for row in columns}) > 1]
    return [
        {field: row[field] for field in varying} | {"run": planned.run}
        for row, planned in zip(columns, ledger.planned, strict=True)
    ]


def planned(item: Item) -> dict[str, Any]:
    """Return an item of the plan as plain values."""
    estimate = item.estimate
    return {
        "run": item.planned.run,
        "action": item.action,
        "reason": item.reason,
        "estimate_s": estimate and estimate.middle_s,
        "estimate_low_s": estimate and estimate.low_s,
        "estimate_high_s": estimate and estimate.high_s,
        "spec": item.planned.spec.canonical,
    }


def plan_lines(ledger: Ledger, items: Sequence[Item], everything: bool) -> list[str]:
    """Return the plan as lines: the counts, why (each reason once, or each run), how long, notes on the grid."""
    counts = Counter(item.action for item in items)
    listed = ", ".join(
        f"{counts[action]} {action}" for action in ("new", "changed", *FAILED, "running", "kept") if counts[action]
    )
    runs = "1 run" if len(items) == 1 else f"{len(items)} runs"
    lines = [f"{ledger.study.name}: {runs}: {listed}"]
    shown = [item for item in items if everything or item.action != "kept"]
    if everything:
        lines += [f"  {item.action:8} {item.planned.run}  {item.reason}" for item in shown]
    else:
        lines += _by_reason(ledger, shown)
    return [*lines, *_hours([item for item in items if item.will_run]), *(f"note: {note}" for note in ledger.notes)]


def _by_reason(ledger: Ledger, items: Sequence[Item]) -> list[str]:
    """Return a line per reason: how many runs have it, and one of them."""
    groups: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        groups.setdefault((item.action, item.reason), []).append(item)
    lines = []
    for (action, reason), group in list(groups.items())[:MOST_LINES]:
        example = ledger.describe(group[0].planned.run)
        lines.append(f"  {len(group)} {action}: {reason}; {'e.g. ' if len(group) > 1 else ''}{example}")
    if len(groups) > MOST_LINES:
        lines.append(f"  ... and {len(groups) - MOST_LINES} more reasons: --all or --json")
    return lines


def _hours(items: Sequence[Item]) -> list[str]:
    if not items:
        return ["nothing is to be trained"]
    to_train = f"{len(items)} run{'s' if len(items) > 1 else ''} to train"
    known = [(item.estimate, item.planned.spec.world_size) for item in items if item.estimate]
    if not known:
        return [f"{to_train}; how long is not known: no run like them has finished"]
    low, middle, high = (
        duration(sum(getattr(estimate, name) for estimate, _ in known)) for name in ("low_s", "middle_s", "high_s")
    )
    ranks = duration(sum(estimate.middle_s * ranks for estimate, ranks in known))
    unknown = f"; {len(items) - len(known)} have none like them" if len(known) < len(items) else ""
    return [f"{to_train}, about {middle} one after the other ({low} to {high}; times ranks: {ranks}){unknown}"]


def states(ledger: Ledger) -> list[dict[str, Any]]:
    """Return a row per planned run: its status, reason and attempts."""
    rows = []
    for one in ledger.planned:
        state = state_of(ledger.store, one.run)
        rows.append({"run": one.run, "status": state.status, "reason": state.reason, "attempts": state.attempts})
    return rows


def state_lines(ledger: Ledger, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the status of a study as lines: the counts, then every run that is not a plain result."""
    counts = Counter(row["status"] for row in rows)
    listed = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
    finished = sum(counts[status] for status in FINISHED)
    lines = [f"{ledger.study.name}: {finished} of {len(rows)} runs finished: {listed}"]
    shown = [row for row in rows if row["status"] not in ("ok", "missing")]
    for row in shown:
        again = f" ({row['attempts']} attempts)" if row["status"] in FAILED and row["attempts"] > 1 else ""
        lines.append(f"  {row['status']:13} {row['run']}{again}  {row['reason'] or ''}".rstrip())
    return lines
