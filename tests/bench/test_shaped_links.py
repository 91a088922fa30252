"""Predictions judged on shaped links: the arithmetic on made-up steps, and a small cluster that really runs."""

import csv
import os
import subprocess
import sys

import pytest
from launching import MPI_ENVIRONMENT

from ddp_hpc import perfmodel
from ddp_hpc.bench import other_models, prediction, shaped_links
from ddp_hpc.perfmodel import Link

LINK = Link(latency=2e-4, bandwidth=12.5e6)


def made_up(exchange: str, formula: str, size: int, counts: tuple[int, ...], work_s: float = 0.1) -> list[dict]:
    """Steps that follow the cost model, in three launches that differ by a part in a thousand."""
    return [
        {
            "exchange": exchange,
            "exchange_options": "{}",
            "bytes": size,
            "world_size": n,
            "launch": launch,
            "round": 0,
            "seconds": work_s / n + perfmodel.cost(formula, size, n).time(LINK) * (1 + 1e-3 * (launch - 1)),
            "repeats": 1,
            "work_s": work_s / n,
        }
        for n in counts
        for launch in range(3)
    ]


@pytest.mark.parametrize(("exchange", "formula"), [("ring", "ring"), ("parameter_server", "parameter_server")])
def test_steps_that_follow_the_model_are_predicted_and_amdahls_law_misses_them(exchange, formula):
    rows = prediction.predictions(made_up(exchange, formula, 1 << 20, (2, 3, 4, 8)), (2, 3), (4, 8))

    judged = [row for row in rows if not row["fitted"]]
    assert [row["world_size"] for row in judged] == [4, 8]
    for row in judged:
        assert abs(row["error_percent"]) < 0.5
        assert row["predicted_low_s"] <= row["measured_s"] <= row["predicted_high_s"]
        assert abs(row["step_error_percent"]) < abs(row["error_percent"]) + 1e-9  # the rest of a step is known
        assert row["amdahl_error_percent"] < -5  # in which nothing grows with the ranks


def test_an_exchange_that_does_not_follow_the_model_is_seen_to_miss():
    rows = prediction.predictions(made_up("parameter_server", "ring", 1 << 20, (2, 3, 8)), (2, 3), (8,))

    (line,) = prediction.summary(rows)
    assert abs(rows[-1]["error_percent"]) > 15
    assert line["error_%"] == f"{abs(rows[-1]['error_percent']):.1f} (worst {abs(rows[-1]['error_percent']):.1f})"


def test_what_one_count_does_not_tell_is_not_predicted(tmp_path):
    rows = prediction.predictions(made_up("ring", "ring", 1 << 20, (2, 8)), (2,), (8,))

    (line,) = prediction.written(rows, tmp_path)
    assert (rows[-1]["predicted_s"], line["error_%"], line["in interval"]) == (None, None, "0 of 0")
    assert "too few world sizes" in rows[-1]["reason"]


def test_amdahls_law_is_found_again():
    steps = {n: 0.02 + 0.1 / n for n in (1, 2, 4)}

    assert other_models.amdahl(steps, [16])[16] == pytest.approx(0.02 + 0.1 / 16)


def test_what_lacks_for_shaped_links_is_named(monkeypatch):
    monkeypatch.setattr(shaped_links, "PROGRAMS", {"ip-of-another-world": "iproute2"})
    assert shaped_links.lacking() == "not installed: ip-of-another-world (iproute2)"

    monkeypatch.setattr(shaped_links, "PROGRAMS", {})
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in shaped_links.lacking()


@pytest.mark.parametrize(
    ("names", "sizes", "said"),
    [
        (["ring_overlapped"], [8], "beside the backward pass"),
        (["ring"], [6], "multiples of 4"),
    ],
)
def test_what_cannot_be_measured_is_refused(names, sizes, said):
    with pytest.raises(ValueError, match=said):
        prediction.asked_of(names, [2], sizes, 0.1, 100.0, 1, 1)


def test_a_count_is_either_fitted_or_judged():
    with pytest.raises(ValueError, match="2 given in both"):
        prediction.counts_of([2, 3], [2, 4])


@pytest.mark.skipif(shaped_links.lacking() is not None, reason=str(shaped_links.lacking()))
def test_exchanges_on_three_nodes_take_as_long_as_their_links_need(tmp_path):
    size, mbit = 1 << 18, 100
    options = {"exchanges": "ring", "fit": "2", "judge": "3", "sizes": size, "launches": 1, "rounds": 1, "mbit": mbit}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(
        [sys.executable, "-m", "ddp_hpc.cli.main", "bench", "prediction", *words, "--out", tmp_path],
        env=os.environ | MPI_ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    with (tmp_path / "predictions.csv").open() as file:
        two, three = csv.DictReader(file)
    for row, n in ((two, 2), (three, 3)):
        on_the_wire_s = 2 * (n - 1) / n * size / (mbit * 1e6 / 8)
        assert 0.9 * on_the_wire_s < float(row["measured_s"])  # a bucket of 20 kB goes through at once
    assert "too few world sizes" in three["reason"]  # of one count
    assert (tmp_path / "prediction.svg").stat().st_size > 0
