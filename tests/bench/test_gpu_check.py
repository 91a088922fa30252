"""The check of GPUs: its parts on a CPU, and what it says of parts that crash, hang or miss a goal."""

import json
import os
import re
import time
from pathlib import Path

import pytest

from ddp_hpc.bench import gpu_check
from ddp_hpc.bench.gpu_check import Asked, Findings, Part
from ddp_hpc.cli import main as cli


def crash(asked, tell):
    tell.note("before", 1)
    os.abort()


def fail(asked, tell):
    raise RuntimeError("no such kernel")


def hang(asked, tell):
    while True:
        time.sleep(60)


def well(asked, tell):
    tell.check("all is right", True)


def test_every_part_runs_on_a_cpu_and_finds_nothing_wrong(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "gpu", "--device", "cpu", "--out", str(tmp_path)])
    said = capsys.readouterr().out
    rows = gpu_check.findings(tmp_path / gpu_check.FINDINGS)
    assert {row["part"]: row["ended"] for row in rows if "ended" in row} == {
        part.name: "ok" for part in gpu_check.PARTS
    }, said
    assert not [row for row in rows if row.get("verdict") == gpu_check.WRONG]
    assert {row["verdict"] for row in rows if "goal" in row} == {gpu_check.CPU_ONLY}
    assert ended.value.code == 0
    assert (tmp_path / gpu_check.SUMMARY).read_text() in said


def test_parts_that_crash_or_hang_are_told_and_the_next_one_runs(tmp_path):
    names, here = ("crash", "fail", "hang", "well"), Path(__file__).stem
    parts = [Part(name, 2 if name == "hang" else 60, here) for name in names]
    rows = gpu_check.check(Asked(tmp_path, "cpu", "mpiexec"), 500, parts)
    ended = {row["part"]: row["ended"] for row in rows if "ended" in row}
    assert ended["crash"].startswith("crashed, signal 6")
    assert ended["fail"].startswith("crashed, exit code 1")
    assert "no such kernel" in ended["fail"]
    assert ended["hang"].startswith("killed after 2 s")
    assert ended["well"] == "ok"
    assert {"part": "crash", "what": "before", "measured": 1, "unit": ""} in rows
    assert gpu_check.failed(rows)
    assert all(f"| {name} |" in (tmp_path / gpu_check.SUMMARY).read_text() for name in names)


def test_parts_for_which_there_is_no_time_are_not_begun(tmp_path):
    rows = gpu_check.check(Asked(tmp_path, "cpu", "mpiexec"), 0, [Part("well", 60, "unused")])
    assert [row["ended"] for row in rows] == ["not begun: the time was up"]
    assert not gpu_check.failed(rows)


def test_goals_are_judged_by_the_interval(tmp_path):
    tell = Findings(Asked(tmp_path, "cuda", "mpiexec"), "p")
    for low, high, goal in [
        (31, 40, "at least 30"),
        (20, 29, "at least 30"),
        (20, 40, "at least 30"),
        (1, 3, "at most 2"),
    ]:
        tell.judge("x", (low + high) / 2, low, high, unit="", goal=goal)
    tell.judge("x", 1.0, float("nan"), float("nan"), unit="", goal="at most 2")
    rows = gpu_check.findings(tmp_path / gpu_check.FINDINGS)
    assert [row["verdict"] for row in rows] == ["reached", "missed", *["not told apart"] * 3]
    assert rows[-1]["low"] is None
    assert not gpu_check.failed(rows)
    tell.check("y", False)
    assert gpu_check.failed(gpu_check.findings(tmp_path / gpu_check.FINDINGS))


def test_a_line_that_was_cut_off_does_not_count(tmp_path):
    (tmp_path / "x").write_text(json.dumps({"part": "p", "ended": "ok"}) + '\n{"part": "q", "en')
    assert gpu_check.findings(tmp_path / "x") == [{"part": "p", "ended": "ok"}]


def test_unknown_parts_are_refused_with_those_there_are():
    with pytest.raises(ValueError, match="given speed; expected: machine, right"):
        gpu_check.chosen(["speed"])
    assert [part.name for part in gpu_check.chosen(["clocks"])] == ["machine", "clocks"]


def test_the_documentation_has_all_parts():
    page = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text()
    assert all(f"`{part.name}`" in page for part in gpu_check.PARTS)
    assert all((Path(__file__).parents[2] / file).exists() for file in re.findall(r"`(tests/\S+)`", page))


def test_without_a_gpu_that_is_said(tmp_path):
    with pytest.raises(ValueError, match="given cuda, but torch finds no GPU here"):
        gpu_check.check(Asked(tmp_path, "cuda", "mpiexec"), 60, gpu_check.chosen(["clocks"]))
