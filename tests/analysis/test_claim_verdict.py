"""No verdict says more than number and interval do."""

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ddp_hpc.analysis.claim_verdict import (
    CONFIRMED,
    CONTRADICTED,
    REFUTED,
    REPRODUCED,
    UNDECIDED,
    summary,
    verdict,
    verdict_in_words,
)
from ddp_hpc.analysis.intervals import Interval
from ddp_hpc.config.claims import Claim

NUMBERS = st.floats(-100, 100).map(lambda number: round(number, 3))
MEASURED = {"value": {"table": "runs", "column": "min_loss"}}
PREDICTED = {"exchange": "ring", "bytes": 1, "world_size": 2, "quantity": "bytes_sent"}


@st.composite
def claims(draw):
    """A claim with any expectation, with and without what contradicts it."""
    low, high = sorted((draw(NUMBERS), draw(NUMBERS)))
    assume(low < high)
    published = draw(NUMBERS.filter(bool))
    expect = draw(st.sampled_from([{"at_least": low}, {"at_most": high}, {"between": [low, high]}, {"within": 0.1}]))
    said = {"id": "a", "statement": "s", "source": "x", "ours": MEASURED, "expect": expect}
    plain = Claim.model_validate(said | {"published": published})
    least, largest = plain.expected
    against = {}
    if math.isfinite(least) and draw(st.booleans()):
        against["below"] = least - draw(st.floats(0, 10))
    if math.isfinite(largest) and draw(st.booleans()):
        against["above"] = largest + draw(st.floats(0, 10))
    return Claim.model_validate(said | {"published": published} | ({"contradicted": against} if against else {}))


@st.composite
def numbers(draw):
    """Our number, with an interval that holds it, or none."""
    low, middle, high = sorted(draw(NUMBERS) for _ in range(3))
    return draw(st.sampled_from([Interval(middle, low, high, "3 runs"), Interval(middle, math.nan, math.nan, "1 run")]))


def agrees(claim, number):
    """The definition, written once more: from the keys of the study."""
    expect = claim.expect
    if expect.within is not None:
        return abs(number - claim.published) <= expect.within * abs(claim.published) * (1 + 1e-12)
    if expect.between:
        return expect.between[0] <= number <= expect.between[1]
    return number >= expect.at_least if expect.at_least is not None else number <= expect.at_most


def speaks_against(claim, number):
    if claim.contradicted is None:
        return not agrees(claim, number)
    below, above = claim.contradicted.below, claim.contradicted.above
    return (below is not None and number < below) or (above is not None and number > above)


def points(claim, ours):
    """The ends of the interval, what lies between, and of that where agreement begins and ends; or the number alone."""
    if not ours.known:
        return [ours.middle]
    bounds = [bound for bound in claim.expected if ours.low <= bound <= ours.high]
    between = (
        ours.low + share / 16 * (ours.high - ours.low) for share in range(16)
    )  # the end itself may round beyond it
    return [*(min(number, ours.high) for number in between), ours.high, *bounds]


@settings(deadline=None)
@given(claims(), numbers())
def test_reproduced_and_contradicted_hold_for_every_number_of_the_interval(claim, ours):
    found, why = verdict(claim, ours)

    numbers_held = points(claim, ours)
    assert (found == REPRODUCED) == (ours.known and all(agrees(claim, number) for number in numbers_held))
    assert (found == CONTRADICTED) == (ours.known and all(speaks_against(claim, number) for number in numbers_held))
    assert found != UNDECIDED or why


@settings(deadline=None)
@given(claims(), numbers())
def test_a_number_alone_decides_nothing_and_says_where_it_lies(claim, ours):
    """With an interval it could be undecided; without one it would be the surer for telling less."""
    found, why = verdict(claim, Interval(ours.middle, math.nan, math.nan, "1 run"))

    said = {
        (True, False): "by itself the number is as expected",
        (False, True): "by itself the number is not",
        (False, False): "neither expected nor a contradiction",
    }
    assert found == UNDECIDED
    assert why.startswith("no interval (1 run)")
    assert why.endswith(said[agrees(claim, ours.middle), speaks_against(claim, ours.middle)])


@settings(deadline=None)
@given(claims(), numbers(), st.sampled_from(["own", "arithmetic"]))
def test_what_the_source_did_not_measure_is_never_reproduced(claim, ours, kind):
    """A formula has no other value, so its number decides by itself."""
    ours = ours if kind == "own" else Interval(ours.middle, math.nan, math.nan, "computed")
    computed = {"predicted": PREDICTED} if kind == "arithmetic" else MEASURED
    said = claim.model_dump(exclude_defaults=True) | {"ours": computed, "kind": kind}
    found, _ = verdict(Claim.model_validate(said), ours)

    same = Interval(ours.middle, ours.middle, ours.middle, "2 runs") if kind == "arithmetic" else ours
    names = {REPRODUCED: CONFIRMED, CONTRADICTED: REFUTED, UNDECIDED: UNDECIDED}
    assert found == names[verdict(claim, same)[0]]


@settings(deadline=None)
@given(claims(), numbers(), st.floats(0, 50), st.floats(0, 50))
def test_a_wider_interval_decides_no_more(claim, ours, below, above):
    assume(ours.known)
    wider = Interval(ours.middle, ours.low - below, ours.high + above, ours.basis)

    assert verdict(claim, wider)[0] in (verdict(claim, ours)[0], UNDECIDED)


def test_a_table_that_gives_an_interval_beside_its_number_is_not_believed_the_less():
    """An interval that does not hold the number is stretched to it."""
    claim = Claim.model_validate(
        {"id": "a", "statement": "s", "source": "x", "ours": MEASURED, "expect": {"at_least": 1}}
    )

    assert verdict(claim, Interval(0.5, 1.5, 2.0, "its table"))[0] == UNDECIDED


def test_the_summary_counts_kinds_apart_in_the_order_of_the_verdicts():
    claims = [("measured", one) for one in (UNDECIDED, CONTRADICTED, REPRODUCED, UNDECIDED)]

    assert summary([("own", CONFIRMED), *claims, ("arithmetic", CONFIRMED)]) == (
        "claims: 1 reproduced, 1 contradicted, 2 undecided; arithmetic: 1 confirmed; "
        "expectations of our own: 1 confirmed"
    )
    assert summary([]) == "claims: none"


@pytest.mark.parametrize(
    ("published", "ours", "expect", "words"),
    [
        (28.3, 2.26, {"at_least": 1}, "reproduced (the direction, not the number)"),
        (0.2, 0.9, {"at_most": 1}, "reproduced (the direction, not the number)"),
        (3.0, 1.5, {"between": [1, 2]}, "reproduced (the range, not the number)"),
        (0.0, 0.0002, {"between": [-0.01, 0.01]}, "reproduced"),  # of nothing there is no quarter
        (2.0, 2.5, {"at_least": 1}, "reproduced"),
        (2.0, 2.6, {"within": 0.5}, "reproduced"),
        (None, 2.26, {"at_least": 1}, "reproduced"),
        (28.3, 0.5, {"at_least": 1}, "contradicted"),
    ],
)
def test_a_direction_is_not_told_as_the_number_of_the_source(published, ours, expect, words):
    said = {"id": "a", "statement": "s", "source": "x", "ours": MEASURED, "published": published}
    claim = Claim.model_validate(said | {"expect": expect})
    found, _ = verdict(claim, Interval(ours, ours, ours, "3 runs"))

    row = {"verdict": found, "expected": claim.in_words, "published": published, "ours": ours}
    assert verdict_in_words(row) == words
    assert verdict_in_words(row | {"verdict": UNDECIDED}) == UNDECIDED


def test_any_change_that_way_is_a_direction_too():
    trend = {"trend": {"table": "runs", "column": "min_loss", "over": "world_size", "as": "increasing"}}
    said = {"id": "a", "statement": "s", "source": "x", "ours": trend, "published": 0.1}
    row = {"expected": Claim.model_validate(said).in_words, "published": 0.1, "ours": 2.0, "verdict": CONFIRMED}
    assert verdict_in_words(row) == "confirmed (the direction, not the number)"
