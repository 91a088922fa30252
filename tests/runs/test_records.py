"""Records are whole or not there, have one schema whatever the machine, and what is missing is null."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ddp_hpc.config.spec import RunSpec
from ddp_hpc.profiling.phase_names import PHASES
from ddp_hpc.runs import records
from ddp_hpc.runs.records import RecordError
from ddp_hpc.runs.schema import RUN, SCHEMA_VERSION, SCHEMAS, STEPS
from ddp_hpc.runs.statuses import FAILED, FINISHED, STATUSES


def write_run(folder: Path, **columns: object) -> Path:
    """A record of a run in its folder, with `run` as the folder's name."""
    file = folder / "run.parquet"
    records.write(
        "run", {name: [value] for name, value in {"run": folder.name, "status": "ok", **columns}.items()}, file
    )
    return file


def test_a_column_that_is_null_in_one_file_merges_with_numbers_in_another(tmp_path):
    """A CPU run, which has no energy, beside a GPU run: the column is float64 with a null, never 0."""
    cpu = write_run(tmp_path / "cpu", train_s=1.5)
    gpu = write_run(tmp_path / "gpu", train_s=0.5, energy_j=12.0, oversubscribed=False)
    merged, problems = records.read_runs([cpu, gpu])
    assert not problems
    assert merged.schema.field("energy_j").type == pa.float64()
    assert merged["energy_j"].to_pylist() == [None, 12.0]
    assert merged["oversubscribed"].to_pylist() == [None, False]
    assert merged["run"].to_pylist() == ["cpu", "gpu"]


def test_many_records_become_one_table_in_their_order_and_in_few_pieces(tmp_path, monkeypatch):
    """A piece of one row takes far more memory than its values."""
    monkeypatch.setattr(records, "_PIECES", 3)
    files = [write_run(tmp_path / str(number), train_s=float(number)) for number in range(11)]
    merged, problems = records.read_runs(files)
    assert not problems
    assert merged["train_s"].to_pylist() == list(range(11))
    assert merged["train_s"].num_chunks <= 4


def test_chosen_rows_are_read_from_all_row_groups(tmp_path):
    file, ranks = tmp_path / "steps.parquet", {"rank": [0, 1], "warm_up": [False, False]}
    records.write_pieces("steps", [{"step": [step, step], **ranks} for step in (1, 2, 3)], file)
    read = records.read("steps", file, ["step", "rank"], pc.field("rank") == 1)
    assert read.to_pydict() == {"step": [1, 2, 3], "rank": [1, 1, 1]}
    records.write("steps", {}, file)
    assert records.read("steps", file, ["step", "rank"], pc.field("rank") == 1).num_rows == 0


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_file_has_the_same_columns_and_says_their_units(tmp_path, kind):
    records.write(kind, {}, tmp_path / "empty.parquet")
    read = records.read(kind, tmp_path / "empty.parquet")
    assert read.num_rows == 0
    assert read.schema.names == SCHEMAS[kind].names
    for column in read.schema:
        assert set(column.metadata) == {b"unit", b"meaning"}
        assert column.metadata[b"meaning"]
        if column.name.endswith("_s") and not column.name.endswith("_per_s"):
            assert column.metadata[b"unit"] in (b"s", b"loss x s"), column.name


def test_a_run_record_holds_every_field_of_a_spec():
    fields = {"model": "mlp", "dataset": "digits", "exchange": "ring", "world_size": 1, "batch_size": 1}
    one = RunSpec.model_validate(fields | {"learning_rate": 1, "budget": {"steps": 1}})
    assert set(one.columns()) <= set(RUN.names)
    table = pa.Table.from_pylist([one.columns()], schema=RUN)
    assert table.to_pylist()[0]["world_size"] == 1


def test_phases_stand_in_runs_and_in_steps():
    for schema in (RUN, STEPS):
        assert [name for name in schema.names if name in PHASES] == list(PHASES)


def test_what_was_not_measured_is_null(tmp_path):
    file = tmp_path / "steps.parquet"
    records.write("steps", {"step": [1, 2], "loss": [0.5, float("nan")], "t_s": [0.1, math.inf]}, file)
    read = records.read("steps", file)
    assert read["loss"].to_pylist() == [0.5, None]
    assert read["t_s"].to_pylist() == [0.1, math.inf]
    assert read["h2d_s"].to_pylist() == [None, None]


NAN = math.nan


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("steps", [2**62 + 1]),
        ("steps", [None]),
        ("step", np.arange(9)),
        ("step", np.array([1.0, NAN])),
        ("t_s", [1.5, None, NAN, 2, np.float32(0.1)]),
        ("t_s", np.arange(20.0)[::2]),
        ("t_s", np.array([NAN, 2.5], dtype=np.float32)),
        ("t_s", [math.inf, -0.0]),
        ("t_s", []),
        ("warm_up", np.array([True] * 9 + [False])),
        ("warm_up", [True, None, np.False_]),
        ("run", ["ä", None, "", "b" * 300]),
        ("run", np.array(["x", "yy"])),
        ("run", []),
    ],
)
def test_values_are_stored_as_arrow_itself_would(column, values):
    kind = (STEPS if column in STEPS.names else RUN).field(column).type
    stored = records._array(values, kind)
    stored.validate(full=True)
    assert stored.equals(pa.array(values, type=kind, from_pandas=True))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("steps", 1.5),
        ("step", 2**40),
        ("warm_up", 2),
        ("t_s", "1.5"),
        ("run", 1),
        ("steps", True),
        ("t_s", True),
        ("warm_up", 1),
        ("t_s", 2**53 + 1),
    ],
)
def test_a_value_that_a_column_has_no_room_for_is_an_error(column, value):
    with pytest.raises(pa.ArrowInvalid, match="expected: values of type"):
        records._array([value], (STEPS if column in STEPS.names else RUN).field(column).type)


def test_writing_a_record_does_not_import_pandas(tmp_path):
    """A rank would wait for that at the end of every run."""
    code = (
        "import sys; from pathlib import Path; from ddp_hpc.runs import records\n"
        "records.write('run', {'run': ['a'], 'train_s': [1.0], 'steps': [3], 'oversubscribed': [True]}, "
        "Path(sys.argv[1]))\nprint('pandas' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code, tmp_path / "run.parquet"], stdout=subprocess.PIPE, text=True)
    assert said.stdout == "False\n"


def test_metadata_comes_back(tmp_path):
    notes = {"provenance": {"torch": "2.13", "gpus": [], "é": None}, "files": {"training/trainer.py": "ab"}}
    records.write("run", {"run": ["a"]}, tmp_path / "run.parquet", notes)
    assert records.read_metadata(tmp_path / "run.parquet") == notes


def test_a_column_that_the_schema_lacks_is_refused(tmp_path):
    with pytest.raises(KeyError, match="no column \\['colour'\\] in run records; expected: run, spec_hash"):
        records.write("run", {"run": ["a"], "colour": ["red"]}, tmp_path / "run.parquet")
    assert list(tmp_path.iterdir()) == []


def test_columns_of_unequal_length_and_wrong_type_leave_nothing_behind(tmp_path):
    for columns in ({"step": [1, 2], "rank": [0]}, {"step": ["one"]}):
        with pytest.raises(pa.ArrowException):
            records.write("steps", columns, tmp_path / "steps.parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_rerun_replaces_and_never_appends(tmp_path):
    file = write_run(tmp_path / "a", steps=10)
    write_run(tmp_path / "a", steps=20)
    assert records.read("run", file)["steps"].to_pylist() == [20]
    assert os.listdir(file.parent) == ["run.parquet"]


WRITER = """
import sys
from pathlib import Path
from ddp_hpc.runs import records
rows, file = int(sys.argv[1]), Path(sys.argv[2])
print("ready", flush=True)
for turn in range(10_000):
    records.write("steps", {"step": list(range(rows)), "rank": [turn % 100] * rows}, file)
"""


def test_readers_never_see_half_a_file_while_writers_write_and_are_killed(tmp_path):
    file = tmp_path / "steps.parquet"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(rows), str(file)], stdout=subprocess.PIPE)
        for rows in (1_000, 30_000)
    ]
    try:
        for writer in writers:
            assert writer.stdout.readline() == b"ready\n"
        began, seen = time.monotonic(), set()
        while (took := time.monotonic() - began) < 2 or (len(seen) < 2 and took < 60):
            if file.exists():
                table = records.read("steps", file)
                assert table.num_rows in (1_000, 30_000)
                assert len(set(table["rank"].to_pylist())) == 1, "of one writer"
                seen.add(table.num_rows)
    finally:
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            writer.stdout.close()
    assert seen == {1_000, 30_000}
    assert records.read("steps", file).num_rows in seen


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "folder"])
def test_an_unreadable_record_is_named_with_its_run_and_the_others_are_read(tmp_path, damage):
    good = write_run(tmp_path / "good")
    bad = write_run(tmp_path / "ring-w2-abc")
    if damage == "cut":
        bad.write_bytes(bad.read_bytes()[:-20])
    elif damage == "folder":
        bad.unlink()
        bad.mkdir()
    else:
        bad.write_bytes(b"" if damage == "empty" else b"not Parquet at all, but longer than twelve bytes")
    table, problems = records.read_runs([good, bad])
    assert table["run"].to_pylist() == ["good"]
    assert problems.keys() == {bad}
    assert f"{bad} (run ring-w2-abc)" in problems[bad]
    assert "delete it and run the study again" in problems[bad]


def test_a_record_of_another_schema_is_told_so(tmp_path):
    file = write_run(tmp_path / "old")
    table = pq.read_table(file)

    def refused(other: pa.Table, metadata: dict[bytes, bytes]) -> str:
        pq.write_table(other.replace_schema_metadata(metadata), file)
        with pytest.raises(RecordError) as error:
            records.read("run", file)
        assert str(file) in str(error.value)
        return str(error.value)

    ours = dict(table.schema.metadata)
    older = refused(table, ours | {b"ddp_hpc.schema": b"run/0"})
    assert f"has schema run/0, this version of ddp-hpc reads run/{SCHEMA_VERSION}" in older
    assert "has schema none" in refused(table, {})
    assert "has schema steps/1" in refused(table, ours | {b"ddp_hpc.schema": b"steps/1"})
    assert "delete it and run the study again" in older


def test_no_records_give_an_empty_table_with_all_columns():
    assert records.read_runs([])[0].schema.names == RUN.names


def test_the_table_of_statuses_is_the_designs():
    """DESIGN: kind and exit code of every status."""
    assert {status: kind for status, (kind, _, _) in STATUSES.items()} == (
        {"ok": "result", "diverged": "finding", "oom_gpu": "finding", "beaten": "finding"}
        | dict.fromkeys(["oom_host", "timeout", "preempted", "node_fail", "launch_failed"], "failure")
        | dict.fromkeys(["crashed", "cancelled", "rejected"], "failure")
        | dict.fromkeys(["missing", "queued", "running"], "not yet")
    )
    for kind, code, retried in STATUSES.values():
        assert (code == 0) == (kind in ("result", "finding"))
        assert (code is None) == (kind == "not yet") == (retried is None)
    assert {"ok", "diverged", "oom_gpu", "beaten"} == FINISHED
    assert {status for status in FAILED if STATUSES[status][2]} == {
        "oom_host",
        "timeout",
        "preempted",
        "node_fail",
        "launch_failed",
    }
