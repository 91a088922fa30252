"""From a wheel alone, outside the clone: a project, a model, a dataset and a table of one's own, a run, a page."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from sandbox import PROJECT, Sandbox

from ddp_hpc.config import catalog
from ddp_hpc.config.study import StudyError
from ddp_hpc.publication.publish import PackOptions, publish
from ddp_hpc.publication.rerun import rerun
from ddp_hpc.publication.verify import verify
from ddp_hpc.runs import identity
from ddp_hpc.runs.project import Project
from ddp_hpc.workflow import new_project

OWN = {
    "models/line.py": """
from torch import nn

from ddp_hpc.config.catalog import PositiveInt

from ._layers import hidden


def build(input_shape, outputs, *, width: PositiveInt = 4) -> nn.Module:
    return nn.Sequential(hidden(*input_shape, width), nn.ReLU(), nn.Linear(width, outputs))
""",
    "models/_layers.py": "from torch import nn\n\n\ndef hidden(inputs, width):\n    return nn.Linear(inputs, width)\n",
    "data/sales.py": """
from pathlib import Path

import numpy as np
import torch

from ddp_hpc.data._tasks import Dataset, Samples

SHAPE = (2,)
TASK = "regression"
OUTPUTS = 1
METRICS = {"squared": "lower", "within": "higher"}


def squared(outputs, targets):
    return (outputs - targets).square().flatten(1).mean(dim=1)


def within(outputs, targets):
    return ((outputs - targets).abs() < 2).flatten()


def build(folder: Path) -> Dataset:
    file = Path(__file__).with_suffix(".csv")
    table = torch.from_numpy(np.loadtxt(file, delimiter=",", skiprows=1, dtype=np.float32))
    inputs, targets = table[:, :2], table[:, 2:]
    return Dataset(train=Samples(inputs[16:], targets[16:]), test=Samples(inputs[:16], targets[:16]))
""",
    "data/sales.csv": "price,season,sold\n" + "".join(f"{n % 7},{n % 4},{2 * (n % 7) - n % 4}\n" for n in range(80)),
    "exchange/averaged.py": """
from ddp_hpc.exchange import ring

SYNCHRONOUS = True
OVERLAPS = False


def make(replica, comm, timers, make_optimizer):
    return ring.make(replica, comm, timers, make_optimizer)
""",
    "tables/ranks.py": """
CAPTION = "Runs by number of ranks"


def build(study_runs):
    return study_runs.runs.groupby("world_size", as_index=False)["steps"].sum()
""",
}
STUDY = """
base: {dataset: sales, model: {name: line, width: 8}, batch_size: 4, learning_rate: 0.01, device: cpu}
grid: [{exchange: none, world_size: 1}, {exchange: averaged, world_size: 2}]
budget: {steps: 20}
rules: {metric: within, winner_by: test_metric}
tables: [ranks, winners]
figures: []
"""


MINE = "config/studies/mine.yaml"
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'  # for what it starts, no one else


@dataclass(frozen=True)
class Installed(Sandbox):
    """A project whose commands are those of another environment."""

    bin: Path = Path()

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(self.bin), str(Path(sys.executable).parent), os.environ["PATH"]])
        # mpi4py looks in its own environment for an MPI that came as a wheel
        mpi = next((Path(sys.prefix) / "lib").glob("libmpi.so.*"), None)
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return kept | {"PATH": path} | ({"MPI4PY_LIBMPI": str(mpi)} if mpi else {})


@pytest.fixture(scope="module")
def scripts(tmp_path_factory) -> Path:
    """The commands of an environment that has a wheel of this source, and shares all else with ours."""
    folder = tmp_path_factory.mktemp("wheel")
    source, built = folder / "source", folder / "built"
    source.mkdir()
    for name in ("src", "config", "profiles", "workflow"):
        shutil.copytree(
            PROJECT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index"]
    call = functools.partial(subprocess.run, check=True, cwd=folder)
    call([*pip, "wheel", *offline, "--no-build-isolation", "--wheel-dir", built, source])
    venv.create(folder / "venv", symlinks=True)
    site = next((folder / "venv" / "lib").glob("python*/site-packages"))
    site.joinpath("shared.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    call([*pip, "--python", folder / "venv" / "bin" / "python", "install", *offline, *built.glob("*.whl")])
    snakemake = folder / "venv" / "bin" / "snakemake"
    snakemake.write_text(f"#!{snakemake.with_name('python')}\nfrom snakemake.cli import main\n\nmain()\n")
    snakemake.chmod(0o755)
    return snakemake.parent


@pytest.fixture(scope="module")
def project(scripts, tmp_path_factory) -> Iterator[Installed]:
    """A project on a path with spaces, made and run with what is installed."""
    folder = tmp_path_factory.mktemp("of one's own") / "a project"
    outside = Installed(folder.parent, (), scripts)
    installed = {file for file in scripts.parent.rglob("*") if file.suffix != ".pyc"}
    made = outside.call("ddp-hpc", "init", folder.name)
    assert made.returncode == 0, made.stderr
    through = ("unshare", "--mount", "sh", "-c", READ_ONLY, str(scripts.parent))
    if subprocess.run([*through, "true"], capture_output=True, check=False).returncode:
        through = ()  # no root: what was written there is found below
    here = Installed(folder, through, scripts)
    here.study("mine", STUDY)
    for name, text in OWN.items():
        (folder / name).write_text(text)
    done = here.call("ddp-hpc", "run", "mine")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {file for file in scripts.parent.rglob("*") if file.suffix != ".pyc"} == installed
    yield here
    catalog.use_project(None)
    identity.forget()


def to_train(project: Sandbox) -> set[str]:
    identity.forget()
    catalog.use_project(None)
    return {planned.run for planned in Project.here(project.root).study_runs("mine").lacking}


def test_a_wheel_runs_a_study_of_own_files_to_its_page(project):
    folder = project.root / "results" / "studies" / "mine"
    assert "Runs by number of ranks" in (folder / "report" / "index.html").read_text()
    assert pd.read_parquet(folder / "tables" / "ranks.parquet")["steps"].tolist() == [20, 20]
    (row, _) = pd.read_parquet(folder / "tables" / "winners.parquet").to_dict("records")
    for run in (project.root / "results" / "runs").iterdir():
        (record,) = pd.read_parquet(run / "run.parquet").to_dict("records")
        own = json.loads(record["own_metrics"])
        assert own["squared"] == {"value": pytest.approx(record["test_metric"], rel=1e-6), "better": "lower"}
        assert own["within"]["value"] * 16 == int(own["within"]["value"] * 16)  # of 16 samples, on one rank or two
        assert run.name != row["winner_runs"] or row["test_metric"] == own["within"]["value"]
    listed = json.loads(project.call("ddp-hpc", "list", "models", "--json").stdout)
    assert {"line", "mlp"} <= {row["model"] for row in listed}
    [code] = {row["model"]: row["options"] for row in listed if row["model"] == "line"}.values()
    assert code == [{"name": "width", "allowed": "an integer > 0", "default": 4}]


@pytest.mark.parametrize(
    ("file", "old", "edit", "new"),
    [
        ("models/line.py", "", "# a comment\n", 0),
        ("models/line.py", "nn.ReLU(), ", "nn.ReLU(),  ", 0),
        ("tables/ranks.py", "", "X = 1\n", 0),
        (MINE, "learning_rate: 0.01", "learning_rate: 1e-2", 0),
        (MINE, "{exchange: averaged, world_size: 2}", "{world_size: 2, exchange: averaged}", 0),
        (MINE, "world_size: 2}", "world_size: 2, learning_rate: [0.01, 0.02]}", 1),
        ("exchange/averaged.py", "", "X = 1\n", 1),
        ("models/line.py", "", "X = 1\n", 2),
        ("models/_layers.py", "", "X = 1\n", 2),
        ("data/sales.csv", "", "1,2,3\n", 2),
    ],
)
def test_an_edit_trains_again_what_depends_on_it(project, file, old, edit, new):
    before = (project.root / file).read_text()
    try:
        (project.root / file).write_text(before.replace(old, edit, 1) if old else before + edit)
        assert (project.root / file).read_text() != before
        assert len(to_train(project)) == new
        if file in ("models/_layers.py", "exchange/averaged.py"):
            shutil.rmtree(project.root / ".snakemake", ignore_errors=True)
            assert project.snakemake_would_train("mine") == to_train(project)
        if file == "tables/ranks.py":
            assert set(re.findall(r"rule (\w+):", project.dry_run("mine"))) == {"all", "outputs"}
    finally:
        (project.root / file).write_text(before)
    assert to_train(project) == set()


def test_its_pack_holds_its_code_and_a_stranger_trains_it_again(project, tmp_path, capsys):
    said = 'creators: [{name: "Carberry, Josiah"}]\nlicence: MIT\n'
    (project.root / "config" / "publication.yaml").write_text(said)
    identity.forget()
    pack = tmp_path / "mine.zip"
    assert publish(Project.here(project.root), "mine", PackOptions(to=pack, allow_private=True)) == 0
    with zipfile.ZipFile(pack) as archive:
        own = {name.partition("/project/")[2] for name in archive.namelist() if "/project/" in name}
    assert own == set(OWN)

    catalog.use_project(None)
    assert verify(pack, trusted=True) == 0
    assert rerun(pack, tmp_path / "again", "winners", "mpiexec") == 0
    assert "2 runs trained again: results reproduced" in capsys.readouterr().out


def test_what_init_makes_is_what_the_clone_is(tmp_path):
    new_project.make(tmp_path, "quickstart")
    for name in ("workflow/Snakefile", "profiles/default/profile.yaml", "config/studies/quickstart.yaml"):
        assert (tmp_path / name).read_text() == (PROJECT / name).read_text()
    assert Project(tmp_path).studies == ["quickstart"]
    catalog.use_project(None)


@pytest.mark.parametrize("study", [new_project.FIRST, *new_project.examples()])
def test_every_example_can_be_planned_in_a_project_of_its_own(tmp_path, study):
    before = catalog.project()
    new_project.make(tmp_path, study)
    try:
        project = Project.here(tmp_path)
        assert project.read_config().studies == [study]
        assert project.study_runs(study).planned
    finally:
        catalog.use_project(before)


def test_init_overwrites_nothing(tmp_path):
    (tmp_path / "README.md").write_text("mine")
    new_project.make(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
    with pytest.raises(StudyError, match="already"):
        new_project.make(tmp_path)
    (tmp_path / "other" / "workflow").mkdir(parents=True)
    (tmp_path / "other" / "workflow" / "Snakefile").write_text("rule all:\n")
    with pytest.raises(StudyError, match=r"workflow/Snakefile already, and nothing was written"):
        new_project.make(tmp_path / "other")
    assert [file.name for file in (tmp_path / "other").iterdir()] == ["workflow"]
    with pytest.raises(StudyError, match=r"no example 'quickstrat' .*quickstart"):
        new_project.make(tmp_path / "third", "quickstrat")


def test_a_newer_package_is_told_and_replaces_what_was_not_edited(tmp_path, monkeypatch):
    package = tmp_path / "package"
    shutil.copytree(new_project.SOURCE, package)
    monkeypatch.setattr(new_project, "SOURCE", package)
    root = tmp_path / "mine"
    new_project.make(root)
    project = Project(root)

    def notes() -> str:
        return " ".join(new_project.noted(project, project.study_runs("first")).notes)

    edited = root / "profiles/slurm/profile.yaml"
    edited.write_text("edited")
    assert "init" not in notes()
    for name in ("workflow/Snakefile", "profiles/slurm/profile.yaml"):
        (package / name).write_text(f"# newer\n{(package / name).read_text()}")
    assert "workflow/Snakefile, profiles/slurm/profile.yaml: of ddp-hpc" in notes()
    replaced, left = new_project.upgrade(root)
    assert replaced == "workflow/Snakefile: replaced"
    assert left.startswith("profiles/slurm/profile.yaml: edited here")
    assert (root / "workflow/Snakefile").read_text().startswith("# newer")
    assert edited.read_text() == "edited"
    assert "init" not in notes()
    assert new_project.upgrade(root) == []
