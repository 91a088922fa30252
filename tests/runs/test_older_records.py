"""A record outlives the version that wrote it: new fields of specs have their default, new measurements are null."""

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn import draw, grid
from factory import made_up

from ddp_hpc.analysis.tables import areas, runs, winners
from ddp_hpc.config.spec import COLUMN_DEFAULTS
from ddp_hpc.runs import records
from ddp_hpc.runs.records import RecordError
from ddp_hpc.runs.schema import SCHEMAS
from ddp_hpc.runs.study_runs import StudyRuns

# written before these fields of specs, and before these measurements
FIELDS = ["capture", "precision", "ranks_per_node", "placement", "compile", "momentum", "noise_scale_every_steps"]
MEASUREMENTS = ["energy_j", "core_wait_share", "others_core_share", "placement_verified", "checkpoint_s", "mfu"]
OF_STEPS = ["sampled", "gather_s", "exchange_busy_s", "part_gradient_norm2", "gradient_norm2"]


def rewrite(file, change):
    """Write a record anew as another version would have: `change` takes its table; the metadata stays."""
    table = pq.read_table(file)
    pq.write_table(change(table).replace_schema_metadata(table.schema.metadata), file)


def written_by_an_older_version(study_runs):
    for planned in study_runs.planned:
        rewrite(study_runs.store.file(planned.run), lambda table: table.drop_columns(FIELDS + MEASUREMENTS))
        rewrite(study_runs.store.file(planned.run, "steps"), lambda table: table.drop_columns(OF_STEPS))


def written_by_a_newer_version(study_runs):
    for planned in study_runs.planned:
        for kind in ("run", "steps"):
            rewrite(
                study_runs.store.file(planned.run, kind),
                lambda table: table.add_column(3, "colour", pa.array(["red"] * table.num_rows)).select(
                    ["colour", *reversed(table.column_names)]
                ),
            )


@pytest.mark.parametrize("written", [written_by_an_older_version, written_by_a_newer_version])
def test_records_of_another_version_are_read_judged_and_drawn(tmp_path, written):
    """As if nothing had happened: the same tables and the same words, but for measurements that are not there."""
    now = made_up(tmp_path, grid=[grid(1, "none"), grid([2, 4])], budget={"samples_seen": 3200})
    steps = now.steps(now.planned[0].run)
    expected = {table.__name__: table.build(now) for table in (areas, winners)}

    written(now)

    again = StudyRuns(now.study, now.store, now.planned)
    lost = MEASUREMENTS if written is written_by_an_older_version else []
    pd.testing.assert_frame_equal(again.runs.drop(columns=lost), now.runs.drop(columns=lost))
    assert again.runs[lost].isna().all(axis=None)
    lost = OF_STEPS if written is written_by_an_older_version else []
    pd.testing.assert_frame_equal(again.steps(now.planned[0].run).drop(columns=lost), steps.drop(columns=lost))
    for table in (areas, winners):
        pd.testing.assert_frame_equal(table.build(again), expected[table.__name__])
    assert runs.build(again)["run"].tolist() == runs.build(now)["run"].tolist()
    frames = {"areas": areas.build(again), "winners": winners.build(again)}
    assert len(draw((again, frames), "heat_map", "heat_map").axes) > 1


def test_old_and_new_records_stand_in_one_table(tmp_path):
    """The field that came later is an axis now: old runs have its default, as they were trained."""
    both = made_up(tmp_path, grid=[grid([1, 2], precision=["full", "bfloat16"])], budget={"samples_seen": 3200})
    for planned in both.planned:
        if planned.spec.precision == "full":
            rewrite(both.store.file(planned.run), lambda table: table.drop_columns(["precision", "energy_j"]))
    again = StudyRuns(both.study, both.store, both.planned)
    assert again.runs["precision"].tolist() == [planned.spec.precision for planned in both.planned]
    pd.testing.assert_frame_equal(winners.build(again), winners.build(both))


@pytest.mark.parametrize("kind", SCHEMAS)
def test_what_a_file_of_any_kind_lacks_is_its_default_or_null(tmp_path, kind):
    file, names = tmp_path / f"{kind}.parquet", SCHEMAS[kind].names
    records.write(kind, {name: [None] for name in names}, file)
    rewrite(file, lambda table: table.select(names[:1]))
    read = records.read(kind, file)
    assert read.schema.equals(SCHEMAS[kind])
    assert read.to_pylist() == [{name: COLUMN_DEFAULTS.get(name) for name in names}]
    assert records.read(kind, file, names[-2:]).column_names == names[-2:]


def test_numbers_of_another_width_are_read_and_words_for_numbers_are_not(tmp_path):
    file = tmp_path / "ring-w2-abc" / "run.parquet"
    records.write("run", {"run": ["ring-w2-abc"], "steps": [20], "train_s": [2.0]}, file)

    def put(name, values):
        rewrite(file, lambda table: table.set_column(table.column_names.index(name), name, values))

    put("steps", pa.array([20], pa.int32()))
    put("train_s", pa.array([2], pa.int64()))
    read = records.read("run", file)
    assert read.schema.equals(SCHEMAS["run"])
    assert (read["steps"].to_pylist(), read["train_s"].to_pylist()) == ([20], [2.0])

    put("steps", pa.array(["many"]))
    with pytest.raises(RecordError, match=r"ring-w2-abc.*'steps'.*int64.*delete it and run the study again"):
        records.read("run", file)
