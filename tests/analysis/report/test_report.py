"""The page of a study: whole, self-contained, and frank about what is missing."""

import base64
import gzip
import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from factory import Result, made_up, planned, realistic

from ddp_hpc.analysis import figures, tables
from ddp_hpc.analysis.report import page as report
from ddp_hpc.analysis.report import run_cards
from ddp_hpc.config import catalog

GRID = [
    {"exchange": "none", "world_size": 1, "batch_size": [16, 32, 64], "learning_rate": [0.1, 0.5]},
    {"exchange": "ring", "world_size": [2, 16], "batch_size": [16, 32, 64], "learning_rate": [0.1, 0.5]},
]
EVIL = "<script>alert('x')</script> & \"more\""


def provenance(torch="2.13.0", dirty=False, rank_hosts=("n1",)):
    ranks = [{"rank": rank, "host": host, "cpu": "A CPU", "gpu": None} for rank, host in enumerate(rank_hosts)]
    return {
        "software": {"torch": torch, "python": "3.11.2", "cuda": None},
        "source": {"commit": "abc123", "dirty": dirty},
        "command": ["mpiexec"],
        "ranks": ranks,
        "null_columns": {"mfu": "no GPU is used", "wait_s": "no common clock", "energy_j": "no GPU is used"},
    }


def train(spec):
    result = replace(realistic(spec), provenance=provenance())
    if (spec.world_size, spec.batch_size) == (2, 16):
        return Result("crashed", EVIL) if spec.learning_rate == 0.1 else Result("missing")
    if (spec.world_size, spec.batch_size) == (2, 32):
        return replace(result, provenance=provenance("2.12.1", dirty=True, rank_hosts=("n1", "n2")))
    return result


def page_of(study_runs, folder):
    for name in study_runs.study.table_names:
        tables.make(name, study_runs, folder / "tables")
    for name in study_runs.study.figure_names:
        figures.make(name, study_runs.study, folder / "tables", folder / "figures")
    file = report.make(study_runs, folder)
    assert file == folder / "report" / "index.html"
    return file.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    keys = {"grid": GRID, "budget": {"samples_seen": 12288}, "citation": "Cite <me>, 2026"}
    return page_of(made_up(folder, train, **keys), folder / "results" / "studies" / "made_up")


class Outline(HTMLParser):
    """The elements of a page, in order: tag and attributes."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def of(self, *tags):
        return [attributes for tag, attributes in self.elements if tag in tags]


def text_of(page):
    """Return what a reader sees, without scripts, styles and tags."""
    body = re.sub(r"(?s)<(script|style)\b.*?</\1>", "", page)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))


def test_the_page_needs_nothing_from_elsewhere(page):
    outline = Outline(page)
    sources = [attributes["src"] for attributes in outline.of("img", "script", "iframe") if "src" in attributes]

    fits = {"GENERAL", "OF_A_SEARCH"}  # it has one exchange, no GPUs, and names none
    drawn = [name for name in catalog.names("figure") if fits & catalog.constants("figure", name).keys()]
    assert len(sources) == len(drawn)
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    assert {attributes["href"][:5] for attributes in outline.of("link")} == {"data:"}


def test_the_page_can_be_read_by_ear(page):
    outline = Outline(page)
    headings = [int(tag[1]) for tag, _ in outline.elements if re.fullmatch(r"h[1-6]", tag)]

    assert outline.of("html")[0]["lang"] == "en"
    assert len(outline.of("main")) == len(outline.of("header")) == len(outline.of("h1")) == 1
    assert all(len(attributes["alt"]) > 40 for attributes in outline.of("img"))
    assert all(after - before <= 1 for before, after in itertools.pairwise(headings))
    ids = [attributes["id"] for _, attributes in outline.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    targets = {attributes["href"][1:] for attributes in outline.of("a") if attributes["href"].startswith("#")}
    assert targets <= set(ids)


def test_the_page_says_what_is_missing_and_why(page):
    text = text_of(page)

    assert "16 of 18 runs, 2 missing: " in text
    assert "2 planned runs have no result" in text
    assert "exchange ring, world_size 2, batch_size 16, learning_rate 0.5 not yet run" in text
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &#34;more&#34;" in page  # the reason, as text
    assert "<script>alert" not in page


def test_the_page_says_what_to_be_wary_of(page):
    text = text_of(page)

    assert "6 of 18 runs had more threads than cores" in text
    assert "Runs of different software.torch stand side by side: 2.13.0 in 14 runs; 2.12.1 in 2 runs." in text
    assert "Runs of different hosts stand side by side: n1 in 14 runs; n1, n2 in 2 runs." in text
    assert "Code with uncommitted changes made 2 of 16 runs" in text
    assert "In 1 of 3 groups no run may win" in text
    assert "the winner has the largest batch_size tried, 64" in text or "the least batch_size tried, 16" in text
    assert "software.python stand side by side" not in text


def test_the_page_names_winners_provenance_citation_and_how_to_rerun(page):
    text = text_of(page)

    assert "no winner" in text
    assert "6 oversubscribed" in text or "above threshold" in text
    assert "source.commit abc123 " in text
    assert "software.torch 2.13.0 (14 of 16 runs) 2.12.1 (2 of 16 runs)" in text
    assert "energy_j, mfu no GPU is used wait_s no common clock" in text
    assert "Cite &lt;me&gt;, 2026" in text
    assert "ddp-hpc run made_up" in text
    assert "samples_seen: 12288" in text


def test_a_bug_beside_the_training_is_shown_once_with_its_traceback_and_how_many_runs_have_it(tmp_path):
    bug = 'Traceback (most recent call last):\n  File "meter.py", line 7, in read\nArithmeticError: joules are <gone>\n'

    def metered(spec):
        facts = provenance() | ({"bugs": [bug, bug]} if spec.batch_size == 16 else {})
        return replace(realistic(spec), provenance=facts)

    ledger = made_up(tmp_path, metered, grid=GRID[:1], budget={"samples_seen": 6144}, tables=["runs"], figures=[])
    page = page_of(ledger, tmp_path / "study")

    assert page.count("File &#34;meter.py&#34;, line 7, in read") == 1
    assert "ArithmeticError: joules are &lt;gone&gt; (2 of 6 runs)" in text_of(page)
    assert "bugs" not in re.findall(r"<dt>(.*?)</dt>", page)


def test_a_page_of_nothing_is_a_page(tmp_path):
    page = page_of(planned(tmp_path), tmp_path / "study")

    assert "0 of 36 runs, 36 missing: 36 not yet run" in text_of(page)


def test_a_page_without_its_tables_and_figures_says_so(tmp_path):
    page = report.make(planned(tmp_path), tmp_path / "study").read_text()

    assert "The figure speedup has not been drawn." in text_of(page)
    assert "The table of runs has not been made." in text_of(page)


def test_tables_older_than_the_plan_make_a_page_in_which_no_run_has_the_number_of_another(tmp_path):
    keys = {"budget": {"samples_seen": 6144}, "tables": ["runs"], "figures": []}
    folder = tmp_path / "study"
    before = made_up(tmp_path, grid=[GRID[0] | {"batch_size": [32, 64]}], **keys)
    tables.make("runs", before, folder / "tables")
    page = report.make(planned(tmp_path, grid=[GRID[0] | {"batch_size": [16, 32]}], **keys), folder).read_text()
    cards = json.loads(re.search(r'(?s)id="run-cards">(.*?)</script>', page)[1])["runs"]

    assert [card["point"] for card in cards] == [
        f"batch_size {batch}, learning_rate {rate}" for batch in (16, 32) for rate in (0.1, 0.5)
    ]
    assert [card["status"] for card in cards] == ["not yet run", "not yet run", "ok", "ok"]
    rows = json.loads(json.loads(re.search(r'"data_json": ("(?:[^"\\]|\\.)*")', page)[1]))
    assert [row[0] for row in rows] == [1 + 2, 2 + 2, 0, 0]


def test_a_study_may_ask_for_fewer_tables_and_figures(tmp_path):
    study_runs = made_up(
        tmp_path, grid=GRID[:1], budget={"samples_seen": 6144}, tables=["scaling"], figures=["speedup"]
    )
    outline = Outline(page_of(study_runs, tmp_path / "study"))

    assert len(outline.of("img")) == 1
    assert "winners" not in {attributes.get("id") for attributes in outline.of("section")}


def test_the_same_results_make_the_same_page(tmp_path, page):
    study_runs = made_up(tmp_path, train, grid=GRID, budget={"samples_seen": 12288}, citation="Cite <me>, 2026")

    assert page_of(study_runs, tmp_path / "results" / "studies" / "made_up") == page


def test_the_page_says_whom_to_cite_and_how_its_data_may_be_used(tmp_path):
    said = {"creators": [{"name": "Carberry, Josiah"}, {"name": "A Group"}], "licence": "CC-BY-4.0"}
    said |= {"doi": "10.5555/made.up", "notes": "Nothing else ran."}
    keys = {"grid": GRID[:1], "tables": ["runs"], "figures": [], "description": "How a ring scales"}
    page = page_of(made_up(tmp_path, train, publication=said, **keys), tmp_path / "study")
    text = " ".join(text_of(page).split())

    assert "Cite the results as: Carberry, Josiah; A Group: How a ring scales, https://doi.org/10.5555/made.up" in text
    assert "by the licence CC-BY-4.0. Nothing else ran." in text
    assert "https://doi.org/10.5555/made.up" in [link.get("href") for link in Outline(page).of("a")]


def test_not_a_number_is_no_number_of_the_page(tmp_path):
    """A diverged run's last loss is nan; null is blank in the table of runs, never 0."""

    def diverged(spec):
        return Result("diverged", "loss is nan", (1.0, 2.0), (2.3, np.nan))

    page = page_of(made_up(tmp_path, diverged, grid=GRID[:1], tables=["runs"], figures=[]), tmp_path / "study")

    assert "diverged" in text_of(page)


def test_every_column_of_the_table_of_runs_is_explained(tmp_path):
    folder = tmp_path / "study"
    page = page_of(made_up(tmp_path, grid=GRID[:1], tables=["runs"], figures=[]), folder)
    frame = pd.read_parquet(folder / "tables" / "runs.parquet")
    explained = dict(re.findall(r"<td><code>(\w+)</code></td><td>[^<]*</td><td>([^<]*)</td>", page))

    assert list(explained) == list(frame)
    assert all(explained.values())


def packed(text):
    return gzip.decompress(base64.b64decode(text)).decode()


def test_what_is_large_lies_in_the_page_compressed_and_long_tables_say_what_they_leave_out(tmp_path, monkeypatch):
    study_runs, folder = made_up(tmp_path, grid=GRID[:1], budget={"samples_seen": 6144}), tmp_path / "study"
    plain = page_of(study_runs, folder)
    monkeypatch.setattr(report, "PACKED_FROM", 1000)
    monkeypatch.setattr(report, "MOST_ROWS", 2)
    page = report.make(study_runs, folder).read_text()
    figure = (folder / "figures" / "loss_curves.svg").read_text()

    assert figure in [packed(text) for text in re.findall(r'<img data-packed="([^"]+)"', page)]
    cards = packed(re.search(r'(?s)id="run-cards" data-packed>(.*?)</script>', page)[1])
    assert json.loads(cards) == json.loads(re.search(r'(?s)id="run-cards">(.*?)</script>', plain)[1])
    assert "The first 2 of " not in plain
    assert len(re.findall(r"<tr>", re.search(r'(?s)<table id="phases-table".*?</table>', page)[0])) == 1 + 2
    assert "The first 2 of 3 rows; all are in the files above." in page


def test_a_page_of_many_runs_has_fewer_points_of_each_curve(monkeypatch):
    table = pd.DataFrame({"run": ["a"] * 300 + ["b"] * 5, "t_s": np.arange(305.0), "loss": np.nan})
    few = run_cards._curves(table)
    monkeypatch.setattr(run_cards, "MOST_POINTS", 100)
    fewer = run_cards._curves(table)

    assert [len(few[run][0]) for run in ("a", "b")] == [80, 5]
    assert [len(fewer[run][0]) for run in ("a", "b")] == [50, 5]
    assert fewer["a"][0][0] == 0
    assert fewer["a"][0][-1] == 299
    assert set(fewer["b"][1]) == {None}
