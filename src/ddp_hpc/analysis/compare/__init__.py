"""`ddp-hpc compare A B`: which points of two result sets differ significantly, and whether they are better or worse."""

from dataclasses import asdict
from typing import Any

from ddp_hpc.analysis.compare.result_sets import ResultSet, in_both, read
from ddp_hpc.analysis.compare.significance import ALIKE, BETTER, OPEN, SMALL, WORSE, Finding, Judgement, judge
from ddp_hpc.analysis.variance_model import ALPHA, MOST_REPEATS
from ddp_hpc.system.terminal import counted, in_json, table_lines

NO_REGRESSION, REGRESSION, NOT_JUDGED = 0, 1, 2
VERDICTS = (WORSE, BETTER, SMALL, ALIKE, OPEN)
SHOWN = 20  # points in a list


def main(given_a: str, given_b: str, tolerance: float, change: float, everything: bool, as_json: bool) -> int:
    """Compare two result sets, print what came out, and return the exit code.

    Args:
        given_a, given_b: as `result_sets.read` takes them; A is what was, B what is.
        tolerance: relative difference that is no matter.
        change: relative difference for which the repeats needed are told.
        everything: list all findings, not only the differences.
        as_json: for programs.

    Returns:
        0: nothing is worse; 1: something is; 2: some metric could be judged at no point.

    Raises:
        ValueError: a set cannot be found, or they have no point in common.
    """
    a, b = read(given_a), read(given_b)
    found = judge(a, b, tolerance, change)
    if not found.points:
        raise ValueError(f"{given_a} and {given_b} have no point in common: their specs differ in more than the seed")
    unknown = found.not_judged or not found.findings
    code = REGRESSION if found.those(WORSE) else NOT_JUDGED if unknown else NO_REGRESSION
    if as_json:
        print(in_json(values(a, b, found, tolerance, change, code)))
    else:
        print("\n".join(lines(a, b, found, change, everything)))
    return code


def values(a: ResultSet, b: ResultSet, found: Judgement, tolerance: float, change: float, code: int) -> dict[str, Any]:
    """Return everything as plain JSON values."""
    return {
        "a": {"name": a.name, "runs": len(a.runs), "notes": a.notes},
        "b": {"name": b.name, "runs": len(b.runs), "notes": b.notes},
        "runs_in_both": in_both(a, b),
        "points": found.points,
        "only_a": found.only_a,
        "only_b": found.only_b,
        "correction": "Holm",
        "alpha": ALPHA,
        "tolerance": tolerance,
        "change": change,
        "comparisons": sum(finding.p is not None for finding in found.findings),
        "counts": {verdict: len(found.those(verdict)) for verdict in VERDICTS},
        "exit_code": code,
        "findings": [asdict(finding) for finding in found.findings],
    }


def lines(a: ResultSet, b: ResultSet, found: Judgement, change: float, everything: bool) -> list[str]:
    """Return what came out, for reading."""
    text = [f"{side}: {one.name}, {counted(len(one.runs), 'run')}" for side, one in (("A", a), ("B", b))]
    text += [f"{one.name}: {note}" for one in (a, b) for note in one.notes]
    if same := in_both(a, b):
        text.append(f"{same} of {counted(len(b.runs), 'run')} of B are runs of A, too: compared with themselves")
    text += [f"{counted(found.points, 'point')} in both{_only('A', found.only_a)}{_only('B', found.only_b)}"]
    tests = sum(finding.p is not None for finding in found.findings)
    counts = ", ".join(f"{len(those)} {verdict}" for verdict in VERDICTS if (those := found.those(verdict)))
    text += [
        f"{counts}; {counted(tests, 'comparison')}, a false alarm among all of them in at most {100 * ALPHA:g} % of "
        "cases (Holm)"
    ]
    shown = found.findings if everything else tuple(found.those(WORSE, BETTER, SMALL))
    if shown:
        text += ["", *table_lines([_row(finding, change) for finding in shown])]
    open_reasons = dict.fromkeys(str(finding.reason) for finding in found.those(OPEN))
    text += ["", *(f"not judged: {reason}" for reason in open_reasons)] if open_reasons else []
    text += [f"{metric} could be judged at no point" for metric in found.not_judged]
    return [*text, *_needed(found, change)]


def _only(side: str, points: tuple[str, ...]) -> str:
    if not points:
        return ""
    more = f"; ... and {len(points) - SHOWN} more" if len(points) > SHOWN else ""
    return f"; {len(points)} in {side} only: {'; '.join(points[:SHOWN])}{more}"


def _row(finding: Finding, change: float) -> dict[str, Any]:
    def percent(value: float | None) -> str | None:
        return None if value is None else f"{value:+.2f}"

    ends = (percent(finding.low_percent), percent(finding.high_percent))
    return {
        "point": finding.point,
        "metric": finding.metric,
        "verdict": finding.verdict,
        "A": finding.a,
        "B": finding.b,
        "change (%)": percent(finding.change_percent),
        "95 %": f"{ends[0]} to {ends[1]}" if None not in ends else None,
        "p (Holm)": None if finding.p is None else f"{finding.p:.2g}",
        "runs": f"{finding.runs_a}, {finding.runs_b}",
        f"repeats for {100 * change:g} %": None if finding.p is None else finding.repeats_needed or f"> {MOST_REPEATS}",
        "because": finding.reason,
    }


def _needed(found: Judgement, change: float) -> list[str]:
    """Return how many repeats each metric needs in each set, to see a change in nine of ten cases."""
    text = []
    for metric in dict.fromkeys(finding.metric for finding in found.findings if finding.p is not None):
        told = [finding for finding in found.findings if finding.metric == metric and finding.p is not None]
        needed = sorted(finding.repeats_needed or MOST_REPEATS + 1 for finding in told)
        most, middle = needed[-1], needed[len(needed) // 2]
        if most <= 2:
            continue
        worst = f"more than {MOST_REPEATS}" if most > MOST_REPEATS else str(most)
        text.append(
            f"{metric}: to see a change of {100 * change:g} % takes {worst} repeats in each set at the noisiest point, "
            f"{middle if middle <= MOST_REPEATS else worst} at half of the points"
        )
    return ["", *text] if text else []
