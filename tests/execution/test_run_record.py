"""From what ranks measured to records: small cases by hand."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from ddp_hpc.config import spec
from ddp_hpc.execution import rank_series as measured
from ddp_hpc.execution import record_columns, run_record
from ddp_hpc.profiling.phase_names import PARTS, PHASES
from ddp_hpc.profiling.timers import Timings
from ddp_hpc.runs import records
from ddp_hpc.runs.attempt import Attempt
from ddp_hpc.system.process import boot_id
from ddp_hpc.training.placement import Placement
from ddp_hpc.training.result import WARM_UP_STEPS, TrainResult

EXCHANGE, DATA = PHASES.index("exchange_exposed_s"), PHASES.index("data_s")


def part(rank, losses, data_s, exchange_s, arrived_ns, hosts=1):
    """One rank; every list is by counted step, the warm-up takes a second per phase."""
    steps = WARM_UP_STEPS + len(losses)
    phases_s = np.zeros((steps, len(PHASES)))
    phases_s[:WARM_UP_STEPS] = 1
    phases_s[WARM_UP_STEPS:, DATA], phases_s[WARM_UP_STEPS:, EXCHANGE] = data_s, exchange_s
    place = Placement(
        rank=rank,
        world_size=2,
        host="a",
        local_rank=rank,
        hosts=hosts,
        blocks=(2,) if hosts == 1 else (1, 1),
        core_set=(0,),
        threads=1,
        cores=2,
        oversubscribed=False,
        verified=None,
    )
    return measured.RankPart(
        losses=np.array([9.0] * WARM_UP_STEPS + losses),
        timings=Timings(
            phases_s=phases_s,
            parts_s=np.zeros((steps, len(PARTS))),
            overlapped_s=np.zeros(steps),
            arrived_ns=np.array([-1] * WARM_UP_STEPS + arrived_ns),
            fused=np.zeros(steps, dtype=bool),
            starts=np.empty((0, 2), np.int64),
        ),
        placement=place,
        peak_memory_bytes=100 * (rank + 1),
        startup={"import_s": 1.0 + rank},
        facts={},
        metrics={},
    )


def two_ranks(losses=(1.0, 3.0), **fields):
    return [
        part(0, [losses[0], 2.0], [1.0, 1.0], [3.0, 1.0], [1_000_000_000, 5_000_000_000], **fields),
        part(1, [losses[1], 1.0], [3.0, 1.5], [1.0, 0.2], [3_000_000_000, 5_500_000_000], **fields),
    ]


def test_a_step_ends_when_the_slowest_rank_ends_it():
    curve = measured.curves(two_ranks())
    assert curve.t_s == pytest.approx([4.0, 6.0])  # rank 0: 4, 6; rank 1: 4, 5.7
    assert curve.losses == pytest.approx([2.0, 1.5])


def test_waiting_lasts_until_the_last_rank_arrives_and_never_longer_than_the_exchange():
    curve = measured.curves(two_ranks())
    assert curve.wait_s[curve.counted] == pytest.approx(np.array([[2.0, 0.0], [0.5, 0.0]]))
    columns = record_columns.step_columns(curve)
    assert columns["move_s"][-4:] == pytest.approx([1.0, 1.0, 0.5, 0.2])
    late = [part(0, [1.0], [1.0], [0.3], [0]), part(1, [1.0], [1.0], [0.3], [900_000_000])]
    assert measured.curves(late).wait_s[-1] == pytest.approx([0.3, 0.0])


def test_waiting_is_null_where_clocks_cannot_be_compared():
    curve = measured.curves(two_ranks(hosts=2))
    columns = record_columns.step_columns(curve)
    assert np.isnan(columns["wait_s"]).all()
    assert np.isnan(columns["move_s"]).all()
    assert columns["exchange_exposed_s"][-4:] == pytest.approx([3.0, 1.0, 1.0, 0.2])


def test_a_diverged_curve_ends_with_its_first_broken_step():
    parts = [
        part(0, [1.0, np.inf, 3.0], [1.0] * 3, [0.0] * 3, [0] * 3),
        part(1, [2.0, 2.0, np.nan], [1.0] * 3, [0.0] * 3, [0] * 3),
    ]
    curve = measured.curves(parts)
    assert len(curve.losses) == 2
    assert measured.reason_of(curve) == "loss is inf at step 2 (rank 0)"


TWO_RANKS = spec.load(
    {
        "model": "mlp",
        "dataset": "digits",
        "exchange": "ring",
        "world_size": 2,
        "batch_size": 10,
        "learning_rate": 0.1,
        "budget": {"steps": 2},
    }
)
LAUNCH = {"run": "r", "spec_hash": "s", "code_hash": "c", "launched_on": boot_id(), "launched_ns": 100 * 10**9}


def ended(**fields):
    times = {"time_zero_ns": 110 * 10**9, "ended_ns": 120 * 10**9}
    given = {"evaluations": [(2, 0.9, 0.3)], "metric_name": "accuracy", "device": "cpu"} | fields
    return TrainResult(**times | {"own_metrics": [{}] * len(given["evaluations"])} | given)


def make_row(parts, **result):
    filled = ended(**result)
    return record_columns.run_columns(LAUNCH, TWO_RANKS, filled, parts, measured.curves(parts))


def test_the_row_of_a_run_by_hand():
    row = make_row(two_ranks())
    assert (row["startup_s"], row["wall_s"], row["import_s"]) == (10.0, 20.0, 2.0)
    assert (row["train_s"], row["steps"], row["samples_seen"]) == (pytest.approx(6.0), 2, 40)
    assert row["samples_per_s"] == pytest.approx(40 / 6)
    assert row["step_s"] == pytest.approx((4.0 + 2.0) / 2)
    assert row["data_s"] == pytest.approx((2.0 + 1.25) / 2)  # mean over ranks, then median over steps
    assert (row["first_loss"], row["min_loss"], row["final_loss"]) == (2.0, 1.5, 1.5)
    assert row["loss_area_loss_s"] == pytest.approx(2.0 * 4.0 + (2.0 + 1.5) / 2 * 2.0)
    assert (row["test_metric"], row["peak_memory_bytes"]) == (0.9, 200)


def test_phases_of_steps_in_one_graph_are_null_and_medians_are_those_of_the_sampled():
    parts = two_ranks()
    for one in parts:
        one.timings.fused[WARM_UP_STEPS + 1] = True
        one.timings.phases_s[WARM_UP_STEPS + 1] = 0
        one.timings.phases_s[WARM_UP_STEPS + 1, PHASES.index("rest_s")] = 0.5
    columns = record_columns.step_columns(measured.curves(parts))
    assert columns["sampled"].tolist() == [False] * 2 * WARM_UP_STEPS + [True] * 2 + [False] * 2
    for name in (*PHASES, "exchange_busy_s"):
        assert np.isnan(columns[name][-2:]).all()
        assert not np.isnan(columns[name][:-2]).any()
    assert columns["step_s"].tolist()[-4:] == [4.0, 4.0, 0.5, 0.5]
    row = make_row(parts)
    assert (row["data_s"], row["rest_s"]) == (2.0, 0.0)  # of step 1, mean over ranks
    assert row["step_s"] == pytest.approx((4.0 + 0.5) / 2)
    assert row["train_s"] == pytest.approx(4.5)
    assert np.isnan([row["wait_s"], row["move_s"]]).all()  # the exchange is in the graph: nobody sees who is late


def test_a_run_whose_steps_are_all_one_graph_has_times_of_steps_and_reasons_for_phases():
    parts = two_ranks()
    for one in parts:
        one.timings.fused[WARM_UP_STEPS:] = True
    row = make_row(parts)
    assert row["step_s"] == pytest.approx((4.0 + 2.0) / 2)
    reasons = run_record.null_reasons(parts, row)
    for name in (*PHASES, "wait_s", "move_s", "exchange_busy_s"):
        assert np.isnan(row[name])
        assert reasons[name] == "each of its steps is one CUDA graph, and none was sampled"


def test_a_diverged_run_has_no_area_and_no_metric():
    row = make_row(two_ranks(losses=(1.0, float("nan"))), diverged=True, evaluations=[])
    assert (row["status"], row["reason"]) == ("diverged", "loss is nan at step 1 (rank 1)")
    assert row["loss_area_loss_s"] is None
    assert row["test_metric"] is None
    assert row["min_loss"] is None
    assert row["steps"] == 1


def test_what_a_failed_rank_leaves_ends_before_the_first_broken_loss():
    class Clock:
        def timings(self):
            return part(0, [1.0, 2.0, 3.0, 4.0], [1.0] * 4, [0.5] * 4, [0] * 4).timings

    result = TrainResult(clock=Clock())
    result.losses.extend([9.0] * WARM_UP_STEPS + [1.0, 2.0, float("nan")])
    assert measured.finite_curve(result) == ([1.5, 3.0], [1.0, 2.0])


def test_meters_that_fail_do_not_hurt_the_result(tmp_path, monkeypatch):
    def broken(*ignored):
        raise ArithmeticError("joules are gone")

    monkeypatch.setattr(run_record.energy_columns, "columns", broken)
    nulls = run_record.write(Attempt(tmp_path), LAUNCH, TWO_RANKS, ended(), two_ranks(), "an MPI")
    row = records.read("run", tmp_path / "run.parquet").to_pylist()[0]
    assert (row["status"], row["energy_j"]) == ("ok", None)
    assert all("a bug in ddp-hpc: ArithmeticError: joules are gone" in reason for reason in nulls.values())
    (traceback,) = records.read_metadata(tmp_path / "run.parquet")["provenance"]["bugs"]
    assert "in broken" in traceback
    assert {"energy_j", "mfu", "cpu_energy_j"} <= nulls.keys()


def test_a_record_written_in_pieces_holds_what_one_piece_holds(tmp_path, monkeypatch):
    curve = measured.curves(two_ranks())
    records.write("steps", record_columns.step_columns(curve), tmp_path / "whole.parquet")
    monkeypatch.setattr(record_columns, "PIECE_ROWS", 4)  # two steps of two ranks
    records.write_pieces("steps", record_columns.step_pieces(curve), tmp_path / "pieces.parquet")
    with pq.ParquetFile(tmp_path / "pieces.parquet") as pieces:
        assert pieces.num_row_groups == 3  # of five steps, the warmup's three among them
    assert records.read("steps", tmp_path / "pieces.parquet") == records.read("steps", tmp_path / "whole.parquet")


@pytest.mark.parametrize("error", [MemoryError("no room"), OSError(28, "No space left on device")])
def test_a_series_that_cannot_be_written_costs_no_result(tmp_path, monkeypatch, error):
    def broken(*series):
        raise error
        yield

    monkeypatch.setattr(run_record, "step_pieces", broken)
    run_record.write(Attempt(tmp_path), LAUNCH, TWO_RANKS, ended(), two_ranks(), "an MPI")
    row = records.read("run", tmp_path / "run.parquet").to_pylist()[0]
    assert (row["status"], row["steps"], row["final_loss"]) == ("ok", 2, 1.5)
    assert records.read("steps", tmp_path / "steps.parquet").num_rows == 0
    assert records.read("evaluations", tmp_path / "evaluations.parquet").num_rows == 1
    (said,) = records.read_metadata(tmp_path / "run.parquet")["provenance"]["warnings"]
    assert said.startswith("the record 'steps' is empty: ")
    assert str(error) in said


@pytest.mark.parametrize("batch", [1, 2, 5, 10])
def test_large_batches_have_no_smaller_area_for_their_long_first_step(batch):
    """The same loss at the same time, in steps of any length."""
    t_s = np.arange(batch, 101, batch, dtype=float)

    assert record_columns.loss_area(np.full(len(t_s), 2.0), t_s) == pytest.approx(200)
    assert record_columns.loss_area(3 - t_s / 100, t_s) == pytest.approx(250, rel=batch / 100)


def test_the_area_of_a_training_for_a_given_time_ends_with_that_time():
    """Some steps go on beyond it, more of them where they are long."""
    short, long = (np.arange(length, 20.1, length) for length in (1.0, 3.0))

    areas = [record_columns.loss_area(10 - t_s / 2, t_s, until_s=15.0) for t_s in (short, long[:6])]
    assert areas[0] == pytest.approx(15 * 10 - 15**2 / 4 - 0.25, abs=0.1)
    assert areas[1] == pytest.approx(areas[0], rel=0.03)
    assert record_columns.loss_area(short, short, until_s=99.0) == record_columns.loss_area(short, short)
