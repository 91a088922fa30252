"""The page of all numbers of the sources agrees with the claims of the studies and with what was published."""

import pytest
from source_numbers import PAGE, ROOT, claims, lines, numbers

STUDIES = sorted(file.stem for file in (ROOT / "config" / "studies").glob("*.yaml"))
CLAIMED = {one: row for row in numbers() for one in row["claims"]}


def test_the_page_is_what_the_claims_and_the_published_tables_say():
    assert PAGE.read_text().splitlines() == list(lines()), "write it anew: python tests/support/source_numbers.py"


@pytest.mark.parametrize("study", STUDIES)
def test_every_number_that_is_claimed_is_a_number_of_the_list(study):
    """With its value: the number itself, or the ratio that it is claimed as."""
    for name, claim in claims(study).items():
        if claim.published is None or claim.of_kind == "own":
            continue
        row = CLAIMED[f"{study}/{name}"]
        assert claim.published == pytest.approx(float(row["claimed_as"] or row["number"]), rel=1e-9), name


def test_a_number_without_a_claim_says_why():
    for row in numbers():
        assert bool(row["claims"]) != bool(row["otherwise"]), row["quantity"]
        assert all(name in claims(study) for study, name in (one.split("/") for one in row["claims"]))
