"""A file is replaced whole or not at all."""

import os

import pytest
from sandbox import half_written

from ddp_hpc.system.files import read_json, remove_temporaries, replaced, write_json


def fail_halfway(file):
    with replaced(file) as temporary:
        temporary.write_text("half")
        raise OSError("disk full")


def test_a_file_is_replaced_only_once_it_is_whole(tmp_path):
    file = tmp_path / "page.html"
    with replaced(file) as temporary:
        temporary.write_text("new")
        assert not file.exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(OSError, match="disk full"):
        fail_halfway(file)
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("page.html", "new")]


def test_only_what_a_dead_process_of_this_host_has_half_written_is_removed(tmp_path):
    (tmp_path / "tables").mkdir()
    dead = half_written(tmp_path / "tables" / "runs.csv")
    kept = [dead.with_name(dead.name.replace(f"{os.uname().nodename}-", "another-host-")), tmp_path / ".mine.tmp"]
    for file in kept:
        file.write_text("half")
    with replaced(tmp_path / "runs.md") as live:
        live.write_text("half")
        remove_temporaries(tmp_path)
        assert live.exists()
    assert [dead.exists(), *(file.exists() for file in kept)] == [False, True, True]


@pytest.mark.parametrize("text", [None, "", "{", "[1]", '"a"'])
def test_what_is_no_object_reads_as_an_empty_one(tmp_path, text):
    if text is not None:
        (tmp_path / "a.json").write_text(text)
    assert read_json(tmp_path / "a.json") == {}


def test_an_object_is_read_as_it_was_written(tmp_path):
    write_json(tmp_path / "a.json", {"step": 3, "loss": 0.1, "why": None})
    assert read_json(tmp_path / "a.json") == {"step": 3, "loss": 0.1, "why": None}
