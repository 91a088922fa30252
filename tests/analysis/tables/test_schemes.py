"""Schemes: words from the exchanges' files, bytes from theory, intensity, bandwidth, and the figure of it."""

import re
from pathlib import Path

import numpy as np
import pytest
from drawn import draw, words
from factory import PARAMETERS, Result, made_up

from ddp_hpc.analysis import tables
from ddp_hpc.analysis.report import page as report
from ddp_hpc.analysis.tables import exchanges, schemes
from ddp_hpc.config import catalog

STEPS = 50
SIZE = 4 * PARAMETERS
BASE = {"dataset": "digits", "model": "mlp", "learning_rate": 0.1, "threads_per_rank": 1, "batch_size": 1}
BATCHES = [1, 100]
GRID = [
    {"exchange": "none", "world_size": 1, "batch_size": BATCHES},
    {"exchange": ["ring", "parameter_server"], "world_size": 4, "batch_size": BATCHES},
]
EXCHANGE_MS = {"none": 0, "ring": 2, "parameter_server": 6}


def train(spec):
    """A millisecond for 10 samples, beside what the exchange takes; every round is slower than the one before."""
    exchange_s = 1e-3 * EXCHANGE_MS[spec.exchange.name]
    step_s = (1e-4 * spec.batch_size + exchange_s) * (1 + spec.seed)
    columns = {"exchange_exposed_s": exchange_s, "wait_s": exchange_s / 2, "move_s": exchange_s / 2}
    return Result(t_s=tuple(step_s * np.arange(1, STEPS + 1)), loss=(0.1,) * STEPS, columns=columns)


def made(folder, train=train, **keys):
    study = {"base": BASE, "grid": GRID, "repeats": 2, "budget": {"steps": STEPS}}
    return made_up(folder, train, **(study | {"rules": {"reference_exchange": "parameter_server"}} | keys))


def one(frame, exchange, batch_size=1):
    (row,) = frame[(frame["exchange"] == exchange) & (frame["batch_size"] == batch_size)].to_dict("records")
    return row


def test_a_ring_sends_the_least_and_a_server_what_all_others_need(tmp_path):
    frame = schemes.build(made(tmp_path))
    ring, server, alone = (one(frame, name) for name in ("ring", "parameter_server", "none"))

    assert ring["parameter_bytes"] == SIZE
    assert ring["sent_bytes"] == ring["sent_by_others_bytes"] == 2 * 3 / 4 * SIZE
    assert (server["sent_bytes"], server["sent_by_others_bytes"]) == (3 * SIZE, SIZE)
    assert alone["sent_bytes"] == 0


def test_intensity_is_the_work_of_a_ranks_step_over_the_bytes_of_the_parameters(tmp_path):
    frame = schemes.build(made(tmp_path))
    for batch_size in BATCHES:
        assert one(frame, "ring", batch_size)["flop_per_parameter_byte"] == pytest.approx(6 * batch_size / 4)


def test_times_and_ratios_are_those_of_the_exchanges(tmp_path):
    study_runs = made(tmp_path)
    row, same = one(schemes.build(study_runs), "ring"), one(exchanges.build(study_runs), "ring")

    assert row["step_ms"] == pytest.approx(same["step_us"] / 1e3) == pytest.approx((2.1 + 4.2) / 2)
    assert row["times_as_fast"] == same["times_as_fast"] == pytest.approx(6.1 / 2.1)
    assert row["weak_efficiency"] == pytest.approx(0.1 / 2.1)
    assert row["exchange_exposed_ms"] == pytest.approx(2)
    assert one(schemes.build(study_runs), "ring", 100)["times_as_fast"] == pytest.approx(16 / 12)


def test_bandwidth_is_that_of_the_moving_part_and_a_share_of_the_link_only_between_nodes(tmp_path):
    def on(hosts):
        def trained(spec):
            result = train(spec)
            return Result(t_s=result.t_s, loss=result.loss, columns=dict(result.columns) | {"hosts": hosts})

        rules = {"reference_exchange": "parameter_server", "link_gb_per_s": 0.1}
        return one(schemes.build(made(tmp_path / str(hosts), trained, rules=rules)), "ring")

    bus = SIZE / 1e-3 * 2 * 3 / 4 / 1e9  # 1 ms of the 2 is moving
    assert on(1)["bus_gb_per_s"] == on(4)["bus_gb_per_s"] == pytest.approx(bus)
    assert np.isnan(on(1)["link_share"])
    assert on(4)["link_share"] == pytest.approx(bus / 0.1)


def test_where_waiting_is_not_known_the_bandwidth_is_at_least_that_of_the_whole_exchange(tmp_path):
    """As of NCCL on GPUs, whose kernels wait for one another: the interval ends at the peak of the link."""

    def on(hosts, rules):
        def trained(spec):
            result = train(spec)
            own = dict(result.columns) | {"hosts": hosts, "wait_s": None, "move_s": None}
            return Result(t_s=result.t_s, loss=result.loss, columns=own)

        rules = {"reference_exchange": "parameter_server"} | rules
        return one(schemes.build(made(tmp_path / f"{hosts}{len(rules)}", trained, rules=rules)), "ring")

    link, no_link = on(4, {"link_gb_per_s": 0.1}), on(4, {})
    bus = SIZE / 2e-3 * 2 * 3 / 4 / 1e9  # 2 ms, waiting included

    assert link["bus_gb_per_s"] == no_link["bus_gb_per_s"] == pytest.approx(bus)
    assert link["bandwidth_of"].startswith("the whole exposed exchange, so at least")
    assert (link["bus_gb_per_s_low"], link["bus_gb_per_s_high"]) == pytest.approx((bus, 0.1))
    assert (link["link_share"], link["link_share_high"]) == pytest.approx((bus / 0.1, 1))
    assert np.isnan(no_link["bus_gb_per_s_high"])
    assert np.isnan(on(1, {"link_gb_per_s": 0.1})["link_share"])


def test_what_cannot_be_told_is_null(tmp_path):
    grid = [{"exchange": ["async_server", "torch_ddp", {"name": "mpi_allreduce", "compression": "float16"}]}]
    grid[0]["world_size"] = 2

    def trained(spec):
        if spec.exchange.name == "torch_ddp":
            return Result("crashed", "boom")
        return Result(t_s=(1.0,), loss=(0.1,), columns={"move_s": 0.1})

    frame = schemes.build(made(tmp_path, trained, grid=grid))
    crashed, late, compressed = (one(frame, name) for name in ("torch_ddp", "async_server", "mpi_allreduce"))

    assert (crashed["runs"], crashed["reason"]) == (0, "not complete: crashed")
    assert np.isnan(crashed["flop_per_parameter_byte"])
    assert np.isnan(late["bus_gb_per_s"])
    assert late["sent_bytes"] == SIZE
    assert np.isnan(compressed["sent_bytes"])
    assert compressed["bus_gb_per_s"] > 0


def test_the_page_on_exchanges_says_what_the_files_say():
    page = (Path(__file__).parents[3] / "docs" / "exchanges.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|", page, flags=re.MULTILINE)
    assert sorted(name for name, *_ in rows) == catalog.names("exchange")
    for name, *said in rows:
        constants = catalog.constants("exchange", name)
        assert said == [constants[word] for word in ("SCHEME", "COMPUTES", "MOVES_GRADIENTS", "MOVES_MODEL")]


def test_a_figure_has_a_line_per_scheme_over_the_intensity(tmp_path):
    study_runs = made(tmp_path)
    figure = draw((study_runs, {"schemes": schemes.build(study_runs)}), "schemes", "")
    efficiency, speed = figure.axes
    lines = [line for line in speed.lines if len(line.get_xdata()) == 2]
    drawn = [list(line.get_ydata()) for line in lines if list(line.get_xdata()) == [1.5, 150]]

    assert drawn == [[1, 1], pytest.approx([6.1 / 2.1, 16 / 12])]
    assert efficiency.get_xscale() == speed.get_xscale() == "log"
    assert "ring all-reduce: ring" in words(figure)
    assert "times as fast as parameter_server" in words(figure).replace("\n", " ")


def test_the_page_shows_the_table_that_the_study_asks_for(tmp_path):
    study_runs = made(tmp_path, tables=["runs", "schemes"], figures=[])
    folder = tmp_path / "results" / "studies" / "made_up"
    for name in study_runs.study.table_names:
        tables.make(name, study_runs, folder / "tables")
    page = report.make(study_runs, folder).read_text()

    assert '<a href="#schemes">Schemes</a>' in page
    assert '<h2 id="schemes-title">Schemes</h2>' in page
    assert "all ranks to rank 0, which averages" in page
