"""What `ddp_hpc.open` gives is what the records hold, without torch; the page about it runs."""

import re
import subprocess
import sys
import typing
from pathlib import Path

import factory
import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from factory import Result
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from sandbox import PROJECT

import ddp_hpc
from ddp_hpc.config.study import StudyError
from ddp_hpc.publication.pack import PackError
from ddp_hpc.publication.publish import PackOptions, publish
from ddp_hpc.runs import records
from ddp_hpc.runs.project import Project

GRID = [
    {"exchange": "none", "world_size": 1, "batch_size": 16, "learning_rate": [0.1, 5.0]},
    {"exchange": "ring", "world_size": [2, 4], "batch_size": 16, "learning_rate": 0.1},
]
SAID = {"title": "Made-up numbers", "creators": [{"name": "Doe, Jane"}], "licence": "CC-BY-4.0"}
CRASH = "rank 3 on alpha7: MemoryError"


def trained(spec):
    """Four ranks crash, a large rate diverges."""
    if spec.world_size == 4:
        return Result("crashed", CRASH)
    result = factory.realistic(spec)
    return typing.cast(Result, factory.replace(result, columns={"ended_at": "2026-11-01T08:00:00+00:00"}))


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A project with the study `mine`, and its pack beside it."""
    root = tmp_path_factory.mktemp("notebook")
    factory.made_up(root, trained, name="mine", grid=GRID, publication=SAID)
    (root / "workflow").mkdir()
    (root / "workflow" / "Snakefile").touch()
    assert publish(Project.here(root), "mine", PackOptions(to=root / "mine.zip", allow_private=True)) == 0
    return root


@pytest.fixture
def study(root):
    return ddp_hpc.open("mine", root)


def test_every_line_of_the_page_runs(root, monkeypatch):
    monkeypatch.chdir(root)
    pages = (PROJECT / "docs" / "notebook.md").read_text().split("\n## ")
    text = "".join(page for page in pages if not page.startswith("The trained model"))  # see test_documented_commands
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
    names: dict[str, typing.Any] = {}
    exec(compile(code, "docs/notebook.md", "exec"), names)
    assert (root / "speedup.pdf").stat().st_size > 1000
    assert names["runs"].attrs["units"]["samples_per_s"] == "samples/s"
    assert list(names["complete"]["status"].unique()) == ["ok"]


def test_opening_and_reading_imports_neither_torch_nor_mpi_and_ddp_hpc_alone_nothing(root):
    code = f"""
import sys
before = set(sys.modules)
import ddp_hpc
print("alone", *{{name.split(".")[0] for name in set(sys.modules) - before}} - sys.stdlib_module_names)
study = ddp_hpc.open("mine", {str(root)!r})
print("opened", *{{name.split(".")[0] for name in sys.modules}})
study.table("winners"), study.figure("speedup")
print("read", *{{name.split(".")[0] for name in sys.modules}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    alone, opened, read = (set(line.split()[1:]) for line in done.stdout.splitlines())
    assert alone == {"ddp_hpc"}
    assert opened & {"pandas", "pyarrow", "matplotlib", "torch", "mpi4py"} == set()
    assert read & {"pandas", "matplotlib", "torch", "mpi4py", "pynvml"} == {"pandas", "matplotlib"}


def test_runs_are_the_planned_ones_with_units(study):
    runs = study.runs
    assert sorted(runs["status"]) == ["crashed", "diverged", "ok", "ok"]
    assert runs.set_index("status").loc["crashed", "reason"] == CRASH
    assert (
        runs.attrs["units"] | {"step_s": "s", "peak_memory_bytes": "B", "samples_asked": "samples"}
        == (runs.attrs["units"])
    )
    assert "status" not in runs.attrs["units"]
    assert runs.attrs["coverage"] == "3 of 4 runs, 1 missing: 1 crashed"
    assert repr(study) == "<study mine: 3 of 4 runs, 1 missing: 1 crashed>"


def test_a_curve_is_the_loss_of_the_counted_steps_of_one_rank(study):
    run = study.runs.query("world_size == 2")["run"].iloc[0]
    steps, curve = study.steps(run), study.curve(run)
    of_rank_0 = steps[(steps["rank"] == 0) & ~steps["warm_up"]]
    assert len(steps) == 2 * (len(curve) + 2)  # ranks, and two steps of warmup
    assert np.array_equal(curve["loss"], of_rank_0["loss"])
    assert list(curve["step"]) == list(range(1, len(curve) + 1))
    assert curve.attrs["units"] == {"t_s": "s"}
    assert curve.attrs["run"] == run
    assert len(study.evaluations(run)) == 0 if study.study_runs.store.file(run, "evaluations").is_file() else True


def test_a_table_is_what_its_file_has_and_belongs_to_the_reader(root, study):
    from ddp_hpc.analysis import tables

    file = tables.make("winners", study.study_runs, root / "made")
    pd.testing.assert_frame_equal(study.table("winners"), pd.read_parquet(file), check_like=False)
    assert study.table("winners").attrs["caption"] == records.read_metadata(file)["caption"]
    changed = study.table("winners")
    changed["winner"] = "mine"
    assert "mine" not in set(study.table("winners")["winner"])


def test_a_figure_is_one_of_matplotlib_in_the_size_that_is_asked_for(study):
    assert isinstance(study.figure("speedup"), Figure)
    assert study.figure("speedup", "page").get_figwidth() == 7
    assert study.figure("speedup", "column").get_figwidth() == 3.4


def test_letters_of_the_readers_size_change_no_tick_of_a_figure(study):
    figure = study.figure("phases", "column")

    def ticks(letters):
        with mpl.rc_context(dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), letters)):
            FigureCanvasAgg(figure).draw()
            return [list(axis.get_majorticklocs()) for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]

    assert ticks(30) == ticks(5)


def test_a_pack_opens_as_its_project_does(root, study):
    pack = ddp_hpc.open(root / "mine.zip")
    pd.testing.assert_frame_equal(pack.table("winners"), study.table("winners"))
    assert list(pack.runs["run"]) == list(study.runs["run"])
    run = pack.runs["run"].iloc[0]
    pd.testing.assert_frame_equal(pack.curve(run), study.curve(run))
    assert isinstance(pack.figure("speedup"), Figure)
    assert "pairs" not in pack.tables  # it was not published
    unpacked = pack.study_runs.store.root
    del pack
    assert not unpacked.exists()


def says(call, *words: str) -> None:
    with pytest.raises((StudyError, PackError)) as error:
        call()
    assert all(word in str(error.value) for word in words), str(error.value)


def test_what_is_not_there_is_answered_by_what_there_is(root, study, tmp_path):
    crashed, finished = (study.runs.query("status in @names")["run"].iloc[0] for names in (["crashed"], ["ok"]))
    says(lambda: ddp_hpc.open("main", root), "no study 'main'", "did you mean 'mine'")
    says(lambda: ddp_hpc.open(root), "is a project", "open('mine'")
    says(lambda: ddp_hpc.open("mine", tmp_path), "is in no ddp-hpc project")
    says(lambda: ddp_hpc.open(tmp_path / "none.zip"), "no such folder or file")
    says(lambda: study.table("winer"), "no table 'winer'", "did you mean 'winners'", "scaling")
    says(lambda: study.figure("speed"), "no figure 'speed'", "speedup")
    says(lambda: study.figure("speedup", "wide"), "no size 'wide'", "column, page")
    says(lambda: study.steps("none"), "no run 'none' in study mine", finished)
    says(lambda: study.curve(crashed), "it is crashed", CRASH, finished)


def test_a_study_is_found_by_its_file(root):
    assert ddp_hpc.open(root / "config" / "studies" / "mine.yaml").name == "mine"
