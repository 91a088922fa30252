"""Traced steps of real trainings on several ranks."""

import gzip
import json
import time
from pathlib import Path

import numpy as np
import pytest
from catalogued import usable

from ddp_hpc.config import spec
from ddp_hpc.execution import run_record, trace_steps
from ddp_hpc.execution.rank_series import curves
from ddp_hpc.profiling.phase_names import PHASES
from ddp_hpc.runs import records
from ddp_hpc.runs.attempt import Attempt
from ddp_hpc.training import placement, trainer

BASE = {
    "model": {"name": "mlp", "widths": [256, 256]},
    "dataset": "digits",
    "exchange": "ring",
    "batch_size": 12,
    "learning_rate": 0.3,
    "budget": {"steps": 12},
    "device": "cpu",
    "threads_per_rank": 1,
}
FIRST, LAST = 5, 8


def run(comm, folder=None, **fields):
    """Train, tracing the steps FIRST to LAST if there is a `folder`; return result, weights and, on rank 0, curves."""
    given = spec.load(BASE | {"world_size": comm.size} | fields)
    place = placement.survey(given, comm)
    tracer = trace_steps.Tracer((FIRST, LAST), given, comm) if folder else None
    training = trainer.Trainer(given, comm, place, Path("unused"), tracer=tracer)
    result = training.run()
    if tracer:
        tracer.write(Attempt(folder), place)
    parts = run_record.gather(result, place, {"import_s": 0.0}, comm)
    return result, training.components.replica.weights.numpy().copy(), curves(parts) if comm.rank == 0 else None


@pytest.fixture
def folder(comm, tmp_path):
    return Path(comm.bcast(str(tmp_path)))


def test_a_trace_changes_neither_losses_nor_weights(comm, folder):
    names = usable(comm.size, DETERMINISTIC=True, SYNCHRONOUS=True)
    for name in names:
        adam = {"optimizer": "adam", "learning_rate": 0.01}  # its state has to be put back too
        plain, traced = run(comm, exchange=name, **adam), run(comm, folder / name, exchange=name, **adam)
        assert plain[0].losses == traced[0].losses, name
        assert np.array_equal(plain[1], traced[1]), name
    assert len(names) > 1


def test_traced_steps_are_in_no_time(comm, folder):
    began = time.perf_counter()
    result, _, measured = run(comm, folder)
    took_s = time.perf_counter() - began
    assert 0 < result.traced_s < took_s
    if comm.rank == 0:
        assert len(measured.losses) == 12
        assert measured.t_s[-1] < took_s - result.traced_s
        assert not measured.fused.any()


def test_a_trace_per_rank_and_all_on_one_axis(comm, folder):
    run(comm, folder)
    comm.Barrier()
    if comm.rank:
        return
    with gzip.open(folder / "trace" / "merged.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in slices} == set(range(comm.size))
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {f"rank {rank} on {placement.socket.gethostname()}" for rank in range(comm.size)}
    for rank in range(comm.size):
        mine = [event for event in slices if event["pid"] == rank]
        steps = [event for event in mine if event.get("cat") == "step"]
        assert [event["name"] for event in steps] == [f"step {step}" for step in range(FIRST, LAST + 1)]
        phases = [event for event in mine if event.get("cat") == "phase"]
        assert {event["name"] + "_s" for event in phases} <= set(PHASES)
        for step in steps:  # its phases fill a step without a gap
            end = step["ts"] + step["dur"]
            inside = [event for event in phases if step["ts"] <= event["ts"] < end]
            assert {"data", "forward", "backward", "exchange_exposed", "update"} <= {one["name"] for one in inside}
            assert sum(one["dur"] for one in inside) == pytest.approx(step["dur"], abs=0.01)
            products = [event for event in mine if event["name"] == "aten::addmm"]
            (forward,) = [one for one in inside if one["name"] == "forward"]
            assert any(forward["ts"] <= one["ts"] < forward["ts"] + forward["dur"] for one in products)
    if comm.size > 1:  # nobody leaves the exchange of a step before all have come to it: on one axis that must show
        record = records.read("trace", folder / "trace.parquet").to_pandas()
        error_us = 1e6 * record["clock_error_s"].max()
        for step in range(FIRST, LAST + 1):
            spans = [
                (event["args"]["arrived_us"], event["ts"] + event["dur"])
                for event in _exchanges_of(slices, step)
                if "arrived_us" in event["args"]
            ]
            assert len(spans) == comm.size
            assert max(begin for begin, _ in spans) <= min(end for _, end in spans) + error_us + 50


def _exchanges_of(slices, step):
    for whole in slices:
        if whole.get("cat") == "step" and whole["name"] == f"step {step}":
            for event in slices:
                mine = event["pid"] == whole["pid"] and event.get("cat") == "phase"
                if mine and event["name"] == "exchange_exposed" and 0 <= event["ts"] - whole["ts"] < whole["dur"]:
                    yield event


def test_the_record_says_what_was_exposed(comm, folder):
    run(comm, folder)
    comm.Barrier()
    if comm.rank:
        return
    rows = records.read("trace", folder / "trace.parquet").to_pandas()
    assert sorted(zip(rows["step"], rows["rank"], strict=True)) == [
        (step, rank) for step in range(FIRST, LAST + 1) for rank in range(comm.size)
    ]
    assert (rows["exposed_s"] <= rows["exchange_s"] + 1e-12).all()
    assert (rows["exchange_s"] <= rows["step_s"]).all()
    assert (rows["compute_s"] > 0).all()
    if comm.size > 1:
        assert (rows["exposed_s"] > 0).all()


def test_steps_that_are_not_there_and_ranks_on_their_own_are_refused(comm):
    given = spec.load(BASE | {"world_size": comm.size})
    with pytest.raises(placement.LaunchError, match="given steps 5 to 13, the run has 12"):
        trace_steps.Tracer((5, 13), given, comm)
    if comm.size > 1:
        alone = spec.load(BASE | {"world_size": comm.size, "exchange": "hogwild"})
        with pytest.raises(placement.LaunchError, match="takes its steps by itself"):
            trace_steps.Tracer((5, 8), alone, comm)
