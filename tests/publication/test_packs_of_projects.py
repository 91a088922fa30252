"""A pack of one's own project holds its program, tables and figures: others verify it, and train it again."""

import shutil
import sys
from pathlib import Path

import factory
import pytest

import ddp_hpc
from ddp_hpc.config import catalog
from ddp_hpc.execution.supervisor import supervise
from ddp_hpc.publication import pack as names
from ddp_hpc.publication.pack import Pack, PackError, own_code_of, sums
from ddp_hpc.publication.publish import PackOptions, publish, publish_anew
from ddp_hpc.publication.rerun import rerun
from ddp_hpc.publication.verify import CHECKS, Inspection, verify
from ddp_hpc.runs import identity
from ddp_hpc.runs.project import Project
from ddp_hpc.system.process import path_with_own_scripts
from ddp_hpc.workflow import plan

OWN = {
    "train.py": """
import json
import sys

import ddp_hpc
from nets import slope

with open("settings.json") as file:
    first = json.load(file)["first"]
with ddp_hpc.recorder() as record:
    for step in range(int(sys.argv[1])):
        record.step(loss=first / slope.of(step), samples=8)
    record.metric(accuracy=0.75)
""",
    "nets/slope.py": "def of(step):\n    return 1 + step\n",
    "settings.json": '{"first": 4.0}',
    "tables/late.py": """
from ._words import SUM

CAPTION = "Steps by world size"


def build(study_runs):
    return study_runs.runs.groupby("world_size", as_index=False)["steps"].agg(SUM)
""",
    "tables/_words.py": 'SUM = "sum"\n',
    "tables/other.py": "def build(study_runs):\n    return study_runs.runs\n",  # of no study
    "figures/lasting.py": """
from matplotlib.figure import Figure

CAPTION = "Steps by world size"
INPUTS = ("late",)


def draw(tables, study, coverage):
    figure = Figure()
    figure.add_subplot().plot(tables["late"]["world_size"], tables["late"]["steps"])
    return figure
""",
}
IN_PACK = {f"project/{name}" for name in OWN} - {"project/tables/other.py"}
STUDY = {
    "base": {
        "program": {"command": "python train.py {steps}", "files": ["train.py", "*.json"]},
        "world_size": 1,
        "batch_size": 8,
        "threads_per_rank": 1,
    },
    "grid": {"learning_rate": [0.1, 0.2]},
    "budget": {"steps": 4},
    "rules": {},
    "tables": ["winners"],
    "figures": ["lasting"],
    "publication": {"creators": [{"name": "Carberry, Josiah"}], "licence": "CC-BY-4.0"},
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    before, root = catalog.project(), tmp_path_factory.mktemp("own")
    for name, text in OWN.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    catalog.use_project(root)
    study_runs = factory.planned(root, **STUDY)
    plan.prepare(study_runs)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", path_with_own_scripts())
        patched.setattr(sys, "dont_write_bytecode", False)  # as it is by itself
        for one in study_runs.planned:
            ending = supervise(study_runs.store.run(one.run).path, [], root)
            assert ending.status == "ok", ending.reason
        yield Project(root)
    catalog.use_project(before)


@pytest.fixture(scope="module")
def published(project, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packs") / "pack"
    assert publish(project, "made_up", PackOptions(to=folder, allow_private=True)) == 0
    assert catalog.project() == project.root
    return folder


def test_a_table_that_reads_what_is_in_no_pack_is_told_before_it_is_published(project, tmp_path):
    file = project.root / "tables" / "_words.py"
    before = file.read_text()
    (project.root / "notes.txt").write_text("sum")
    file.write_text('from pathlib import Path\n\nSUM = (Path(__file__).parents[1] / "notes.txt").read_text()\n')
    identity.forget()
    try:
        with pytest.raises(PackError, match=r"tables/_words.py, tables/late.py: cannot .*'notes.txt'"):
            publish(project, "made_up", PackOptions(to=tmp_path / "pack", allow_private=True))
    finally:
        file.write_text(before)
        identity.forget()


@pytest.fixture
def stranger():
    """Who has the pack alone, and no project."""
    before = catalog.project()
    catalog.use_project(None)
    identity.forget()
    yield
    catalog.use_project(before)


def changed(published: Path, folder: Path, name: str, old: str, new: str) -> Path:
    """A copy in which a file has other words, with checksums of that."""
    shutil.copytree(published, folder)
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))
    (folder / names.SUMS).write_text(sums(Pack(folder)))
    return folder


def told(capsys) -> dict[str, str]:
    """What `verify` said of each check."""
    lines = capsys.readouterr().out.splitlines()
    return {check: line.split(f" {check}: ")[0].strip() for line in lines for check in CHECKS if f" {check}: " in line}


def test_a_pack_has_the_files_that_decide_results_tables_and_figures(published):
    assert {name for name in Pack(published).files if name.startswith("project/")} == IN_PACK
    readme = (published / "README.md").read_text()
    assert "the 6 files of the authors' own project" in readme
    assert "`ddp-hpc verify --trust .`" in readme


def test_code_of_a_pack_runs_only_for_who_trusts_it(published, stranger, capsys):
    assert verify(published) == 0
    not_told = {check for check, word in told(capsys).items() if word != "ok"}
    assert not_told == {"tables", "figures and page", "claims"}

    for _ in range(2):  # the first leaves nothing beside the files
        assert verify(published, trusted=True) == 0
    assert {check for check, word in told(capsys).items() if word != "ok"} == {"claims"}  # it has none
    assert catalog.project() is None


def test_other_code_than_that_of_the_tables_is_found(published, stranger, tmp_path, capsys):
    assert len(Pack(published).runs) == 2  # of whose steps the sum is not the largest
    pack = changed(published, tmp_path / "pack", "project/tables/_words.py", '"sum"', '"max"')
    assert verify(pack, trusted=True) == 1
    assert told(capsys)["tables"] == "differs"


@pytest.mark.parametrize(
    ("name", "old", "new"), [("nets/slope.py", "1 + step", "2 + step"), ("settings.json", "4.0", "5.0")]
)
def test_other_code_than_that_of_the_runs_is_found(published, stranger, tmp_path, name, old, new):
    pack, found = changed(published, tmp_path / "pack", f"project/{name}", old, new), Inspection()
    with own_code_of(pack):
        CHECKS["code"](Pack(pack), found)
    assert found.problems[0].startswith(f"project/{name} is not what ")


def test_a_stranger_trains_the_runs_again(published, stranger, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", path_with_own_scripts())

    assert rerun(published, tmp_path / "again", "all", "mpiexec") == 0

    assert "2 runs trained again: results reproduced" in capsys.readouterr().out
    (tmp_path / "again" / "train.py").write_text("print(1)")
    with pytest.raises(PackError, match=r"again/train.py is there and is not that of the pack"):
        rerun(published, tmp_path / "again", "all", "mpiexec")


def test_a_pack_opens_in_a_notebook_without_its_project(published, stranger):
    study = ddp_hpc.open(published)
    assert study.table("late")["steps"].tolist() == [8]
    assert "lasting" in study.figures
    assert study.figure("lasting").axes
    assert study.runs["program"].tolist() == ["train.py", "train.py"]


def test_all_that_is_made_from_a_pack_can_be_made_anew(published, stranger, tmp_path):
    folder = shutil.copytree(published, tmp_path / "pack")
    publish_anew(folder)
    assert (folder / names.SUMS).read_bytes() == (published / names.SUMS).read_bytes()
