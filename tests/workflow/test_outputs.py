"""Tables, figures and the page are made of what is out of date, each on its own, from records that are read once."""

from collections import Counter

import pytest
from factory import constant, made_up

from ddp_hpc.analysis.tables import runs, scaling
from ddp_hpc.runs import records
from ddp_hpc.runs.project import Project
from ddp_hpc.workflow.outputs import make_outputs, make_page
from ddp_hpc.workflow.targets import StudyTargets

GRID = {"exchange": "ring", "world_size": [1, 2], "batch_size": 16, "learning_rate": [0.1, 0.5]}


@pytest.fixture
def project(tmp_path):
    made_up(tmp_path, grid=GRID, tables=["runs", "winners", "scaling"], figures=["speedup"])
    return Project(tmp_path)


def out_of_date(project):
    targets = StudyTargets(project, project.study_runs("made_up"), settled=True)
    return [name for kind in targets.names for name in targets.out_of_date(kind)]


def test_what_is_out_of_date_is_made_once(project, capsys):
    assert out_of_date(project) == ["runs", "winners", "scaling", "speedup", "report"]

    assert make_outputs(project, "made_up", "table") == 0

    assert out_of_date(project) == ["speedup", "report"]
    shown = capsys.readouterr().out.splitlines()
    tables = project.study_folder("made_up") / "tables"
    assert [line for line in shown if line.endswith(".parquet")] == [
        str(tables / f"{name}.parquet") for name in ("runs", "winners", "scaling")
    ]
    assert make_outputs(project, "made_up", "table") == 0
    assert capsys.readouterr().out == ""

    make_outputs(project, "made_up", "figure")
    make_page(project, "made_up")
    assert out_of_date(project) == []


def test_records_and_loss_curves_of_runs_are_read_once_for_all_tables(project, monkeypatch):
    read, whole = Counter(), records.read

    def counted(kind, file, columns=None, rows=None):
        read[file, columns] += 1
        return whole(kind, file, columns, rows)

    monkeypatch.setattr(records, "read", counted)

    assert make_outputs(project, "made_up", "table", ["runs", "winners", "areas", "scaling", "curves"]) == 0

    assert {file.stem for file, _ in read} == {"run", "steps"}
    assert set(read.values()) == {1}


def test_one_that_fails_keeps_none_of_the_others_from_being_made(project, monkeypatch, capsys):
    make_outputs(project, "made_up", "table")
    capsys.readouterr()

    def fail(study_runs):
        raise KeyError("a bug")

    monkeypatch.setattr(scaling, "build", fail)
    assert make_outputs(project, "made_up", "table", ["scaling", "runs", "phases"]) == 1

    told = capsys.readouterr()
    assert [line.rpartition("/")[2] for line in told.out.splitlines()] == ["runs.parquet", "phases.parquet"]
    assert "KeyError: 'a bug'" in told.err
    assert told.err.splitlines()[-1] == "ddp-hpc: 1 table not made: scaling"


def test_a_page_that_lacks_a_table_is_written_and_stays_out_of_date(project, monkeypatch, capsys):
    def fail(study_runs):
        raise ValueError("no such column")

    monkeypatch.setattr(runs, "build", fail)
    assert make_outputs(project, "made_up", "table") == 2
    assert "ddp-hpc: table runs: no such column" in capsys.readouterr().err
    make_outputs(project, "made_up", "figure")

    assert make_page(project, "made_up").is_file()

    assert out_of_date(project) == ["runs", "report"]


def test_a_name_that_is_none_is_told_of_before_anything_is_made(project):
    with pytest.raises(ValueError, match="no table 'run'"):
        make_outputs(project, "made_up", "table", ["winners", "run"])

    assert not (project.study_folder("made_up") / "tables").exists()


def test_what_was_damaged_or_edited_since_it_was_made_is_kept_aside_and_made_anew(project, capsys):
    def make():
        make_outputs(project, "made_up", "table")
        make_outputs(project, "made_up", "figure")
        make_page(project, "made_up")

    make()
    folder = project.study_folder("made_up")
    parquet, latex, page = folder / "tables/runs.parquet", folder / "tables/winners.tex", folder / "report/index.html"
    whole = parquet.read_bytes()
    parquet.write_bytes(whole[:100] + b"?" + whole[101:])  # as many bytes
    latex.unlink()
    page.write_text("cut")
    (folder / "figures/speedup.svg").touch()  # of another date, as in a copy
    capsys.readouterr()

    assert out_of_date(project) == ["runs", "winners", "report"]
    make()

    assert out_of_date(project) == []
    assert parquet.read_bytes() == whole
    assert (folder / "report/index.html.aside-1").read_text() == "cut"
    assert "aside-1" not in page.read_text()
    assert sorted(file.name for file in parquet.parent.glob("*.aside-*")) == ["runs.parquet.aside-1"]
    assert f"{parquet} is left out: it was changed since it was made" in capsys.readouterr().err


def test_a_stamp_of_an_earlier_version_is_trusted_and_one_that_is_cut_is_not(project):
    make_outputs(project, "made_up", "table")
    targets = StudyTargets(project, project.study_runs("made_up"), settled=True)
    whole, cut = (project.root / targets.stamp("table", name) for name in ("runs", "winners"))
    whole.write_text("")
    cut.write_text('{"winners.')

    assert out_of_date(project) == ["winners", "speedup", "report"]


def test_figures_follow_their_tables_in_every_size_and_of_old_tables_they_stay_out_of_date(project, tmp_path, capsys):
    drawn_of = {"grid": GRID, "tables": ["runs"], "figures": ["loss_areas"]}
    made_up(tmp_path, **drawn_of)
    for kind, size in (("table", None), ("figure", None), ("figure", "column")):
        assert make_outputs(project, "made_up", kind, size=size) == 0
    drawn = project.study_folder("made_up") / "figures"
    before = {file: file.read_bytes() for file in drawn.glob("*.svg")}
    made_up(tmp_path, slower, **drawn_of)
    capsys.readouterr()

    make_outputs(project, "made_up", "figure")

    assert "out of date (areas, winners): loss_areas; `ddp-hpc table made_up`" in capsys.readouterr().err
    assert out_of_date(project) == ["runs", "areas", "winners", "loss_areas", "report"]
    make_outputs(project, "made_up", "table")
    make_outputs(project, "made_up", "figure")
    assert out_of_date(project) == ["report"]
    assert sorted(file.name for file in before) == ["loss_areas-column.svg", "loss_areas.svg"]
    assert all(file.read_bytes() != old for file, old in before.items())


def test_a_page_of_old_tables_says_so_and_is_made_again(project, tmp_path, capsys):
    make_outputs(project, "made_up", "table")
    make_outputs(project, "made_up", "figure")
    made_up(tmp_path, slower, grid=GRID, tables=["runs", "winners", "scaling"], figures=["speedup"])

    page = make_page(project, "made_up").read_text()

    told = "made before the records, the rules or the code were changed: table runs, table winners, table scaling, "
    assert told in page
    assert told in capsys.readouterr().err
    assert "report" in out_of_date(project)


@pytest.mark.parametrize("lost", ["tables/scaling.csv", "figures/speedup.pdf"])
def test_what_lacks_one_of_its_files_is_made_anew(project, lost):
    for kind in ("table", "figure"):
        make_outputs(project, "made_up", kind)
    make_page(project, "made_up")
    file = project.study_folder("made_up") / lost
    file.unlink()

    assert out_of_date(project) == [file.stem]
    make_outputs(project, "made_up", "table")
    make_outputs(project, "made_up", "figure")
    assert file.exists()
    assert out_of_date(project) == []


def slower(spec):
    """Take longer on two ranks than by default."""
    return constant(4.0 * spec.world_size, steps=spec.steps_asked)
