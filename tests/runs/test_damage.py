"""Damage to one file of a run costs that run alone, is named with its file, and is mended by the next training."""

import itertools
import json
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
from factory import planned, realistic, write_records

from ddp_hpc.analysis import tables
from ddp_hpc.analysis.report import page
from ddp_hpc.runs import records
from ddp_hpc.runs.attempt import RECORDS, RunFolder
from ddp_hpc.runs.state import state_of
from ddp_hpc.runs.study_runs import StudyRuns
from ddp_hpc.workflow import plan, resource_requests, status

DAMAGES = ("missing", "empty", "truncated", "random", "doubled", "one byte", "swapped", "directory", "dangling link")
CASES = list(itertools.product(RECORDS, DAMAGES))  # each is done to a run of its own; the first run stays whole
RATES = [round(0.01 * number, 2) for number in range(1, len(CASES) + 2)]
GRID = [{"exchange": "none", "world_size": 1, "batch_size": 16, "learning_rate": RATES}]
JOURNAL = [
    *(
        f"attempts/1/{name}.json"
        for name in ["started", "launch", "progress", "rank-0", "interrupted", "summary", "ended", "slurm_end"]
    ),
    *("spec.json", "request.json", "seal.json", "checkpoint/checkpoint.json"),
]


def train(study_runs: StudyRuns, index: int) -> None:
    """Leave what a training leaves, through the same door."""
    one = study_runs.planned[index]
    attempt = study_runs.store.run(one.run).new_attempt()
    attempt.started = {"at": "2026-01-31T08:00:00+00:00", "host": "node1", "pid": 4, "process_created": 5.0}
    write_records(attempt.path, one, realistic(one.spec), run=one.run)
    for kind in ("evaluations", "gpu"):
        records.write(kind, {}, attempt.record(kind), {"run": one.run})
    attempt.publish()
    attempt.ended = {"status": "ok", "reason": None, "wall_s": 2.0 + index, "train_s": 1.0, "steps": 20}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The results of a study whose runs have all ended well."""
    folder = tmp_path_factory.mktemp("whole")
    study_runs = planned(folder, grid=GRID)
    plan.prepare(study_runs)
    for index in range(len(RATES)):
        train(study_runs, index)
    assert {item.action for item in plan.plan(study_runs)} == {"kept"}
    assert status.check(study_runs) == {}
    return folder


@pytest.fixture
def study_runs(whole, tmp_path) -> StudyRuns:
    """A copy of them, whose files have other dates."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True, copy_function=shutil.copyfile)
    return planned(tmp_path, grid=GRID)


def spoil(file: Path, damage: str, other: Path) -> None:
    """Damage a file in one of the ways that disks, people and programs have."""
    content = file.read_bytes() if file.is_file() else b'{"status": "ok"}'
    file.unlink(missing_ok=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    if damage == "directory":
        (file / "inner").mkdir(parents=True)
    elif damage == "dangling link":
        file.symlink_to("nowhere")
    elif damage != "missing":
        flipped = content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 0xFF])
        file.write_bytes(
            {
                "empty": b"",
                "truncated": content[:-9],
                "random": bytes(range(128, 256)) * 3,
                "doubled": content + content,
                "one byte": flipped + content[len(flipped) :],
                "swapped": other.read_bytes() if other.is_file() else b"[]",
                "list": b"[1, 2]",
                "nested": b"[" * 100_000,
            }[damage]
        )


def folders(study_runs: StudyRuns) -> list[RunFolder]:
    return [study_runs.store.run(one.run) for one in study_runs.planned]


def again(study_runs: StudyRuns) -> StudyRuns:
    """The same study, as the next process sees it."""
    return planned(study_runs.store.root.parent, grid=GRID)


def table(study_runs: StudyRuns) -> pd.DataFrame:
    frame = pd.read_parquet(tables.make("runs", again(study_runs), study_runs.store.root / "tables"))
    return frame.drop(columns=["attempts"])


def test_a_damaged_record_costs_its_run_alone_and_is_made_again(study_runs):
    before = table(study_runs)
    first, *spoilt = folders(study_runs)
    stamps = [one.stamps() for one in spoilt]
    for one, (kind, damage) in zip(spoilt, CASES, strict=True):
        spoil(one.record(kind), damage, first.record(kind))

    assert all(one.stamps() != old for one, old in zip(spoilt, stamps, strict=True)), "tables are made again"
    for found in (study_runs, again(study_runs)):
        assert [item.will_run for item in plan.plan(found)] == [False] + [True] * len(CASES)
    rows = status.overview(study_runs)["runs"]
    assert [row["status"] for row in rows] == ["ok"] + ["missing"] * len(CASES)
    items, checked = plan.plan(study_runs), status.check(study_runs)
    for one, row, item, case in zip(spoilt, rows[1:], items[1:], CASES, strict=True):
        if case != ("run", "missing"):
            assert str(one.record(case[0])) in row["reason"]
            assert row["reason"] == item.reason
            assert checked[one.path.name] in row["reason"]
    now = table(study_runs)
    pd.testing.assert_frame_equal(now[:1], before[:1])
    assert now["final_loss"][1:].isna().all()

    plan.prepare(study_runs)
    assert not any(one.has_record for one in spoilt), "Snakemake would take it for a result"
    for index in range(1, len(RATES)):
        train(study_runs, index)
    assert {item.action for item in plan.plan(again(study_runs))} == {"kept"}
    assert status.check(study_runs) == {}
    assert len(table(study_runs).dropna(subset="final_loss")) == len(RATES)


def test_the_page_names_the_damaged_file(study_runs):
    folders(study_runs)[1].record("steps").write_bytes(b"")
    table(study_runs)
    text = page.make(study_runs, study_runs.store.root).read_text()
    assert f"{len(CASES)} of {len(RATES)} runs, 1 missing" in text
    assert "steps.parquet is damaged: given 0 bytes" in text


def test_other_numbers_under_the_old_date_are_found_by_a_check_and_then_by_all(study_runs):
    file = folders(study_runs)[1].record("steps")
    assert status.check(study_runs) == {}
    date = file.stat().st_mtime_ns
    spoil(file, "one byte", file)
    os.utime(file, ns=(date, date))
    assert not plan.plan(study_runs)[1].will_run
    assert status.check(study_runs) == {
        file.parent.name: f"{file} is damaged: it has other content than its run has left"
    }
    assert [item.will_run for item in plan.plan(study_runs)].index(True) == 1


def test_records_without_a_seal_are_judged_by_their_footers_and_sealed_by_a_check(study_runs):
    """Those of older versions."""
    first, *spoilt = folders(study_runs)
    for one in (first, *spoilt):
        (one.path / "seal.json").unlink()
    assert {item.action for item in plan.plan(study_runs)} == {"kept"}
    damages = ("missing", "empty", "truncated", "random", "directory", "swapped")
    cases = dict(zip(spoilt, itertools.product(("run", "steps"), damages), strict=False))
    for one, (kind, damage) in cases.items():
        spoil(one.record(kind), damage, first.record(kind))
    assert sum(item.will_run for item in plan.plan(study_runs)) == len(cases)
    assert len(status.check(study_runs)) == len(cases) - 1, "where run.parquet is missing nothing is damaged"
    assert first.sealed
    spoil(first.record("steps"), "one byte", first.record("steps"))
    assert plan.plan(study_runs)[0].will_run


def test_a_record_of_two_runs_is_told_so(study_runs):
    one = folders(study_runs)[1]
    (one.path / "seal.json").unlink()
    records.write("run", {"run": [one.path.name] * 2, "status": ["ok"] * 2}, one.record())
    assert "has 2 rows" in status.overview(study_runs)["runs"][1]["reason"]
    assert table(study_runs)["status"].tolist() == ["ok", "missing"] + ["ok"] * (len(RATES) - 2)


def answers(study_runs: StudyRuns, touched: int = 1) -> None:
    """Ask all that reads the journal; the runs after the `touched` ones are as they were."""
    plan.plan(study_runs)
    found = status.overview(study_runs)
    status.lines(study_runs, found)
    for one in folders(study_runs):
        resource_requests.past(study_runs.store, one.path.name)
        for attempt in one.attempts:
            assert isinstance(attempt.reports, list)
    assert {row["status"] for row in found["runs"][touched:]} <= {"ok"}


def unfinished(study_runs: StudyRuns) -> None:
    for one in folders(study_runs):
        one.record().unlink()
        (one.path / "attempts" / "1" / "ended.json").unlink()


@pytest.mark.parametrize("finished", [True, False])
def test_a_damaged_file_of_the_journal_is_named_and_left_out(study_runs, finished, capsys):
    if not finished:
        unfinished(study_runs)
    for name in JOURNAL:
        damages = ("empty", "random", "list", "nested", "directory")
        for one, damage in zip(folders(study_runs), damages, strict=False):
            spoil(one.path / name, damage, one.path / name)
        answers(study_runs, len(damages) if finished else len(RATES))
        if name == "attempts/1/started.json":
            told = capsys.readouterr().err
            assert all(f"{one.path / name} is left out" in told for one in folders(study_runs)[: len(damages)])
        for one in folders(study_runs)[: len(damages)]:
            shutil.rmtree(one.path / name) if (one.path / name).is_dir() else (one.path / name).unlink()


@pytest.mark.parametrize("finished", [True, False])
def test_other_types_than_programs_write_are_left_out(study_runs, finished):
    if not finished:
        unfinished(study_runs)
    keys = "status at host pid process_created slurm_job request step steps_asked eta_s loss wall_s train_s steps rank"
    keys += " message reason memory_bytes run spec files records world_size nodes"
    for value in (3, -1, "²", [], {"nodes": "x"}, None, True, 10**400, float("nan"), {}):
        for one, key in zip(folders(study_runs), keys.split(), strict=False):
            text = json.dumps({"status": "ok", "host": "h", "rank": 0, "message": "m"} | {key: value})
            for name in JOURNAL:
                (one.path / name).parent.mkdir(exist_ok=True)
                (one.path / name).write_text(text)
        answers(study_runs, len(RATES))


def test_what_is_no_attempt_is_named_and_left_out(study_runs, capsys):
    names = {"²": False, "07": False, "0": True, "-1": False, "x": False, "9": True, "10": True}
    strays = {one: one.path / "attempts" / name for one, name in zip(folders(study_runs), names, strict=False)}
    for stray in strays.values():
        stray.write_text("a file") if names[stray.name] else stray.mkdir()
    answers(study_runs, 0)
    told = capsys.readouterr().err
    for one, stray in strays.items():
        assert f"{stray} is left out" in told
        assert [attempt.number for attempt in one.attempts] == [1]
        assert one.new_attempt().number == 2


def test_a_file_in_the_place_of_a_folder_is_moved_aside(study_runs):
    names = ("attempts", "checkpoint", "trace", ".")
    for one, name in zip(folders(study_runs), names, strict=False):
        one.record().unlink()
        shutil.rmtree(one.path / name, ignore_errors=True)
        (one.path / name).write_text("a file")
    answers(study_runs, len(names))
    plan.prepare(study_runs)
    for index in range(len(names)):
        train(study_runs, index)
    assert {item.action for item in plan.plan(study_runs)} == {"kept"}


def test_a_stray_folder_beside_the_runs_stops_nothing(study_runs, capsys):
    named = {"name": []}
    specs = {}, [], None, {"model": 3, "dataset": "digits"}, {"model": named, "dataset": {}}, {"model": "mlp"}
    for number, spec in enumerate(specs):
        stray = RunFolder(study_runs.store.runs / f"stray{number}")
        records.write("run", {"run": [stray.path.name], "status": ["ok"]}, stray.record())
        (stray.path / "spec.json").write_text(json.dumps({"spec": spec, "files": {}}))
    (study_runs.store.runs / "empty").mkdir()
    (study_runs.store.runs / "empty" / "run.parquet").write_bytes(b"")
    (study_runs.store.runs / "a file").write_text("")
    folders(study_runs)[0].record().unlink()
    answers(study_runs)
    told = capsys.readouterr().err
    assert f"{study_runs.store.runs / 'empty'} is left out" in told
    assert all(f"stray{number}/spec.json is left out" in told for number in range(len(specs)))
    assert state_of(study_runs.store, study_runs.planned[0].run).status == "missing"
