"""What code says is read once per content, by whichever process comes first."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_hpc.runs import syntax

SAY = """
import sys
from pathlib import Path
from ddp_hpc.runs import syntax
{before}
print([(code.digest, *code.imports) for code in map(syntax.code_of, map(Path, sys.argv[1:]))])
"""
NONE_IS_READ = "def _read(tree): sys.exit('a syntax tree was made')\nsyntax._read = _read"
FILE = """
import os, sys as system
from .. import above
def f():
    try:
        from ddp_hpc.inner import one, other
    except ImportError:
        match os:
            case 1:
                from . import case
"""


@pytest.fixture
def file(tmp_path) -> Path:
    (tmp_path / "code.py").write_text(FILE)
    return tmp_path / "code.py"


def said(cache: Path, *files: Path, before: str = "") -> str:
    """What a fresh process says of files, with the cache of a user."""
    done = subprocess.run(
        [sys.executable, "-c", SAY.format(before=before), *files],
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.stdout


def test_imports_are_found_wherever_they_stand(file):
    assert syntax.code_of(file).imports == (
        (0, "os", ()),
        (0, "sys", ()),
        (2, "", ("above",)),
        (0, "ddp_hpc.inner", ("one", "other")),
        (1, "", ("case",)),
    )


def test_what_one_process_has_read_the_next_one_knows_also_of_a_file_elsewhere(file, tmp_path):
    first = said(tmp_path, file)
    copy = tmp_path / "copy.py"
    copy.write_text(FILE)
    assert said(tmp_path, copy, before=NONE_IS_READ) == first


def test_an_edit_is_read_and_so_is_everything_when_what_reads_has_changed(file, tmp_path):
    first = said(tmp_path, file)
    other_python = "syntax.sys = type(sys)('sys'); syntax.sys.version_info = (3, 99)"
    file.write_text(FILE + "x = 1\n")
    with pytest.raises(AssertionError, match="a syntax tree was made"):
        said(tmp_path, file, before=NONE_IS_READ)
    assert said(tmp_path, file) != first
    with pytest.raises(AssertionError, match="a syntax tree was made"):
        said(tmp_path, file, before=f"{NONE_IS_READ}\n{other_python}")


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"KEY": 1}', '{"KEY": ["b", [["c"]]]}', '{"other": null}'])
def test_a_damaged_cache_is_replaced(file, tmp_path, content):
    first = said(tmp_path, file)
    (kept,) = (tmp_path / "ddp-hpc").iterdir()
    (key,) = json.loads(kept.read_text())
    kept.write_text(content.replace("KEY", key))
    assert said(tmp_path, file) == first
    assert said(tmp_path, file, before=NONE_IS_READ) == first


def test_without_a_place_for_a_cache_everything_is_read(file, tmp_path):
    assert said(Path("/proc/nowhere"), file) == said(tmp_path, file)


def test_a_cache_does_not_grow_for_ever(file, tmp_path):
    more = [tmp_path / f"{number}.py" for number in range(5)]
    for number, one in enumerate(more):
        one.write_text(f"x = {number}")
    said(tmp_path, *more)
    said(tmp_path, file, before="syntax.MOST_KEPT = 5")
    (kept,) = (tmp_path / "ddp-hpc").iterdir()
    assert len(json.loads(kept.read_text())) == 1
