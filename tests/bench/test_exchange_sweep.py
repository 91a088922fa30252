"""The sweep over message sizes: what is measured, what is made of it, and that it really runs on two ranks."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from launching import MPI_ENVIRONMENT

from ddp_hpc.analysis.figures._marks import OVERSUBSCRIBED
from ddp_hpc.bench import exchange, fit, meters, sweep, sweep_results
from ddp_hpc.bench import figure as _exchange_sweep
from ddp_hpc.config import catalog
from ddp_hpc.perfmodel import Link, exchange_time

ROOT = Path(__file__).parents[2]
SIZES = [4**power for power in range(1, 15)]


def bench(*arguments, timeout_s=120):
    return subprocess.run(
        [sys.executable, "-m", "ddp_hpc.cli.main", "bench", "exchange", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | MPI_ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def test_three_exchanges_on_two_ranks_leave_parquet_and_a_figure(tmp_path):
    done = bench(
        *("--ranks", 2, "--exchanges", "ring", "mpi_allreduce", "ring_overlapped", "none"),
        *("--sizes", 4, 4096, 262_144, "--rounds", 2, "--out", tmp_path),
    )

    assert done.returncode == 0, done.stderr
    assert "round 2 of 2" in done.stderr
    assert "without none: exchanges nothing" in done.stderr
    table = pq.read_table(tmp_path / "sweep.parquet")
    assert table.schema.equals(sweep_results.SWEEP)
    assert all(field.metadata[b"meaning"] for field in table.schema)
    rows = table.to_pylist()
    names = {"ring", "mpi_allreduce", "ring_overlapped", *sweep_results.COPIES}
    assert {(row["exchange"], row["bytes"]) for row in rows} == {
        (name, size) for name in names for size in (4, 4096, 262_144)
    }
    beside = [row for row in rows if row["exchange"] == "ring_overlapped"]  # a difference: it may be null or below 0
    assert all(row["backward_s"] > 0 for row in beside)
    apart = [row for row in rows if row not in beside]
    assert all(row["backward_s"] is None for row in apart)
    assert all(0 < row["least_s"] <= row["median_s"] <= row["largest_s"] for row in apart)
    assert {row["rounds"] for row in rows} == {2}
    assert {row["world_size"] for row in rows} == {2}
    own = [row for row in rows if row["exchange"] == "mpi_allreduce"]
    assert {(row["times_as_fast_least"], row["times_as_fast_largest"]) for row in own} == {(1.0, 1.0)}
    fitted = pq.read_table(tmp_path / "fits.parquet").to_pylist()
    assert {row["exchange"] for row in fitted} - {"ring_overlapped"} == {"ring", "mpi_allreduce"}
    assert all(row["points"] == 3 and row["latency_s"] >= 0 for row in fitted)
    provenance = json.loads(pq.read_schema(tmp_path / "sweep.parquet").metadata[b"ddp_hpc.provenance"])
    assert "MPI" in provenance["2"]["software"]["mpi"]
    for form in ("svg", "pdf", "png"):
        assert (tmp_path / f"exchange_sweep.{form}").stat().st_size > 10_000


def test_what_was_measured_before_a_rank_failed_is_kept(tmp_path, monkeypatch):
    """Two exchanges, of which the second fails when it is made: the times of the first are written."""
    broken = tmp_path / "python" / "sitecustomize.py"
    broken.parent.mkdir()
    broken.write_text(
        "import sys\n"
        "if 'ddp_hpc.bench.sweep' in sys.orig_argv:\n"
        "    import mpi4py.MPI, ddp_hpc.exchange.ring as ring\n"
        "    def make(*given): raise OSError('no ring today')\n"
        "    ring.make = make\n"
    )
    for name, value in MPI_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(broken.parent), os.environ.get("PYTHONPATH", "")]))
    asked = exchange.sweep_of(["mpi_allreduce", "ring"], [2], [64], 1, "mpiexec")

    with pytest.raises(RuntimeError, match="exchange ring with 64 bytes: no ring today"):
        exchange.measure(asked, tmp_path / "out")

    kept = pq.read_table(tmp_path / "out" / "sweep.parquet").to_pylist()
    assert [row["exchange"] for row in kept] == ["mpi_allreduce"]


def test_a_launcher_that_is_not_there_is_told(tmp_path):
    done = bench("--exchanges", "ring", "--sizes", 4, "--launcher", "no_such_launcher", "--out", tmp_path)

    assert done.returncode == 2
    assert "cannot start 'no_such_launcher'" in done.stderr
    assert "--launcher mpiexec" in done.stderr


@pytest.mark.parametrize("name", ["ring", "mpi_allreduce", "parameter_server"])
@pytest.mark.parametrize("world_size", [2, 4, 7])
def test_a_fit_finds_the_latency_and_the_bandwidth_that_times_were_made_from(name, world_size):
    link, rng = Link(latency=2e-6, bandwidth=8e9), np.random.default_rng(world_size)
    formula, options = catalog.cost_model(name)
    exact = [fit.perfmodel.cost(formula, size, world_size, **options).time(link) for size in SIZES]
    noisy = [time * (1 + 0.1 * rng.standard_normal()) for time in exact]

    found = fit.fit(SIZES, noisy, world_size, name)

    assert abs(found["latency_s"] - 2e-6) < 3 * found["latency_error_s"] < 2e-6
    assert abs(found["bandwidth"] - 8e9) < 3 * found["bandwidth_error"] < 8e9
    assert 0.02 < found["relative_spread"] < 0.2
    assert found["relative_worst"] >= found["relative_spread"]


def test_errors_of_a_fit_cover_the_truth_as_often_as_they_say():
    link, rng = Link(latency=5e-6, bandwidth=3e9), np.random.default_rng(0)
    exact = [exchange_time("ring", size, 4, link) for size in SIZES]
    within = 0
    for _ in range(300):
        found = fit.fit(SIZES, [time * (1 + 0.05 * rng.standard_normal()) for time in exact], 4, "ring")
        within += abs(found["latency_s"] - 5e-6) < found["latency_error_s"]

    assert 0.55 < within / 300 < 0.8  # one standard error: 0.68 of a normal distribution, less with 12 degrees


def test_a_time_that_falls_with_size_has_no_bandwidth_and_is_not_negative():
    found = fit.fit([4, 64, 1024], [3e-6, 2e-6, 1e-6], 2, "ring")

    assert found["bandwidth"] is None
    assert found["latency_s"] > 0


def sample(name, seconds, turn, **more):
    where = {"cores": 2, "hosts": 1, "oversubscribed": False}
    what = {"world_size": 2, "exchange": name, "exchange_options": "{}", "bytes": 1_000_000, "round": turn}
    return what | where | {"seconds": seconds, "backward_s": None, "repeats": 3} | more


def test_ratios_are_within_a_round_and_times_are_medians():
    rows = sweep_results.rows_of(
        [sample("mpi_allreduce", seconds, turn) for turn, seconds in enumerate([1.0, 10.0, 3.0])]
        + [sample("ring", seconds, turn) for turn, seconds in enumerate([0.5, 1.0, 3.0])]
    )
    ring = rows[1]

    assert (ring["median_s"], ring["least_s"], ring["largest_s"], ring["rounds"]) == (1.0, 0.5, 3.0, 3)
    assert (ring["times_as_fast"], ring["times_as_fast_least"], ring["times_as_fast_largest"]) == (2.0, 1.0, 10.0)
    assert ring["bus_bandwidth"] == ring["algorithm_bandwidth"] == 1e6  # 2(n-1)/n is 1 for two ranks


def test_a_difference_below_its_scatter_is_null_and_not_a_time():
    (row,) = sweep_results.rows_of([sample("torch_ddp", seconds, 0, backward_s=1.0) for seconds in (-0.1, -0.2, 0.1)])

    assert (row["median_s"], row["bus_bandwidth"], row["backward_s"]) == (None, None, 1.0)


def test_only_what_exchanges_and_ends_together_is_measured():
    choices = exchange.sweep_of(None, [2], None, 1, "").exchanges
    fit_here, out = exchange.runnable(choices, 2)
    measured = {spec.exchange.name for spec in fit_here}

    assert measured.isdisjoint(out)
    assert measured | out.keys() == set(catalog.names("exchange"))
    assert all(catalog.constants("exchange", name)["SYNCHRONOUS"] for name in measured)
    assert {"ring", "mpi_allreduce"} <= measured
    assert out["none"] == "exchanges nothing"
    assert out["async_server"].startswith("asynchronous")


def test_an_exchange_may_be_given_with_options_and_mistakes_are_told():
    (choice,) = exchange.sweep_of(["{name: sharded_server, servers: 1}"], [2], None, 1, "").exchanges
    assert (choice.name, choice.options) == ("sharded_server", {"servers": 1})
    for wrong, told in (
        ("rin", "given 'rin': no exchange 'rin' (did you mean 'ring'?)"),
        ("{name: sharded_server, servers: 0}", "given '{name: sharded_server, servers: 0}': option 'servers'"),
        ("{name:", "given '{name:': no YAML; expected: a name"),
    ):
        with pytest.raises(ValueError, match=re.escape(told)) as found:
            exchange.sweep_of([wrong], None, None, 1, "")
        assert str(found.value).startswith("--exchanges: ")
        assert "\n" not in str(found.value)
    with pytest.raises(ValueError, match="--sizes: given 6, expected: multiples of 4"):
        exchange.sweep_of(None, None, [8, 6], 1, "")
    _, out = exchange.runnable(
        exchange.sweep_of(["{name: sharded_server, servers: 3}"], None, None, 1, "").exchanges, 2
    )
    assert len(out) == 1  # more servers than ranks


def test_on_gpus_each_exchange_is_measured_in_all_its_ways_as_far_as_mpi_takes_their_memory(monkeypatch):
    with pytest.raises(ValueError, match="--device: given cuda, but torch finds no GPU here"):
        exchange.sweep_of(None, None, None, 1, "mpiexec", "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    asked = exchange.sweep_of(None, None, None, 1, "mpiexec", "cuda")
    assert asked.ranks == [2, 4]
    specs, out = exchange.runnable(asked.exchanges, 2, asked.device)
    assert {"nccl", "ring", "mpi_allreduce"} <= {str(spec.exchange) for spec in specs}
    assert {spec.device for spec in specs} == {"cuda"}
    assert out["gloo"] == "works on cpu only"
    direct = {str(spec.exchange) for spec in specs if spec.exchange.options.get("gpu_path") == "direct"}
    assert {text.split()[0] for text in direct} >= {"ring", "ring_overlapped", "mpi_allreduce", "parameter_server"}
    trials = []
    monkeypatch.setattr(
        exchange.cuda_aware_check, "refusal", lambda launcher, environment: trials.append(launcher) or "a reason"
    )
    kept, out = exchange.without_refused(specs, {}, 2, "mpiexec --x")
    assert trials == [["mpiexec", "--x", "-n", "2"]]
    assert out == dict.fromkeys(direct, "a reason")
    assert {str(spec.exchange) for spec in specs} - {str(spec.exchange) for spec in kept} == direct
    assert exchange.without_refused(kept, {}, 2, "mpiexec") == (kept, {})
    assert len(trials) == 1


def test_the_clock_of_a_sample_stops_when_the_gpu_is_through(monkeypatch):
    said = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: said.append("waited"))
    monkeypatch.setattr(sweep, "time", SimpleNamespace(perf_counter=lambda: said.append("clock") or 0.0))
    alone = SimpleNamespace(Barrier=lambda: None, allreduce=lambda mine, how: mine)
    how = sweep.Timed(alone, torch.device("cuda", 0))
    sweep.slowest_s(lambda: said.append("queued"), how)
    assert said == ["waited", "clock", "queued", "waited", "clock"]


def test_sizes_that_do_not_fit_into_memory_are_left_out():
    assert exchange.that_fit(exchange.SIZES, 2, 24 * 10**9) == list(exchange.SIZES)
    assert max(exchange.that_fit(exchange.SIZES, 16, 8 * 10**9)) == 4**12
    assert (exchange.SIZES[0], exchange.SIZES[-1]) == (4, 256 * 2**20)


@pytest.mark.parametrize("size", [4, 60, 64, 68, 2 * sweep.PART_BYTES + 4])
def test_the_buffer_has_just_the_size_and_the_backward_pass_fills_it(size):
    replica = sweep.replica_of(size)
    replica.gradients.fill_(7)

    sweep.backward_pass(replica)

    assert replica.gradients.numel() * 4 == replica.weights.numel() * 4 == size
    assert torch.equal(replica.gradients, torch.ones_like(replica.gradients))
    assert max(parameter.numel() * 4 for parameter in replica.model.parameters()) <= sweep.PART_BYTES


def rows(world_size, oversubscribed):
    return sweep_results.rows_of(
        [
            sample(name, exchange_time(formula, size, world_size, Link(latency=1e-6, bandwidth=1e9)) * (1 + turn), turn)
            | {"world_size": world_size, "bytes": size, "oversubscribed": oversubscribed}
            for name in ("mpi_allreduce", "ring", "parameter_server")
            for formula, _ in [catalog.cost_model(name)]
            for size in SIZES
            for turn in range(3)
        ]
        + [
            sample(name, size / 1e10, turn)
            | {"world_size": world_size, "bytes": size, "oversubscribed": oversubscribed}
            for name in sweep_results.COPIES
            for size in SIZES
            for turn in range(3)
        ]
    )


def test_a_ring_on_a_link_of_1_gb_per_s_comes_up_to_just_that_in_the_figure():
    with _exchange_sweep.style():
        figure = _exchange_sweep.draw(rows(4, False))
    times, rates = figure.axes
    (line,) = [
        line for line in rates.lines if line.get_color() == _exchange_sweep.EXCHANGES[1] and len(line.get_xdata()) > 2
    ]

    assert list(line.get_xdata()) == SIZES
    assert line.get_ydata()[-1] == pytest.approx(1e9 / 2, rel=0.01)  # the median round took twice as long
    copies = [line for line in times.lines if line.get_color() == _exchange_sweep.GREY]
    assert [list(line.get_ydata()) for line in copies] == [pytest.approx(np.array(SIZES) / 1e10)] * 2
    assert OVERSUBSCRIBED not in figure.get_label()


def test_oversubscribed_ranks_are_hollow_and_told():
    both = rows(2, False) + rows(64, True)
    with _exchange_sweep.style():
        figure = _exchange_sweep.draw(both)
    faces = [
        {line.get_markerfacecolor() for line in axes.lines if line.get_marker() in _exchange_sweep.MARKERS}
        for axes in figure.axes
    ]

    assert ["#ffffff" in face for face in faces] == [False, False, True, True]
    assert OVERSUBSCRIBED in figure.get_label()
    assert {line["note"] for line in sweep_results.by_size(both) if line["ranks"] == 64} == {sweep_results.MARKED}
    assert {line["note"] for line in sweep_results.by_size(both) if line["ranks"] == 2} == {None}


def test_the_screen_shows_the_fit_and_the_ratio_from_4_to_64_mb():
    both = rows(4, False)
    lines = {line["exchange"]: line for line in sweep_results.by_exchange(both, fit.fits(both))}

    assert lines["ring"]["latency_us"] == pytest.approx(2)  # the median round took twice as long as alpha = 1 us
    assert lines["ring"]["bandwidth_GB/s"] == pytest.approx(0.5)
    assert lines["ring"]["times as fast as mpi_allreduce, 4 to 64 MB"].startswith("1.00 (1.00-1.00); 1.00")


def test_what_meters_cost_is_the_ratio_of_blocks_that_stand_in_turn():
    rounds = [[1.0, 1.03, 1.05, 1.08], [2.0, 2.08, 2.08, 2.0]]  # the first drifts, and costs nothing
    row = meters.row_of(rounds, steps=100)
    assert row["longer_percent"] == pytest.approx(100 * (1.04**0.5 - 1), abs=0.05)  # the middle of 0 % and 4 %
    assert row["low"] < 0 < row["high"]
    assert (row["without_us"], row["with_us"]) == (pytest.approx(1e4 * 1.52), pytest.approx(1e4 * 1.56))


def test_meters_are_timed_on_real_ranks(capsys):
    (row,) = meters.measure(2, rounds=5, steps=3, launcher="mpiexec")
    assert (row["rounds"], row["ranks"]) == (5, 2)
    assert row["without_us"] > 0 < row["with_us"]
    assert "round 5 of 5" in capsys.readouterr().err
