"""A training that is beaten stops after a step on which all ranks agree, with the losses of one that does not."""

import math

import pytest
from catalogued import usable
from interrupted import BASE, check_same, in_parts, run

from ddp_hpc.config import spec
from ddp_hpc.execution import rank_series as measured
from ddp_hpc.execution import record_columns, run_record
from ddp_hpc.training import placement, trainer
from ddp_hpc.training.beaten import why_beaten
from ddp_hpc.training.result import WARM_UP_STEPS

BEST = 1e-9  # loss x s: any training is beaten by it once it has two steps


def rival(comm, beyond=BEST):
    """Return what rank 0 knows of a run of hardly any area; no other rank is ever asked."""
    return lambda device: pytest.fail("asked") if comm.rank else (BEST, beyond, "the best")


def recorded(comm, result):
    """Return the columns of the run record, on rank 0."""
    given, launch = spec.load(BASE | {"world_size": comm.size}), {"run": "r", "spec_hash": "s", "code_hash": "c"}
    parts = run_record.gather(result, placement.survey(given, comm), {"import_s": 1.0}, comm)
    launch |= {"launched_on": "", "launched_at": 0.0, "launched_ns": 0}
    result.startup_s = result.startup_s or 1.0
    return record_columns.run_columns(launch, given, result, parts, measured.curves(parts)) if comm.rank == 0 else None


def test_it_stops_where_the_ranks_agree_with_the_losses_of_a_whole_one(comm):
    rule = {"evaluate_every_steps": 5, "momentum": 0.9}
    for name in usable(comm.size, DETERMINISTIC=True, SYNCHRONOUS=True):
        whole, _, _ = run(comm, exchange=name, **rule)
        result, _, _ = run(comm, exchange=name, limit=rival(comm), **rule)

        assert result.steps == trainer.AGREE_EVERY_STEPS
        assert result.history().losses.tobytes() == whole.history().losses[: len(result.history().losses)].tobytes()
        assert comm.allgather(result.beaten) == [result.beaten] * comm.size
        assert result.beaten.endswith("all of the best is 1e-09")


def test_one_that_goes_on_after_all_ends_with_the_bits_of_a_whole_one(comm, folder):
    """From where it stopped: no step is taken twice."""
    rule = {"evaluate_every_steps": 5, "momentum": 0.9}
    for name in usable(comm.size, DETERMINISTIC=True, SYNCHRONOUS=True):
        whole = run(comm, exchange=name, **rule)
        stopped, _, _ = run(comm, folder / name, exchange=name, limit=rival(comm), **rule)
        assert stopped.beaten
        comm.Barrier()
        again = run(comm, folder / name, exchange=name, **rule)

        check_same(comm, again, whole)
        assert again[0].resumes == 1
        assert again[0].clock.timings().phases_s.shape[0] == WARM_UP_STEPS + 54 - stopped.steps


def test_looking_changes_nothing_where_nothing_beats_it(comm):
    whole, _, _ = run(comm)
    result, _, _ = run(comm, limit=rival(comm, math.inf))

    assert result.beaten is None
    assert result.steps == 54
    assert result.history().losses.tobytes() == whole.history().losses.tobytes()
    assert result.evaluations == whole.evaluations
    assert result.looked_s > 0


def test_its_record_has_the_curve_up_to_there_and_the_area_that_was_judged(comm):
    result, _, _ = run(comm, limit=rival(comm))
    row = recorded(comm, result)

    if row:
        assert (row["status"], row["reason"], row["steps"]) == ("beaten", result.beaten, 10)
        assert row["test_metric"] is None
        assert f"its loss area is {row['loss_area_loss_s']:.4g} loss x s after step 10" in result.beaten


def test_interrupted_and_resumed_it_stops_as_if_it_had_never_been(comm, folder):
    """What was trained before counts: the first look of the second process sees all of it."""
    whole, _, _ = run(comm)
    result, _, _ = in_parts(comm, folder, (10,), limit=rival(comm, math.inf))
    assert result.beaten is None
    assert result.resumes == 1
    comm.Barrier()
    first, _, _ = run(comm, folder / "other", ask_at=(0, 10))
    assert first.interrupted
    result, _, _ = run(comm, folder / "other", limit=rival(comm))

    assert result.beaten
    assert result.resumes == 1
    losses = result.history().losses
    assert losses.tobytes() == whole.history().losses[: len(losses)].tobytes()
    assert result.steps % trainer.AGREE_EVERY_STEPS == 0


def test_a_loss_below_nothing_stops_nothing(comm):
    """Its area may shrink again."""
    result, _, _ = run(comm)
    assert why_beaten(comm, result, rival(comm))
    result.losses[-1] = -1e3
    assert why_beaten(comm, result, rival(comm)) is None
