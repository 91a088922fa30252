"""Tables, figures and the page are made of what is out of date, each on its own, from records that are read once."""

from collections import Counter

import pytest
from factory import constant, made_up

from ddp_hpc.analysis.tables import runs, scaling
from ddp_hpc.runs import records
from ddp_hpc.runs.project import Project
from ddp_hpc.workflow.publish import publish, publish_page
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

    assert publish(project, "made_up", "table") == 0

    assert out_of_date(project) == ["speedup", "report"]
    shown = capsys.readouterr().out.splitlines()
    tables = project.study_folder("made_up") / "tables"
    assert [line for line in shown if line.endswith(".parquet")] == [
        str(tables / f"{name}.parquet") for name in ("runs", "winners", "scaling")
    ]
    assert publish(project, "made_up", "table") == 0
    assert capsys.readouterr().out == ""

    publish(project, "made_up", "figure")
    publish_page(project, "made_up")
    assert out_of_date(project) == []


def test_records_and_loss_curves_of_runs_are_read_once_for_all_tables(project, monkeypatch):
    read, whole = Counter(), records.read

    def counted(kind, file, columns=None, rows=None):
        read[file, columns] += 1
        return whole(kind, file, columns, rows)

    monkeypatch.setattr(records, "read", counted)

    assert publish(project, "made_up", "table", ["runs", "winners", "areas", "scaling", "curves"]) == 0

    assert {file.stem for file, _ in read} == {"run", "steps"}
    assert set(read.values()) == {1}


def test_one_that_fails_keeps_none_of_the_others_from_being_made(project, monkeypatch, capsys):
    publish(project, "made_up", "table")
    capsys.readouterr()

    def fail(study_runs):
        raise KeyError("a bug")

    monkeypatch.setattr(scaling, "build", fail)
    assert publish(project, "made_up", "table", ["scaling", "runs", "phases"]) == 1

    told = capsys.readouterr()
    assert [line.rpartition("/")[2] for line in told.out.splitlines()] == ["runs.parquet", "phases.parquet"]
    assert "KeyError: 'a bug'" in told.err
    assert told.err.splitlines()[-1] == "ddp-hpc: 1 table not made: scaling"


def test_a_page_that_lacks_a_table_is_written_and_stays_out_of_date(project, monkeypatch, capsys):
    def fail(study_runs):
        raise ValueError("no such column")

    monkeypatch.setattr(runs, "build", fail)
    assert publish(project, "made_up", "table") == 2
    assert "ddp-hpc: table runs: no such column" in capsys.readouterr().err
    publish(project, "made_up", "figure")

    assert publish_page(project, "made_up").is_file()

    assert out_of_date(project) == ["runs", "report"]


def test_a_name_that_is_none_is_told_of_before_anything_is_made(project):
    with pytest.raises(ValueError, match="no table 'run'"):
        publish(project, "made_up", "table", ["winners", "run"])

    assert not (project.study_folder("made_up") / "tables").exists()


def test_figures_follow_their_tables_in_every_size_and_of_old_tables_they_stay_out_of_date(project, tmp_path, capsys):
    drawn_of = {"grid": GRID, "tables": ["runs"], "figures": ["loss_areas"]}
    made_up(tmp_path, **drawn_of)
    for kind, size in (("table", None), ("figure", None), ("figure", "column")):
        assert publish(project, "made_up", kind, size=size) == 0
    drawn = project.study_folder("made_up") / "figures"
    before = {file: file.read_bytes() for file in drawn.glob("*.svg")}
    made_up(tmp_path, slower, **drawn_of)
    capsys.readouterr()

    publish(project, "made_up", "figure")

    assert "out of date (areas, winners): loss_areas; `ddp-hpc table made_up`" in capsys.readouterr().err
    assert out_of_date(project) == ["runs", "areas", "winners", "loss_areas", "report"]
    publish(project, "made_up", "table")
    publish(project, "made_up", "figure")
    assert out_of_date(project) == ["report"]
    assert sorted(file.name for file in before) == ["loss_areas-column.svg", "loss_areas.svg"]
    assert all(file.read_bytes() != old for file, old in before.items())


def test_a_page_of_old_tables_says_so_and_is_made_again(project, tmp_path, capsys):
    publish(project, "made_up", "table")
    publish(project, "made_up", "figure")
    made_up(tmp_path, slower, grid=GRID, tables=["runs", "winners", "scaling"], figures=["speedup"])

    page = publish_page(project, "made_up").read_text()

    told = "made before the records, the rules or the code were changed: table runs, table winners, table scaling, "
    assert told in page
    assert told in capsys.readouterr().err
    assert "report" in out_of_date(project)


@pytest.mark.parametrize("lost", ["tables/scaling.csv", "figures/speedup.pdf"])
def test_what_lacks_one_of_its_files_is_made_anew(project, lost):
    for kind in ("table", "figure"):
        publish(project, "made_up", kind)
    publish_page(project, "made_up")
    file = project.study_folder("made_up") / lost
    file.unlink()

    assert out_of_date(project) == [file.stem]
    publish(project, "made_up", "table")
    publish(project, "made_up", "figure")
    assert file.exists()
    assert out_of_date(project) == []


def slower(spec):
    """Take longer on two ranks than by default."""
    return constant(4.0 * spec.world_size, steps=spec.steps_asked)
