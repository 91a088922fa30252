"""Which edits make a run new: the table of edits, on a copy of the package and in fresh processes."""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddp_hpc.config import catalog, spec
from ddp_hpc.runs import identity, syntax

FIELDS = {"dataset": "digits", "world_size": 1, "batch_size": 16, "learning_rate": 0.1, "budget": {"steps": 10}}
RUNS = {
    f"{model}/{exchange}": FIELDS | {"model": model, "exchange": exchange}
    for model in ("mlp", "twin")
    for exchange in ("none", "ring", "mpi_allreduce")
}
PRINT_HASHES = """
import json, sys
from ddp_hpc.config import catalog, spec
from ddp_hpc.runs import identity, syntax
assert str(catalog.PACKAGE) == sys.argv[2], catalog.PACKAGE
print(json.dumps({name: identity.run_id(spec.load(fields)) for name, fields in json.loads(sys.argv[1]).items()}))
"""


@pytest.fixture
def package(tmp_path) -> Path:
    """A copy of our package, with one model more: a new model is a new file."""
    copy = tmp_path / "ddp_hpc"
    shutil.copytree(catalog.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(copy / "models/mlp.py", copy / "models/twin.py")
    edit(copy / "models/twin.py", "TWIN = True\n")
    return copy


def hashes(package: Path, hash_seed: str = "random") -> dict[str, str]:
    """What a fresh process says who the runs are, from the code of `package`."""
    environment = os.environ | {"PYTHONPATH": str(package.parent), "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", PRINT_HASHES, json.dumps(RUNS), str(package)]
    out = subprocess.run(command, env=environment, cwd=package.parent, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)


def edit(file: Path, added: str = "\n\ndef _added() -> int:\n    return 1\n") -> None:
    file.write_text(file.read_text() + added)


@pytest.mark.parametrize(
    ("start", "encoding"),
    [(b"\xef\xbb\xbf", "utf-8"), (b"# -*- coding: latin-1 -*-\n", "latin-1")],
    ids=["BOM", "Latin-1"],
)
def test_a_file_counts_as_python_reads_it(package, start, encoding):
    file = package / "models/twin.py"
    before = hashes(package)
    file.write_bytes(start + f"{file.read_text()}\n# Gewölbe\n".encode(encoding))
    assert hashes(package) == before, "the same code"


LEFTOVERS = (
    *("models/twin.py~", "models/twin.py.bak", "models/twin.py.orig", "models/twin.bak", "models/.twin.py.swp"),
    *("models/.#twin.py", "models/._twin.py", "models/#twin.py#", "models/twin (copy).py", "exchange/ring.rej"),
    *("exchange/.half.py", "data/digits.py.1~", "training/trainer.py.save", "models/twin.tmp"),
)


def test_what_editors_and_merges_leave_makes_no_run_new(package):
    before = hashes(package)
    for name in LEFTOVERS:
        (package / name).write_bytes(b"def half(\x00")
    for name in ("models/twin.d", "exchange/ring.data", "models/folder.py"):
        (package / name).mkdir()
    assert hashes(package) == before


def test_data_beside_a_module_counts_with_it(package):
    assert new_runs(package, lambda: (package / "models/twin.csv").write_text("1\n")) == {
        name for name in RUNS if name.startswith("twin/")
    }


def new_runs(package: Path, change: Callable[[], object]) -> set[str]:
    """Which runs a change makes new."""
    before = hashes(package)
    change()
    after = hashes(package)
    return {name for name in RUNS if before[name] != after[name]}


def using(word: str) -> set[str]:
    return {name for name in RUNS if word in name.split("/")}


def test_the_same_in_fresh_processes_and_in_this_one(package):
    assert hashes(package, "0") == hashes(package, "1") == hashes(package)
    for name in using("mlp"):
        assert hashes(package, "2")[name] == identity.run_id(spec.load(RUNS[name]))


def rewrite(source: str) -> str:
    """The same meaning in other words: no comments, another layout, other docstrings and quotes."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Expr(ast.Constant("Other words.\n\nMore of them."))
    return "# a comment\n\n" + ast.unparse(tree).replace("\n    ", "\n\n    ") + "\n# the end\n"


def test_comments_docstrings_and_formatting_anywhere_make_nothing_new(package):
    def rewrite_all() -> None:
        for file in package.rglob("*.py"):
            text = file.read_text()
            file.write_text(rewrite(text))
            assert file.read_text() != text

    assert new_runs(package, rewrite_all) == set()


def test_a_docstring_taken_away_makes_nothing_new(package):
    ring = package / "exchange/ring.py"
    docstring = ast.get_docstring(ast.parse(ring.read_text()), clean=False)
    assert new_runs(package, lambda: ring.write_text(ring.read_text().replace(f'"""{docstring}"""', "", 1))) == set()


def test_touching_every_file_makes_nothing_new(package):
    assert new_runs(package, lambda: [os.utime(file, (0, 0)) for file in package.rglob("*.py")]) == set()


@pytest.mark.parametrize(
    ("file", "new"),
    [
        ("exchange/ring.py", using("ring")),
        ("exchange/none.py", using("none")),
        ("models/mlp.py", using("mlp")),
        ("models/twin.py", using("twin")),
        ("data/digits.py", set(RUNS)),
        ("training/trainer.py", set(RUNS)),
        ("models/_replica.py", set(RUNS)),
        ("training/optimizers.py", set(RUNS)),
        ("training/sampler.py", set(RUNS)),
        ("training/lr_schedule.py", set(RUNS)),
        ("exchange/__init__.py", set(RUNS)),
        ("profiling/timers.py", set()),
        ("profiling/provenance.py", set()),
        ("runs/records.py", set()),
        ("execution/run_record.py", set()),
        ("execution/rank.py", set()),
        ("config/catalog.py", set()),
        ("config/spec.py", set()),
        ("config/study.py", set()),
        ("config/grid.py", set()),
        ("runs/identity.py", set()),
        ("analysis/figures/speedup.py", set()),
        ("analysis/tables/winners.py", set()),
    ],
)
def test_code_makes_those_runs_new_that_use_it(package, file, new):
    assert new_runs(package, lambda: edit(package / file)) == new


def test_one_character_of_the_algorithm_counts(package):
    ring = package / "exchange/ring.py"
    assert "range(n - 1)" in ring.read_text()
    assert new_runs(package, lambda: ring.write_text(ring.read_text().replace("range(n - 1)", "range(n - 2)", 1))) == (
        using("ring")
    )


def test_words_that_say_what_an_exchange_does_make_nothing_new(package):
    files = [package / "exchange" / f"{name}.py" for name in ("nccl", "ring", "sharded_server")]

    def word(line: str) -> str:
        return line.split(" = ")[0]

    lines = {file: file.read_text().splitlines() for file in files}
    assert {word(line) for those in lines.values() for line in those} >= set(syntax.WORDS)

    def unsaid() -> None:
        for file, those in lines.items():
            file.write_text("".join(f"{line}\n" for line in those if word(line) not in syntax.WORDS))

    assert new_runs(package, unsaid) == set()


def test_an_importer_of_a_changed_file_is_new_too(package):
    importer = package / "exchange/mpi_allreduce.py"
    edit(importer, "\n\ndef _later() -> None:\n    from .ring import make as ring  # noqa: F401\n")
    assert new_runs(package, lambda: edit(package / "exchange/ring.py")) == using("ring") | using("mpi_allreduce")


def test_the_measurement_version_makes_all_new(package):
    file = package / "runs/identity.py"
    line = f"MEASUREMENT_VERSION = {identity.MEASUREMENT_VERSION}\n"
    assert line in file.read_text()
    assert new_runs(package, lambda: file.write_text(file.read_text().replace(line, "MEASUREMENT_VERSION = 99\n"))) == (
        set(RUNS)
    )


def test_an_edit_that_is_reverted_finds_the_old_runs(package):
    before, ring = hashes(package), package / "exchange/ring.py"
    text = ring.read_text()
    assert new_runs(package, lambda: edit(ring)) == using("ring")
    ring.write_text(text)
    assert hashes(package) == before


def test_a_new_file_and_a_new_field_make_nothing_new(package):
    def add() -> None:
        shutil.copy(package / "models/mlp.py", package / "models/third.py")
        text = (package / "config/spec.py").read_text()
        line = '    device: Device | None = Field(None, description="null: a GPU where there is one, else the CPU")\n'
        assert line in text
        (package / "config/spec.py").write_text(text.replace(line, line + '    compression: str = "none"\n'))

    assert new_runs(package, add) == set()


SEEN = {
    "a.py": "import ddp_hpc.b as other\nimport os, ddp_hpc.pack.plain\n",
    "b.py": "def later():\n    from ddp_hpc import c\n",
    "c.py": "from ddp_hpc.pack import inner, nothing\nfrom .d import x as y\n",
    "d.py": "import ddp_hpc.a\nif TYPE_CHECKING:\n    from . import e\n",
    "e.py": "from ddp_hpc import records\nimport ddp_hpc.profiling.timers\n",
    "pack/__init__.py": "",
    "pack/plain.py": "from .. import f\n",
    "pack/inner.py": "from . import sibling\nfrom .deep.down import thing\n",
    "pack/sibling.py": "",
    "pack/deep/__init__.py": "",
    "pack/deep/down.py": "from ...g import thing\n",
    "f.py": "import numpy\n",
    "g.py": "",
    "records.py": "import ddp_hpc.unseen\n",
    "profiling/__init__.py": "",
    "profiling/timers.py": "",
    "unseen.py": "",
}


def test_the_closure_follows_every_way_to_import_ours(tmp_path, monkeypatch):
    root = tmp_path / "ddp_hpc"
    for name, text in SEEN.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(catalog, "PACKAGE", root)
    followed = identity.closure([root / "a.py"], ("records.py", "profiling/"))
    assert set(followed) == SEEN.keys() - {"records.py", "profiling/__init__.py", "profiling/timers.py", "unseen.py"}
    assert identity.closure([root / "a.py"]).keys() == SEEN.keys()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = 1", "x = 2"),
        ("x = 1", "x = 1.0"),
        ("x = True", "x = 1"),
        ("x = 'a'", "x = b'a'"),
        ("def f(): return", "def f(): return 0"),
        ("def f(a, b): pass", "def f(a, *, b): pass"),
        ("def f(a, b=None): pass", "def f(a=None, b=None): pass"),
        ("x = a[1:]", "x = a[:1]"),
        ("x = {1: 2, **a}", "x = {**a, 1: 2}"),
        ("x = f'{a}'", "x = f'{a!r}'"),
        ("x: int = 1", "x: float = 1"),
        ("@a\ndef f(): pass", "def f(): pass"),
        ("async def f(): pass", "def f(): pass"),
        ("for a in b: pass", "async def f():\n  async for a in b: pass"),
        ("x = a < b", "x = a > b"),
        ("x = not a", "x = -a"),
        ("import a", "import a as b"),
        ("from . import a", "from .. import a"),
        ("def f():\n  yield 1", "def f():\n  yield from 1"),
        ("def f():\n  'doc'\n  return 'text'", "def f():\n  'doc'\n  return 'other'"),
    ],
)
def test_another_meaning_is_another_hash(tmp_path, one, other):
    (tmp_path / "one.py").write_text(one)
    (tmp_path / "other.py").write_text(other)
    assert identity.file_hash(tmp_path / "one.py") != identity.file_hash(tmp_path / "other.py")


def test_what_python_versions_parse_differently_is_the_same():
    """3.12 ends the format of `f"{a:{b}}"` with an empty text; 3.11 and 3.13 do not."""
    here, there = ast.parse("x = f'{a:{b}}'"), ast.parse("x = f'{a:{b}}'")
    (spec_of_format,) = [node.format_spec for node in ast.walk(there) if getattr(node, "format_spec", None)]
    spec_of_format.values = [part for part in spec_of_format.values if not isinstance(part, ast.Constant)]
    spec_of_format.values.append(ast.Constant(""))
    assert syntax.dump(there) == syntax.dump(here)
    assert syntax.dump(here) != syntax.dump(ast.parse("x = f'{a:{b} }'"))


def test_a_run_name_falls_into_its_parts():
    one = spec.load(RUNS["mlp/ring"] | {"learning_rate": 1e-5})
    run = identity.run_id(one)
    readable, spec_hash, code_hash = identity.parts(run)
    assert (readable, spec_hash, code_hash) == (one.readable, one.hash, identity.code_hash(one))
    assert len(run) < 100
    assert "e-05" in readable, "hyphens in the hint do no harm"
    assert identity.parts("my_notes") == ("my_notes", "", "")
