"""The page shows each claim with its source, both numbers and the verdict, as a word and a sign."""

import re
from html.parser import HTMLParser

import pytest
from factory import made_up

from ddp_hpc.analysis import tables
from ddp_hpc.analysis.report import page as report
from ddp_hpc.config.claims import Claim
from ddp_hpc.workflow import driver

EVIL = "<b>faster</b> & more"
CLAIM = {
    "id": "half",
    "statement": EVIL,
    "source": "X <2017>",
    "published": 1.75,
    "unit": "s",
    "ours": {"value": {"table": "runs", "column": "train_s", "where": {"exchange": "ring", "world_size": 2}}},
    "expect": {"at_least": 0},
    "applies_when": ["within_cores", "quiet"],
}
GRID = [{"exchange": "ring", "world_size": [1, 2], "batch_size": 16, "learning_rate": 0.1}]


class Cells(HTMLParser):
    """The text of each cell of the table of claims, row by row."""

    def __init__(self, page):
        super().__init__()
        self.rows = []
        self.feed(re.search(r'(?s)<table class="claims"[^>]*>.*?</table>', page)[0])

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip("\n")


def made(folder, *claims):
    study_runs = made_up(folder, grid=GRID, repeats=3, claims=list(claims))
    study = folder / "results" / "studies" / "made_up"
    for name in ("runs", "claims"):
        tables.make(name, study_runs, study / "tables")
    return study, report.make(study_runs, study).read_text(encoding="utf-8")


def test_a_statement_is_one_line_however_yaml_has_it():
    claim = Claim.model_validate(CLAIM | {"statement": "training is\n  faster\n", "unit": " s\n"})

    assert (claim.statement, claim.unit) == ("training is faster", "s")
    with pytest.raises(ValueError, match="at least 1 character"):
        Claim.model_validate(CLAIM | {"statement": " \n"})


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    never = CLAIM["ours"]["value"] | {"where": {"exchange": "ring", "world_size": 40}}
    others = [
        CLAIM | {"id": "other", "expect": {"at_least": 1e6}},
        CLAIM | {"id": "never", "ours": {"value": never}, "published": None},
        CLAIM | {"id": "mine", "kind": "own"},
    ]
    return made(tmp_path_factory.mktemp("claims"), CLAIM, *others)


def test_both_numbers_stand_side_by_side_with_source_interval_and_verdict(study):
    _, page = study
    (head, first, second, third, mine) = Cells(page).rows

    assert head == ["verdict", "statement", "published", "ours", "expected", "why"]
    assert first[0] == "\u2713 reproduced (the direction, not the number)"
    assert [part in first[1] for part in (EVIL, "X <2017>", "half")] == [True] * 3
    assert first[2] == "1.75 s"
    assert re.fullmatch(r"[\d.]+ s[\d.]+ to [\d.]+ \(3 runs\)", first[3])
    assert second[0] == "\u2717 contradicted"
    assert mine[0] == "\u2713 confirmed (the direction, not the number)expectations of our own"
    assert third[0] == "\u2013 not testable here"
    assert third[2:] == ["in words only", "", "at least 0", "no row of the table runs has exchange ring, world_size 40"]


def test_the_section_counts_the_verdicts_and_comes_before_the_figures(study):
    _, page = study

    assert "Claims: 1 reproduced, 1 contradicted, 1 not testable here; expectations of our own: 1 confirmed." in page
    places = [page.index(f'<h2 id="{name}-title">') for name in ("coverage", "claims", "figures")]
    assert places == sorted(places)
    assert '<a href="#claims">' in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_a_study_without_claims_has_no_such_section(tmp_path):
    _, page = made(tmp_path)

    assert "claims" not in re.sub(r"(?s)<(script|style)\b.*?</\1>", "", page)


def test_the_terminal_shows_the_same(study, capsys):
    folder, _ = study
    lines = tables.lines("claims", folder / "tables" / "claims.parquet")
    driver._say_verdicts(folder / "tables" / "claims.parquet")

    assert lines[0] == f"\u2713 reproduced: half: {EVIL} [X <2017>]"
    assert lines[1].startswith("    ours ")
    assert lines[1].endswith(", 3 runs); published 1.75 s; expected at least 0")
    assert any("confirmed (expectations of our own): mine" in line for line in lines)
    summary = "claims: 1 reproduced, 1 contradicted, 1 not testable here; expectations of our own: 1 confirmed"
    assert capsys.readouterr().out.strip() == lines[-1] == summary
    assert tables.lines("runs", folder / "tables" / "runs.parquet") == []
