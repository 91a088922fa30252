"""A file is replaced whole or not at all."""

import pytest

from ddp_hpc.system.files import read_json, replaced, write_json


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


@pytest.mark.parametrize("text", [None, "", "{", "[1]", '"a"'])
def test_what_is_no_object_reads_as_an_empty_one(tmp_path, text):
    if text is not None:
        (tmp_path / "a.json").write_text(text)
    assert read_json(tmp_path / "a.json") == {}


def test_an_object_is_read_as_it_was_written(tmp_path):
    write_json(tmp_path / "a.json", {"step": 3, "loss": 0.1, "why": None})
    assert read_json(tmp_path / "a.json") == {"step": 3, "loss": 0.1, "why": None}
