"""Clocks that are apart by a known time and run at different rates, as those of different hosts."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from mpi4py import MPI

from ddp_hpc.config import spec
from ddp_hpc.execution import run_record
from ddp_hpc.execution.clock_sync import ClockReading, on_first_clock, reading
from ddp_hpc.execution.rank_series import curves
from ddp_hpc.profiling import timers
from ddp_hpc.training import components, placement, trainer

REAL = time.perf_counter_ns
DELAY_S = 0.05


def test_the_offset_of_two_clocks_is_found_within_the_error_that_is_given(comm):
    for apart_ns in (0, 10**12, -(10**9)):  # ranks of one host read the same clock: so much is added on each
        added = comm.rank * apart_ns
        found = reading(comm, lambda added=added: REAL() + added)
        # a float of 10^12 ns, and where the midpoint is rounded
        assert abs(found.offset_ns - added) <= found.error_ns + 200
        assert (found.error_ns == 0) == (comm.rank == 0)
        assert comm.allreduce(found.error_ns, MPI.MAX) < 0.2e9


def test_times_between_two_readings_are_put_on_the_first_clock():
    before, after = ClockReading(1_000, 500.0, 10.0), ClockReading(3_000, 700.0, 10.0)

    found = on_first_clock(np.array([999, 1_000, 2_000, 3_000, 3_001, -1]), before, after)

    assert found.tolist() == [-1, 500, 1_400, 2_300, -1, -1]


def test_waiting_is_found_though_every_rank_has_another_clock(comm, monkeypatch):
    """Each rank's clock is 1000 s ahead of the one before, and 100 ppm faster; rank 0 is slow."""
    zero = comm.bcast(REAL())

    def clock():
        now = REAL()
        return now + comm.rank * 10**12 + (now - zero) * comm.rank // 10_000

    make_batches = components.sampler.make_batches

    def slow(given, rank, samples, device):
        batch = make_batches(given, rank, samples, device)
        return lambda step: (time.sleep(DELAY_S), batch(step))[1]

    monkeypatch.setattr(timers, "perf_counter_ns", clock)
    monkeypatch.setattr(run_record, "reading", lambda comm: reading(comm, clock))
    if comm.rank == 0:
        monkeypatch.setattr(components.sampler, "make_batches", slow)
    given = spec.load(
        {
            "model": "mlp",
            "dataset": "digits",
            "exchange": "ring",
            "world_size": comm.size,
            "batch_size": 12,
            "learning_rate": 0.1,
            "budget": {"steps": 20},
            "device": "cpu",
            "threads_per_rank": 1,
        }
    )
    place = replace(placement.survey(given, comm), hosts=comm.size)

    before = reading(comm, clock)
    result = trainer.Trainer(given, comm, place, Path("unused")).run()
    parts = run_record.gather(result, place, {"import_s": 0.0}, comm, clock=before)

    if comm.rank == 0:
        measured = curves(parts)
        waits = np.median(measured.wait_s[measured.counted], axis=0)
        assert waits[0] < 0.3 * DELAY_S
        assert (waits[1:] > 0.9 * DELAY_S).all()
        assert all(part.clock_error_s < 0.1 for part in parts)
