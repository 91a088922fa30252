"""The verdict on a claim, from the measured number, its interval, and what agrees with the source or contradicts it."""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ddp_hpc.config.claims import Claim

if TYPE_CHECKING:  # a quick start
    from ddp_hpc.analysis.intervals import Interval

REPRODUCED, CONTRADICTED, UNDECIDED, NOT_TESTABLE = "reproduced", "contradicted", "undecided", "not testable here"
NEITHER = "neither expected nor a contradiction"
SIGNS = {REPRODUCED: "\u2713", CONTRADICTED: "\u2717", UNDECIDED: "?", NOT_TESTABLE: "\u2013"}  # in the order of lists


def summary(verdicts: Iterable[str]) -> str:
    """Return e.g. `claims: 5 reproduced, 1 contradicted`."""
    counts = Counter(verdicts)
    return f"claims: {', '.join(f'{counts[verdict]} {verdict}' for verdict in SIGNS if counts[verdict]) or 'none'}"


def verdict(claim: Claim, ours: "Interval") -> tuple[str, str]:
    """Return the verdict and why: reproduced or contradicted only where the whole interval is.

    Without an interval our number alone decides, and the reason says so.
    """
    least, largest = claim.expected
    below, above = claim.against
    low, high = (min(ours.low, ours.middle), max(ours.high, ours.middle)) if ours.known else (ours.middle, ours.middle)
    alone = "" if ours.known else f"no interval ({ours.basis}): our number alone decides"
    if least <= low and high <= largest:
        return REPRODUCED, alone
    if (below is not None and high < below) or (above is not None and low > above):
        return CONTRADICTED, alone
    meets = low <= largest and least <= high
    why = "the interval holds what is expected, and more" if meets and ours.known else NEITHER
    return UNDECIDED, "; ".join(filter(None, (alone, why)))
