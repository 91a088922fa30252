"""Phases fill the step; what they cost is small."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddp_hpc.profiling import timers
from ddp_hpc.profiling.phase_names import PHASES


def spend(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_each_phase_gets_its_own_time_and_the_rest_what_is_left():
    clock = timers.HostClock()
    spend(0.01)  # before the start: belongs to no step
    clock.start()
    began = time.perf_counter()
    for _ in range(2):
        spend(0.002)
        clock.mark("data_s")
        spend(0.004)
        clock.mark("forward_s")
        spend(0.001)
        clock.mark("data_s")  # a phase may come twice
        spend(0.003)
        clock.end_step()
    took_s = time.perf_counter() - began
    phases_s = clock.timings().phases_s
    assert phases_s.shape == (2, len(PHASES))
    for phase, expected_s in {"data_s": 0.003, "forward_s": 0.004, "rest_s": 0.003, "backward_s": 0.0}.items():
        column = phases_s[:, PHASES.index(phase)]
        assert (column >= expected_s).all()
        assert phase == "rest_s" or np.median(column) < expected_s + 0.02
    assert phases_s.sum() == pytest.approx(took_s, abs=1e-3)


def test_a_pause_belongs_to_no_step():
    clock = timers.HostClock()
    clock.start()
    clock.end_step()
    spend(0.05)
    clock.start()
    clock.end_step()
    assert clock.timings().phases_s.sum() < 0.05


def test_arrival_is_kept_for_the_step_in_which_it_was_said():
    clock = timers.HostClock()
    clock.start()
    clock.end_step()
    before = time.perf_counter_ns()
    clock.arrived()
    clock.end_step()
    clock.end_step()
    first, second, third = clock.timings().arrived_ns
    assert (first, third) == (-1, -1)
    assert before <= second <= time.perf_counter_ns()


def test_an_unknown_phase_is_our_mistake():
    with pytest.raises(KeyError):
        timers.HostClock().mark("gather_s")


def test_a_step_of_marks_costs_microseconds():
    clock = timers.HostClock()
    costs_s = []
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(100):
            for phase in PHASES[:-1]:
                clock.mark(phase)
            clock.end_step()
        costs_s.append((time.perf_counter() - began) / 100)
    assert min(costs_s) < 20e-6


class Event:
    """As a CUDA event, on a clock that the test moves."""

    now_ms = 0.0
    made = 0

    def __init__(self, enable_timing):
        Event.made += 1

    def record(self):
        self.at_ms = self.now_ms

    def synchronize(self):
        pass

    def elapsed_time(self, later):
        return later.at_ms - self.at_ms


def test_events_are_read_in_order_and_used_again(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    clock = timers.make(torch.device("cuda"))

    def step(number):
        for phase, ms in {"data_s": 1, "forward_s": 10 * number, "rest_s": 2}.items():
            Event.now_ms += ms
            clock.mark(phase) if phase != "rest_s" else clock.end_step()

    Event.now_ms += 50  # before the start
    clock.start()
    for number in range(1, 101):
        step(number)
        if number == 5:
            Event.now_ms += 1000  # a pause
            clock.start()
        if number % 10 == 3:
            clock.arrived()
            clock.fused()
            clock.resolve()
    clock.resolve()
    timings = clock.timings()
    assert timings.phases_s[:, PHASES.index("forward_s")] == pytest.approx(np.arange(1, 101) / 100)
    assert timings.phases_s[:, PHASES.index("rest_s")] == pytest.approx(0.002)
    assert [number for number, at in enumerate(timings.arrived_ns, 1) if at >= 0] == list(range(4, 101, 10))
    assert np.array_equal(timings.fused, timings.arrived_ns >= 0)
    assert Event.made < 40


@given(st.lists(st.lists(st.tuples(st.sampled_from(PHASES), st.integers(0, 9))), min_size=1), st.integers(1, 4))
def test_both_clocks_make_the_same_of_any_order_of_marks(steps, resolved_every):
    now_ms = [0]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.cuda, "Event", Event)
        patched.setattr(timers, "perf_counter_ns", lambda: 1_000_000 * now_ms[0])
        patched.setattr(Event, "now_ms", property(lambda self: now_ms[0]))
        clocks = [timers.HostClock(), timers.make(torch.device("cuda"))]
        for clock in clocks:
            clock.start()
        for number, marks in enumerate(steps):
            for phase, ms in marks:
                now_ms[0] += ms
                for clock in clocks:
                    clock.mark(phase)
            now_ms[0] += 1
            for clock in clocks:
                clock.end_step()
                if number % resolved_every == 0:
                    clock.resolve()
        clocks[1].resolve()
    host, device = (clock.timings().phases_s for clock in clocks)
    assert host.shape == (len(steps), len(PHASES))
    assert device == pytest.approx(host)


@pytest.mark.gpu
def test_device_phases_are_those_of_the_device():
    device = torch.device("cuda", 0)
    clock = timers.make(device)
    matrix = torch.randn(4096, 4096, device=device)
    torch.cuda.synchronize()
    began = time.perf_counter()
    clock.start()
    for _ in range(3):
        clock.mark("data_s")
        for _ in range(10):
            matrix @ matrix
        clock.mark("forward_s")
        clock.end_step()
    clock.resolve()
    took_s = time.perf_counter() - began
    phases_s = clock.timings().phases_s
    assert phases_s.shape == (3, len(PHASES))
    assert phases_s.sum() == pytest.approx(took_s, rel=0.2)
    assert phases_s[:, PHASES.index("forward_s")].sum() > 0.8 * phases_s.sum()
