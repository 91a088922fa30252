"""Code of a project counts to who a run is: the files that it names, and what these import from the project."""

from pathlib import Path

import pytest

from ddp_hpc.config import catalog, spec
from ddp_hpc.config.catalog import CatalogError
from ddp_hpc.runs import identity

FILES = {
    "models/small.py": "from ._parts import part\n\n\ndef build(shape, outputs): ...\n",
    "models/_parts.py": "import mylib.net\n\n\ndef part(): ...\n",
    "models/other.py": "def build(shape, outputs): ...\n",
    "src/mylib/__init__.py": "",
    "src/mylib/net.py": "from .weights import W\n",
    "src/mylib/weights.py": "W = 1\n",
    "data/table.py": "SHAPE = (2,)\nTASK = 'regression'\nOUTPUTS = 1\n\n\ndef build(folder): ...\n",
    "data/table.csv": "a,b\n1,2\n",
    "data/unused.csv": "a,b\n1,2\n",
    "tables/late.py": "def build(study_runs): ...\n",
}
FIELDS = {
    "model": "small",
    "dataset": "table",
    "exchange": "none",
    "world_size": 1,
    "batch_size": 2,
    "learning_rate": 0.1,
    "budget": {"steps": 1},
}
OF_THE_RUN = [f"./{name}" for name in FILES if name not in ("models/other.py", "data/unused.csv", "tables/late.py")]


@pytest.fixture
def project(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    catalog.use_project(tmp_path)
    identity.forget()
    yield tmp_path
    catalog.use_project(None)
    identity.forget()


def run_now() -> str:
    identity.forget()
    return identity.run_id(spec.load(FIELDS))


def test_a_run_has_the_files_that_it_uses_from_the_project_and_the_package(project):
    files = identity.files(spec.load(FIELDS))
    assert sorted(name for name in files if name.startswith("./")) == sorted(OF_THE_RUN)
    assert {"training/trainer.py", "exchange/none.py"} <= set(files)
    assert all(identity.file_of(name).is_file() for name in files)


@pytest.mark.parametrize("name", FILES)
def test_an_edit_makes_a_run_new_where_the_run_uses_the_file(project, name):
    before, file = run_now(), project / name
    if file.suffix == ".py":
        file.write_text(f"# a comment\n{FILES[name]}")
        assert run_now() == before
    file.write_text(f"{FILES[name]}\nX = 1\n")
    assert (run_now() != before) == (f"./{name}" in OF_THE_RUN)
    file.write_text(FILES[name])
    assert run_now() == before


def test_the_place_of_a_project_counts_for_nothing(project, tmp_path_factory):
    before, elsewhere = run_now(), tmp_path_factory.mktemp("else where") / "moved"
    catalog.use_project(project.rename(elsewhere))
    assert run_now() == before


def test_a_broken_helper_is_told_by_its_line(project):
    Path(project, "models/_parts.py").write_text("def part():\n    return (\n")
    with pytest.raises(CatalogError, match=r"models/_parts.py:2: '\(' was never closed"):
        run_now()
