"""The forms of a table, what stands around it, and what happens when records are broken or missing."""

import os
import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from factory import Result, made_up, planned, realistic
from pyarrow import csv

from ddp_hpc.analysis import tables
from ddp_hpc.analysis.formatting import Readable, readable
from ddp_hpc.analysis.tables import curves, evaluations, runs
from ddp_hpc.analysis.tables._formats import escape, latex, markdown
from ddp_hpc.analysis.tables._steps import thinned
from ddp_hpc.config import catalog
from ddp_hpc.runs import records

SMALL = [{"exchange": "none", "world_size": 1, "batch_size": [16, 64], "learning_rate": 0.5}]
EVIL = '50 % of $x_1 & #2 {a} \\b ~c^d <e> [f] "g" | h\nnext ü \x1b[31m\t† 漢'


def pathological(spec):
    return Result("crashed", EVIL) if spec.batch_size == 16 else realistic(spec)


LONG = ["curves", "evaluations", "noise_curves"]
READ = [name for name in catalog.names("table") if name not in LONG]


@pytest.mark.parametrize("name", LONG)
def test_what_is_for_programs_has_two_forms(tmp_path, name):
    tables.make(name, made_up(tmp_path, grid=SMALL), tmp_path / "tables")

    assert sorted(os.listdir(tmp_path / "tables")) == [f"{name}.csv", f"{name}.parquet"]


def test_every_evaluation_of_every_run_is_a_row(tmp_path):
    study_runs = made_up(tmp_path, grid=SMALL)
    for number, run in enumerate(study_runs.planned):
        last = 10 * number + 20
        columns = {"step": [10, last], "t_s": [0.5, 1.5], "samples_seen": [160, 320], "metric": [0.3, 0.9 + number]}
        records.write("evaluations", columns | {"loss": [1.0, None]}, study_runs.store.file(run.run, "evaluations"))
    frame = evaluations.build(study_runs)

    assert list(frame["batch_size"]) == [16, 16, 64, 64]
    assert list(frame["step"]) == [10, 20, 10, 30]
    assert list(frame["test_metric"]) == [0.3, 0.9, 0.3, 1.9]
    assert list(frame["test_loss"].isna()) == [False, True, False, True]
    assert list(frame["epoch"]) == pytest.approx([160 / 1437, 320 / 1437] * 2)


def test_evaluations_say_after_how_many_epochs_and_which_is_the_last(tmp_path):
    """Of 320 samples, 160 are half an epoch; the runs of batch 16 take 1600 steps, those of batch 64 400."""
    knowing = lambda spec: replace(realistic(spec), provenance={"train_samples": 320})
    study_runs = made_up(tmp_path, knowing, grid=SMALL)
    for run in study_runs.planned:
        columns = {"step": [10, 400], "samples_seen": [160, 640], "metric": [0.3, 0.9], "loss": [1.0, 0.5]}
        records.write("evaluations", columns, study_runs.store.file(run.run, "evaluations"))
    frame = evaluations.build(study_runs)

    assert list(frame["epoch"]) == [0.5, 2.0, 0.5, 2.0]
    assert list(frame["last"]) == [False, False, False, True]


def test_runs_that_were_not_evaluated_have_no_row(tmp_path):
    assert evaluations.build(made_up(tmp_path, grid=SMALL)).empty


@pytest.mark.parametrize("name", READ)
def test_a_table_has_four_forms_with_coverage_and_rules(tmp_path, name):
    study_runs = made_up(tmp_path, pathological, grid=SMALL)
    file = tables.make(name, study_runs, tmp_path / "tables")

    frame = pd.read_parquet(file)
    assert file == tmp_path / "tables" / f"{name}.parquet"
    assert sorted(os.listdir(tmp_path / "tables")) == [f"{name}.{form}" for form in ("csv", "md", "parquet", "tex")]
    assert len(pd.read_csv(file.with_suffix(".csv"))) == len(frame)
    metadata = records.read_metadata(file)
    assert metadata["coverage"] == "1 of 2 runs, 1 missing: 1 crashed"
    assert metadata["rules"]["loss_threshold"] == 0.5
    for form in (".md", ".tex"):
        assert "1 of 2 runs, 1 missing: 1 crashed" in file.with_suffix(form).read_text()


def test_the_same_records_make_the_same_bytes(tmp_path):
    study_runs = made_up(tmp_path, grid=SMALL)
    files = [tables.make("winners", study_runs, tmp_path / folder) for folder in ("a", "b")]

    for form in (".parquet", ".csv", ".md", ".tex"):
        one, other = (file.with_suffix(form).read_bytes() for file in files)
        assert one == other


def test_a_run_with_an_unreadable_record_is_a_row_with_the_reason(tmp_path):
    study_runs = made_up(tmp_path, grid=SMALL)
    broken = study_runs.planned[1].run
    study_runs.store.file(broken).write_bytes(b"PAR1 half a file")

    row = pd.read_parquet(tables.make("runs", study_runs, tmp_path / "tables")).set_index("run").loc[broken]
    assert row["status"] == "missing"
    assert f"{study_runs.store.file(broken)} is damaged" in row["reason"]


def test_a_run_with_unreadable_steps_takes_no_part(tmp_path):
    study_runs = made_up(tmp_path, grid=SMALL)
    broken, whole = (planned.run for planned in study_runs.planned)
    study_runs.store.file(broken, "steps").write_bytes(b"")

    curves = pd.read_parquet(tables.make("curves", study_runs, tmp_path / "tables"))
    assert set(curves["run"]) == {whole}


def test_a_column_that_is_null_in_one_run_keeps_its_type(tmp_path):
    """A run without a meter beside one with: the merged column is a number with a null."""

    def train(spec):
        result = realistic(spec)
        energy = None if spec.batch_size == 16 else 12.5
        return Result(t_s=result.t_s, loss=result.loss, columns={"energy_j": energy})

    frame = runs.build(made_up(tmp_path, train, grid=SMALL))

    assert frame["energy_j"].dtype == np.float64
    assert list(frame["energy_j"].isna()) == [True, False]


@pytest.mark.parametrize("name", catalog.names("table"))
def test_no_type_depends_on_what_is_there(tmp_path, name):
    """Nothing has run, or all: the columns and their types are the same."""
    nothing = pq.read_schema(tables.make(name, planned(tmp_path / "a", grid=SMALL), tmp_path / "nothing"))
    everything = pq.read_schema(tables.make(name, made_up(tmp_path / "b", grid=SMALL), tmp_path / "everything"))

    assert nothing.remove_metadata() == everything.remove_metadata()


def test_a_curve_is_thinned_without_its_warm_up_ends_or_minimum(tmp_path):
    def train(spec):
        loss = np.linspace(2.0, 1.0, 1600)
        loss[1234] = 0.001
        return Result(t_s=tuple(np.linspace(0.1, 9.0, 1600)), loss=tuple(loss))

    frame = curves.build(made_up(tmp_path, train, grid=[SMALL[0] | {"batch_size": 16}]))

    assert len(frame) <= 400
    assert (frame["step"].min(), frame["step"].max()) == (1, 1600)
    assert frame["loss"].min() == 0.001
    assert frame["t_s"].is_monotonic_increasing


def test_of_many_runs_each_curve_has_fewer_points(tmp_path, monkeypatch):
    study_runs = made_up(tmp_path, grid=SMALL)
    counts = curves.build(study_runs)["run"].value_counts()
    monkeypatch.setattr(curves, "MOST_IN_ALL", 60 * len(counts))
    fewer = curves.build(study_runs)["run"].value_counts()

    assert counts.max() > 60
    assert fewer.max() == 60
    assert set(fewer.index) == set(counts.index)


@pytest.mark.parametrize("loss", [[], [np.nan], [1.0], [np.nan] * 500, [1.0] * 400, list(range(401))])
def test_thinning_takes_any_curve(loss):
    places = thinned(np.array(loss, dtype=float), 400)

    assert min(len(loss), 399) <= len(places) <= min(len(loss), 400)
    assert len(loss) == 0 or (places[0], places[-1]) == (0, len(loss) - 1)


def test_markdown_takes_no_text_for_html_or_the_end_of_a_cell():
    shown = Readable(pd.DataFrame({"a": ["<script>&amp;\\|b\r\nc"]}), [False], [])
    text = markdown(shown, "Caption", ["source <b>"])

    assert "| &lt;script>&amp;amp;\\\\\\|b c |" in text.splitlines()
    assert "source &lt;b>" in text


def test_latex_prints_every_letter_or_says_what_it_needs():
    assert escape("1\u20132 \u2264 \u201cx\u201d e\u0301") == r"1--2 \ensuremath{\le} ``x'' " + "\u00e9"
    assert "\u6f22" in escape("\u6f22")
    assert "[U+6F22]" in escape("\u6f22")
    shown = Readable(pd.DataFrame({"a": ["\u6f22"]}), [False], [])
    assert "% XeLaTeX or LuaLaTeX" in latex(shown, "A", [], "b")
    assert "XeLaTeX" not in latex(Readable(pd.DataFrame({"a": ["\u00e9 \u2264"]}), [False], []), "A", [], "b")


def test_latex_breaks_sentences_into_lines():
    frame = pd.DataFrame({"a": ["word " * 100], "b": ["short"], "c": ["1"]})

    assert r"\begin{tabular}{p{0.25\linewidth}lr}" in latex(Readable(frame, [False, False, True], []), "A", [], "b")


def test_markdown_keeps_a_row_a_row():
    text = markdown(Readable(pd.DataFrame({"a": ["x|y\nz"]}), [False], []), "Caption", ["Note."])

    assert "| x\\|y z |" in text.splitlines()


def compiled(folder, table, options=""):
    """Return what pdflatex says of an article that holds a table, and nothing else."""
    packages = "\\usepackage[T1]{fontenc}\\usepackage{booktabs}"
    document = f"\\documentclass[{options}]{{article}}{packages}\\begin{{document}}\n{table}\\end{{document}}\n"
    (folder / "x.tex").write_text(document)
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "x.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout


LATEX = pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on this machine")


@LATEX
@pytest.mark.parametrize(("rows", "options"), [(2, ""), (120, "twocolumn")])
def test_latex_compiles_whatever_is_in_the_cells(tmp_path, rows, options):
    frame = pd.DataFrame({"a_b": [EVIL] * rows, "c": ["[x]"] * rows})
    table = latex(Readable(frame, [False, True], []), "50 % & more_of it", [f"Coverage: {EVIL}"], "tab:x")
    compiled(tmp_path, table, options)


@LATEX
@pytest.mark.parametrize("options", ["", "twocolumn"])
def test_latex_tables_fit_a_line_of_an_article(tmp_path, options):
    study_runs = made_up(tmp_path)
    files = [tables.make(name, study_runs, tmp_path / "tables").with_suffix(".tex") for name in READ]
    wide = pd.DataFrame(
        {f"quantity {n}{end} (samples/s)": [1234.5] * 60 for n in range(9) for end in ("", " low", " high")}
    )
    shown = Readable(
        pd.DataFrame({"exchange": ["torch_ddp (bucket_mb 25)"] * 60}).join(wide.map(str)), [False] + [True] * 27, []
    )
    said = compiled(tmp_path, "\n".join([*(file.read_text() for file in files), latex(shown, "A", [], "b")]), options)

    assert "Overfull" not in said, said


@pytest.mark.parametrize(
    ("columns", "letters", "rows", "stands"),
    [
        (3, 12, 5, "table/small"),
        (3, 14, 5, "table/footnotesize"),
        (4, 12, 5, "table*/small"),
        (3, 12, 31, "table/footnotesize"),
    ],
)
def test_latex_tables_stand_in_a_column_where_they_fit(columns, letters, rows, stands):
    """A letter is 4.5 pt wide, 5.1 pt in small; a column of a page has 229 pt, a line of one column 345 pt."""
    frame = pd.DataFrame({f"c{n}": ["x" * letters] * rows for n in range(columns)})
    text = latex(Readable(frame, [False] * columns, []), "A", [], "b")
    table, size = stands.split("/")

    assert rf"\begin{{{table}}}" in text
    assert rf"\centering\{size}\setlength" in text
    assert text.count(rf"\end{{{table}}}") == 1


def test_latex_leaves_out_ends_of_intervals_first_and_tells_the_author_not_the_reader():
    names = [
        "exchange",
        *(f"{n}{end} (s)" for n in ("first", "second", "third", "fourth") for end in ("", " low", " high")),
    ]
    frame = pd.DataFrame({name: ["1234.5678"] for name in names})
    text = latex(Readable(frame, [True] * 13, ["Note."], ("Left out here: internal_name.",)), "A", ["Note."], "b")

    kept = [name.replace(" \\\\", " ") for name in re.findall(r"shortstack\[r\]\{(.*?)\}", text)]
    assert set(kept) >= {"exchange", "first (s)", "second (s)", "third (s)", "fourth (s)"}
    gone = [name for name in names if name not in kept]
    assert "second high (s)" in gone
    told = [line for line in text.splitlines() if not line.startswith("%")]
    assert not [line for line in told if "internal" in line or "CSV" in line]
    assert f"% No room on a line, but in the Parquet and CSV files: {', '.join(gone)}.\n" in text
    assert "% Left out here: internal_name." in text


def test_a_table_holds_the_rules_of_its_study(tmp_path):
    study_runs = made_up(tmp_path, grid=SMALL)
    file = tables.make("areas", study_runs, tmp_path / "tables")

    rules = records.read_metadata(file)["rules"]
    assert rules == study_runs.study.rules.model_dump(mode="json")
    assert rules["loss_threshold"] == 0.5


def test_readers_get_headings_with_units_numbers_to_the_right_and_fewer_columns(tmp_path):
    study_runs = made_up(tmp_path)
    lines = tables.make("winners", study_runs, tmp_path / "tables").with_suffix(".md").read_text().splitlines()
    head, rule = lines[2].split(" | "), lines[3].split(" | ")

    assert rule[head.index("standard error (loss x s)")] == "---:"
    assert rule[head.index("winner")] == "---"
    assert not {"batch size", "learning rate", "winner runs"} & set(head)
    (left_out,) = [line for line in lines if line.startswith("Left out here")]
    assert "winner_runs" in left_out


@pytest.mark.parametrize(
    ("repeats", "said", "not_said"),
    [(1, "as far as time goes", "Gupta"), (2, "Two repeats are a weak test", "as far as"), (3, "Gupta", "weak test")],
)
def test_notes_say_how_points_are_told_apart_where_that_applies(tmp_path, repeats, said, not_said):
    study_runs = planned(tmp_path, grid=SMALL, repeats=repeats)
    text = tables.make("winners", study_runs, tmp_path / "tables").with_suffix(".md").read_text()

    assert said in text
    assert not_said not in text
    assert "in 95 % of cases" in text
    assert "significant" not in tables.make("scaling", study_runs, tmp_path / "tables").with_suffix(".md").read_text()


def test_a_serial_fraction_outside_0_to_1_is_blank_for_readers_and_kept_for_programs():
    frame = pd.DataFrame({"karp_flatt": [1.3, 0.2, -0.1], "speedup": [0.8, 3.0, 5.0]})
    shown = readable(frame)

    assert list(shown.texts["Karp-Flatt"]) == ["", "0.2", ""]
    assert any("slower than one rank" in note for note in shown.notes)
    assert list(frame["karp_flatt"]) == [1.3, 0.2, -0.1]


def test_a_winner_is_text_for_who_reads_the_csv(tmp_path):
    grid = [SMALL[0] | {"learning_rate": [0.1, 0.5], "batch_size": 16}]
    file = tables.make("winners", made_up(tmp_path, grid=grid), tmp_path / "tables")

    assert pd.read_csv(file.with_suffix(".csv"))["winner"][0] in ("learning rate 0.1", "learning rate 0.5")


def read_back(file):
    """Return a CSV file as its metadata says to read it: text in quotes, an empty cell without quotes is missing."""
    said = records.read_metadata(file.with_suffix(".parquet"))["csv"]
    assert "an empty cell without quotes" in said
    assert "an apostrophe before it" in said
    convert = csv.ConvertOptions(
        column_types=pq.read_schema(file.with_suffix(".parquet")).remove_metadata(),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    return csv.read_csv(file, parse_options=csv.ParseOptions(newlines_in_values=True), convert_options=convert)


@pytest.mark.parametrize("name", READ)
def test_a_csv_file_reads_back_as_its_table(tmp_path, name):
    """The exchange `none` is a value, and so are the texts `NA`, `null` and an empty one; only nothing is missing."""
    reasons = iter(["NA", "", "null", EVIL.replace("\n", "")])
    train = lambda spec: realistic(spec) if spec.batch_size == 64 else Result("crashed", next(reasons))
    grid = [SMALL[0] | {"batch_size": [16, 64], "learning_rate": [0.1, 0.2, 0.3, 0.5]}]
    file = tables.make(name, made_up(tmp_path, train, grid=grid), tmp_path / "tables")

    assert read_back(file.with_suffix(".csv")).equals(pq.read_table(file).replace_schema_metadata(None))


def test_no_text_of_a_csv_file_is_a_formula_and_numbers_stay_numbers(tmp_path, monkeypatch):
    evil = ["=1+2", "+cmd", "-a", "@SUM(A1)", "\t=1", "\r=1", " =1", "'=1", "\uff1d1"]
    evil += ["plain", "it's", "-0.5", "", None]
    numbers = np.linspace(-1, 1, len(evil))
    frame = pd.DataFrame({"reason": pd.Series(evil, dtype="string"), "x": numbers})
    monkeypatch.setattr(runs, "build", lambda _: frame)
    file = tables.make("runs", planned(tmp_path, grid=SMALL), tmp_path / "tables")
    found = read_back(file.with_suffix(".csv")).to_pydict()

    assert found["reason"] == [*(f"'{text}" for text in evil[:9]), *evil[9:]]
    assert found["x"] == list(numbers)
    assert pq.read_table(file)["reason"].to_pylist() == evil


def test_letters_are_themselves_in_every_form(tmp_path):
    """Options are kept as JSON, which may escape letters."""
    text = "été – ≤ “x” 漢"
    grid = [SMALL[0] | {"dataset": [{"name": "text", "path": text}, {"name": "text", "path": "b"}]}]
    grid[0] |= {"model": {"name": "transformer"}}
    file = tables.make("runs", planned(tmp_path, grid=grid), tmp_path / "tables")

    assert any(text in cell for cell in pd.read_parquet(file)["dataset_options"])
    for form in (".csv", ".md"):
        assert "été – ≤ “x” 漢" in file.with_suffix(form).read_text(encoding="utf-8")
    assert "\\u00" not in file.with_suffix(".csv").read_text(encoding="utf-8")
