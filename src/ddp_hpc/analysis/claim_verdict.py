"""The verdict on a claim, from the measured number, its interval, and what agrees with the source or contradicts it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

from ddp_hpc.config.claims import ANY_CHANGE, ARITHMETIC, AT_LEAST, AT_MOST, MEASURED, OWN, WITHIN, Claim

if TYPE_CHECKING:  # a quick start
    from ddp_hpc.analysis.intervals import Interval

REPRODUCED, CONTRADICTED, UNDECIDED, NOT_TESTABLE = "reproduced", "contradicted", "undecided", "not testable here"
CONFIRMED, REFUTED = "confirmed", "refuted"  # of what is no measurement of the source
NEITHER = "neither expected nor a contradiction"
SIGNS = {  # in the order of lists
    REPRODUCED: "\u2713",
    CONTRADICTED: "\u2717",
    CONFIRMED: "\u2713",
    REFUTED: "\u2717",
    UNDECIDED: "?",
    NOT_TESTABLE: "\u2013",
}
FAR = 0.25  # of a published number: how far ours may be from it for the number, too, to be as published
KINDS = {MEASURED: "claims", ARITHMETIC: "arithmetic", OWN: "expectations of our own"}  # as they are counted


def summary(verdicts: Iterable[tuple[str, str]]) -> str:
    """Return e.g. `claims: 5 reproduced, 1 contradicted; arithmetic: 2 confirmed`, of kinds and verdicts."""
    counts = Counter(verdicts)
    listed = {
        words: ", ".join(f"{counts[kind, name]} {name}" for name in SIGNS if counts[kind, name])
        for kind, words in KINDS.items()
    }
    return "; ".join(f"{words}: {found}" for words, found in listed.items() if found) or "claims: none"


def verdict_in_words(row: Mapping[str, Any]) -> str:
    """Return the verdict of a row of the table `claims`, and whether the published number is far from ours.

    A direction or a range may be as expected where the number that the source gives is not.
    """
    said, expected = str(row["verdict"]), str(row["expected"])
    published, ours = (float("nan") if one is None else float(one) for one in (row["published"], row["ours"]))
    if said not in (REPRODUCED, CONFIRMED) or expected.startswith(WITHIN) or not isfinite(published + ours):
        return said
    if not published or abs(ours - published) <= FAR * abs(published):  # of nothing there is no quarter
        return said
    direction = expected.startswith((AT_LEAST, AT_MOST, ANY_CHANGE))
    return f"{said} (the {'direction' if direction else 'range'}, not the number)"


def verdict(claim: Claim, ours: "Interval") -> tuple[str, str]:
    """Return the verdict and why: reproduced or contradicted only where the whole interval is.

    What was measured without an interval decides nothing: a number that says how sure it is would be the weaker one.
    A formula has no other value, and a count is what it is. What the source does not measure is confirmed or refuted.
    """
    alone = claim.of_kind != ARITHMETIC and not ours.known and not ours.counted
    agrees, against = (REPRODUCED, CONTRADICTED) if claim.of_kind == MEASURED else (CONFIRMED, REFUTED)
    least, largest = claim.expected
    below, above = claim.against
    low, high = (min(ours.low, ours.middle), max(ours.high, ours.middle)) if ours.known else (ours.middle, ours.middle)
    if least <= low and high <= largest:
        return (UNDECIDED, f"{_no_interval(ours)}; by itself the number is as expected") if alone else (agrees, "")
    if (below is not None and high < below) or (above is not None and low > above):
        return (UNDECIDED, f"{_no_interval(ours)}; by itself the number is not") if alone else (against, "")
    if alone:
        return UNDECIDED, f"{_no_interval(ours)}; {NEITHER}"
    meets = low <= largest and least <= high
    return UNDECIDED, "the interval holds what is expected, and more" if meets and ours.known else NEITHER


def _no_interval(ours: "Interval") -> str:
    return f"no interval ({ours.basis}), so it is not known how sure the number is"
