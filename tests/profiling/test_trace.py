"""Traces by real ranks; what is read from them against made-up events, a brute force, and another program."""

import gzip
import json

import numpy as np
import pytest
from faulty import record, train
from sandbox import Sandbox

from ddp_hpc.profiling import trace
from ddp_hpc.runs import records


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_facts_hold_on(on_ranks, ranks):
    on_ranks(ranks, "tracing.py", "clocks.py")


def test_a_union_covers_what_a_brute_force_covers():
    rng = np.random.default_rng(1)
    for _ in range(50):
        spans = [(begin, begin + rng.integers(0, 9)) for begin in rng.integers(0, 60, rng.integers(0, 12))]
        covered = {tick for begin, end in spans for tick in range(begin, end)}
        found = trace.union(spans)
        assert trace.length(found) == len(covered)
        assert (found[1:, 0] > found[:-1, 1]).all()
        assert trace.length(trace.within(found, 20, 40)) == len(covered & set(range(20, 40)))


def event(name, ts, dur, cat="cpu_op", **more):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": 1, **more}


def exchange(ts, dur, **args):
    return event("exchange_exposed", ts, dur, "phase", args=args)


STEP = event("step 7", 1000, 1000, "step")


def of_step(*events):
    (row,) = trace.summary([STEP, *events])
    return {name: round(1e6 * row[name]) for name in ("step_s", "exchange_s", "compute_s", "exposed_s")}


def test_only_what_nothing_is_computed_beside_is_exposed():
    row = of_step(
        event("aten::mm", 1100, 300),
        event("aten::add", 1150, 50),  # within the other
        event("in flight", 1300, 200, "flight"),  # 100 of it beside the product
        exchange(1600, 300, arrived_us=1650),
        event("aten::copy_", 1700, 20),  # within the exchange
    )

    assert row == {"step_s": 1000, "exchange_s": 200 + 250, "compute_s": 320, "exposed_s": 100 + 230}


def test_holders_compute_nothing_and_torchs_own_exchanges_are_no_computation():
    row = of_step(
        event("autograd::engine::evaluate_function: AddmmBackward0", 1100, 500),
        event("AddmmBackward0", 1100, 200),
        event("gloo:all_reduce", 1250, 150, tid=2),
        event("c10d::allreduce_", 1250, 10),
        exchange(1500, 100),
    )

    assert row == {"step_s": 1000, "exchange_s": 250, "compute_s": 200, "exposed_s": 100 + 100}


def test_on_a_gpu_kernels_count_and_operators_only_queue_them():
    row = of_step(
        event("aten::mm", 1000, 900),
        event("sgemm_128", 1200, 300, "kernel", tid=7),
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1400, 250, "kernel", tid=9),
        exchange(1050, 10),  # when it was queued
    )

    assert row == {"step_s": 1000, "exchange_s": 250, "compute_s": 300, "exposed_s": 150}


def test_what_lies_outside_of_the_step_does_not_count():
    row = of_step(event("aten::mm", 500, 600), exchange(1900, 500, arrived_us=1950))

    assert row == {"step_s": 1000, "exchange_s": 50, "compute_s": 100, "exposed_s": 50}


def test_a_trace_without_an_anchor_is_refused():
    with pytest.raises(ValueError, match="no anchor"):
        trace.on_one_axis([event("aten::mm", 1, 1)], 0, "a", 0.0, 0.0)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    sandbox = Sandbox.make(tmp_path_factory.mktemp("tracing") / "project")
    yield sandbox
    sandbox.end_all()


STUDY = """base: {dataset: digits, model: mlp, world_size: 2, batch_size: 16, learning_rate: 0.1, threads_per_rank: 1}
grid: {exchange: [ring, async_server]}
budget: {steps: 20}
"""


@pytest.fixture(scope="module")
def traced(project):
    """The run of a study that traces its steps 10 to 12, and what `plan` says of it."""
    project.study("plain", STUDY)
    project.study("traced", STUDY + "trace: {steps: [10, 12]}\n")
    said = project.call("ddp-hpc", "plan", "traced", "--write")
    run = next(row["run"] for row in project.plan("traced") if row["run"].startswith("ring"))
    done, _ = train(project, run, 2)
    assert done.returncode == 0, done.stderr
    return run, said.stdout + said.stderr


def test_a_study_that_traces_has_the_same_runs_and_the_traces_beside_them(project, traced):
    run, said = traced
    assert run in [row["run"] for row in project.plan("plain")]
    assert "1 of 2 runs are not traced: with exchange 'async_server'" in said
    folder = project.root / "results" / "runs" / run
    assert sorted(file.name for file in (folder / "trace").iterdir()) == [
        "merged.json.gz",
        "rank-0.json.gz",
        "rank-1.json.gz",
    ]
    assert records.read("trace", folder / "trace.parquet").to_pandas()["step"].tolist() == [10, 11, 12] * 2
    assert record(project, run)["steps"] == 20


def test_the_traces_of_two_ranks_are_read_by_another_program(project, traced):
    """HolisticTraceAnalysis; it brings 70 packages, so that it is installed where it is wanted only."""
    hta = pytest.importorskip("hta.trace_analysis", reason="HolisticTraceAnalysis is not installed")
    folder = project.root / "results" / "runs" / traced[0] / "trace"
    files = {rank: str(folder / f"rank-{rank}.json.gz") for rank in (0, 1)}
    traces = hta.TraceAnalysis(trace_dir=str(folder), trace_files=files).t

    names = traces.symbol_table.get_sym_table()
    for rank in (0, 1):
        frame = traces.get_trace(rank)
        steps = frame[frame["name"].map(names.__getitem__).str.startswith("step ")]
        assert [names[name] for name in steps["name"]] == ["step 10", "step 11", "step 12"]
        with gzip.open(files[rank], "rt") as file:
            ours = [event for event in json.load(file)["traceEvents"] if event.get("cat") == "step"]
        assert steps["dur"].tolist() == pytest.approx(
            [event["dur"] for event in ours], abs=2
        )  # it rounds begin and end


def test_a_run_is_traced_again_with_the_same_losses(project, traced):
    folder = project.root / "results" / "runs" / traced[0]
    losses = records.read("steps", folder / "steps.parquet").to_pandas()["rank_loss"].tolist()
    kept, _ = train(project, traced[0], 2)
    refused, _ = train(project, traced[0], 2, "--trace", "3-4")
    assert (kept.returncode, refused.returncode) == (0, 2)
    assert "nothing was traced" in refused.stderr
    assert len(list((folder / "attempts").iterdir())) == 1  # a finished record is replaced only where that is asked for

    done, _ = train(project, traced[0], 2, "--trace", "3-4", "--again")
    assert done.returncode == 0, done.stderr
    assert records.read("trace", folder / "trace.parquet").to_pandas()["step"].tolist() == [3, 4] * 2
    assert records.read("steps", folder / "steps.parquet").to_pandas()["rank_loss"].tolist() == losses


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        ("{steps: [10, 21]}", "given steps 10 to 21, the run has 20"),
        ("{steps: [12, 10]}", "given 12 to 10, expected: the first up to the last"),
        ("{steps: [0, 3]}", "given 0, expected: greater than 0"),
        ("{steps: 10}", "given 10, expected"),
    ],
)
def test_steps_that_cannot_be_traced_are_refused_with_their_line(project, trace, said):
    project.study("wrong", STUDY + f"trace: {trace}\n")

    done = project.call("ddp-hpc", "plan", "wrong")

    assert done.returncode == 2
    assert said in done.stderr
    assert "wrong.yaml:" in done.stderr
    (project.root / "config" / "studies" / "wrong.yaml").unlink()
