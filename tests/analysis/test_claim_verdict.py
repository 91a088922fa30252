"""No verdict says more than number and interval do."""

import math

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ddp_hpc.analysis.claim_verdict import CONTRADICTED, REPRODUCED, UNDECIDED, summary, verdict
from ddp_hpc.analysis.intervals import Interval
from ddp_hpc.config.claims import Claim

NUMBERS = st.floats(-100, 100).map(lambda number: round(number, 3))
PREDICTED = {"exchange": "ring", "bytes": 1, "world_size": 2, "quantity": "bytes_sent"}


@st.composite
def claims(draw):
    """A claim with any expectation, with and without what contradicts it."""
    low, high = sorted((draw(NUMBERS), draw(NUMBERS)))
    assume(low < high)
    published = draw(NUMBERS.filter(bool))
    expect = draw(st.sampled_from([{"at_least": low}, {"at_most": high}, {"between": [low, high]}, {"within": 0.1}]))
    said = {"id": "a", "statement": "s", "source": "x", "ours": {"predicted": PREDICTED}, "expect": expect}
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
    assert (found == REPRODUCED) == all(agrees(claim, number) for number in numbers_held)
    assert (found == CONTRADICTED) == all(speaks_against(claim, number) for number in numbers_held)
    assert found != UNDECIDED or why
    assert ours.known or "our number alone decides" in why


@settings(deadline=None)
@given(claims(), numbers())
def test_a_number_alone_is_undecided_only_between_what_is_expected_and_what_contradicts(claim, ours):
    found, _ = verdict(claim, Interval(ours.middle, math.nan, math.nan, "1 run"))

    expected = {(True, False): REPRODUCED, (False, True): CONTRADICTED, (False, False): UNDECIDED}
    assert found == expected[agrees(claim, ours.middle), speaks_against(claim, ours.middle)]


@settings(deadline=None)
@given(claims(), numbers(), st.floats(0, 50), st.floats(0, 50))
def test_a_wider_interval_decides_no_more(claim, ours, below, above):
    assume(ours.known)
    wider = Interval(ours.middle, ours.low - below, ours.high + above, ours.basis)

    assert verdict(claim, wider)[0] in (verdict(claim, ours)[0], UNDECIDED)


def test_a_table_that_gives_an_interval_beside_its_number_is_not_believed_the_less():
    """An interval that does not hold the number is stretched to it."""
    claim = Claim.model_validate(
        {"id": "a", "statement": "s", "source": "x", "ours": {"predicted": PREDICTED}, "expect": {"at_least": 1}}
    )

    assert verdict(claim, Interval(0.5, 1.5, 2.0, "its table"))[0] == UNDECIDED


def test_the_summary_counts_in_the_order_of_the_verdicts():
    assert summary([UNDECIDED, CONTRADICTED, REPRODUCED, UNDECIDED]) == (
        "claims: 1 reproduced, 1 contradicted, 2 undecided"
    )
    assert summary([]) == "claims: none"
