"""`ddp-hpc compare A B`: what it reads, how it matches, what it says, and its exit code."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from factory import Result, made_up, write

from ddp_hpc.analysis import tables
from ddp_hpc.analysis.compare.result_sets import read
from ddp_hpc.analysis.compare.significance import ALIKE, BETTER, OPEN, WORSE, judge
from ddp_hpc.cli import main

GRID = [{"exchange": "ring", "world_size": [1, 2, 4], "batch_size": 16, "learning_rate": 0.1}]
STUDY = {"grid": GRID, "repeats": 4, "budget": {"steps": 60}}


def trained(noise=0.004, slow=None, number=0, **columns):
    """A trainer whose steps take about a millisecond per rank; those of `slow` ranks longer, by a factor."""

    def train(spec):
        rng = np.random.default_rng([spec.seed, spec.world_size, number])
        step_s = 1e-3 * spec.world_size * np.exp(noise * rng.normal()) * (slow or {}).get(spec.world_size, 1.0)
        t_s = np.cumsum(step_s * np.exp(0.05 * rng.normal(size=60)))
        loss = np.random.default_rng(spec.seed).random() + np.linspace(1, 0.5, 60)  # the seed decides it
        return Result(t_s=tuple(t_s), loss=tuple(loss), columns=columns)

    return train


@pytest.fixture
def sets(tmp_path, monkeypatch):
    """Two folders of results, the second as the keywords say."""
    monkeypatch.chdir(tmp_path)

    def make(**b):
        study = {key: b.pop(key) for key in list(b) if key in ("grid", "repeats", "budget")}
        train = b.pop("train", None) or trained(number=1, **b)
        made_up(tmp_path / "a", trained(), **STUDY)
        made_up(tmp_path / "b", train, **(STUDY | study))
        return str(tmp_path / "a"), str(tmp_path / "b")

    return make


def compared(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main.main(["compare", *arguments])
    captured = capsys.readouterr()
    return end.value.code, captured.out, captured.err


def test_the_same_code_twice_is_no_regression(sets, capsys):
    code, out, _ = compared(capsys, *sets())

    assert code == 0
    assert "3 points in both" in out
    assert "no difference seen" in out
    assert "worse" not in out


def test_runs_that_are_compared_with_themselves_are_told(sets, capsys):
    a, b = sets()

    assert "compared with themselves" not in compared(capsys, a, b)[1]
    assert "12 of 12 runs of B are runs of A, too: compared with themselves" in compared(capsys, a, a)[1]
    assert json.loads(compared(capsys, a, a, "--json")[1])["runs_in_both"] == 12


def test_a_slower_point_is_a_regression_and_is_named(sets, capsys):
    code, out, _ = compared(capsys, *sets(slow={2: 1.2}))

    assert code == 1
    lines = [line for line in out.splitlines() if "worse" in line and line.startswith("world_size 2")]
    assert {line.split()[2] for line in lines} == {"step_s", "samples_per_s", "exchange_exposed_s"}


def test_a_faster_point_is_none(sets, capsys):
    code, out, _ = compared(capsys, *sets(slow={2: 0.8}))

    assert code == 0
    assert "better" in out


def test_json_holds_everything(sets, capsys):
    a, b = sets(slow={4: 1.2})
    code, out, _ = compared(capsys, a, b, "--json")
    found = json.loads(out)

    assert found["exit_code"] == code == 1
    assert (found["points"], found["correction"], found["alpha"]) == (3, "Holm", 0.05)
    (slow,) = [one for one in found["findings"] if one["metric"] == "step_s" and one["spec"]["world_size"] == 4]
    assert slow["verdict"] == "worse"
    assert slow["low_percent"] < 20 < slow["high_percent"]
    assert slow["repeats_needed"] >= 2
    assert (slow["runs_a"], slow["runs_b"]) == (4, 4)
    assert "seed" not in slow["spec"]


def test_losses_of_equal_seeds_are_equal_however_seeds_differ(sets):
    a, b = map(read, sets())
    losses = [one for one in judge(a, b).findings if one.metric == "final_loss"]

    assert [(one.verdict, one.change_percent, one.p) for one in losses] == [(ALIKE, 0.0, 1.0)] * 3


def test_only_runs_that_have_a_pair_count_where_seeds_are_paired(sets):
    a, b = map(read, sets())
    losses = [
        one for one in judge(a, replace(b, runs=b.runs[b.runs["seed"] < 2])).findings if one.metric == "final_loss"
    ]

    assert [(one.runs_a, one.runs_b, one.a == one.b) for one in losses] == [(2, 2, True)] * 3


def test_a_loss_that_is_worse_with_every_seed_is_seen(sets):
    """The seeds' losses differ by far more than the 3 % to 6 % by which every one is worse."""

    def train(spec):
        result = trained(number=1)(spec)
        return replace(result, loss=tuple(loss + 0.05 + 0.001 * spec.seed for loss in result.loss))

    a, b = map(read, sets(train=train))
    losses = [one for one in judge(a, b).findings if one.metric == "final_loss"]

    assert [one.verdict for one in losses] == [WORSE] * 3


def test_an_evaluation_that_gives_no_number_any_more_is_worse(tmp_path):
    study = STUDY | {"repeats": 1}
    for name, metric in (("a", 0.9), ("b", np.nan)):
        made_up(tmp_path / name, trained(test_metric_name="accuracy", test_metric=metric), **study)
    a, b = read(str(tmp_path / "a")), read(str(tmp_path / "b"))

    told = {(one.metric, one.reason) for one in judge(a, b).those(WORSE)}

    assert told == {("status", "1 of 1 runs of B test metric not finite")}
    assert judge(b, b).those(WORSE) == []


@pytest.mark.parametrize(("name", "verdict"), [("accuracy", WORSE), ("error", BETTER)])
def test_whether_less_is_better_is_a_matter_of_the_metric(sets, name, verdict):
    def train(spec):
        return replace(trained()(spec), columns={"test_metric": 0.8 + 0.001 * spec.seed, "test_metric_name": name})

    a, b = map(read, sets(train=train))
    a.runs["test_metric"], a.runs["test_metric_name"] = 0.9 + 0.002 * a.runs["seed"], name
    metrics = [one for one in judge(a, b).findings if one.metric == "test_metric"]

    assert [one.verdict for one in metrics] == [verdict] * 3


def test_without_repeats_times_are_not_judged_and_that_is_no_success(sets, capsys):
    a, b = sets(slow={2: 1.5})
    for path in (a, b):
        for run in read(path).runs["run"]:
            if "-s0-" not in run:
                (Path(path) / "results" / "runs" / run / "run.parquet").unlink()
    code, out, _ = compared(capsys, a, b, "--all")
    times = [one for one in judge(read(a), read(b)).findings if one.metric == "step_s"]

    assert code == 2
    assert "no repeats: how one run differs from the next is not known; the interval is within these runs only" in out
    assert "step_s could be judged at no point" in out
    assert {one.verdict for one in times} == {OPEN}
    assert times[1].low_percent < 50 < times[1].high_percent


def test_one_point_with_repeats_lends_its_noise_to_none_but_many_points_do(sets):
    """Two sets, the second with one run of each point: its scatter cannot be known; of one point only, it can."""
    a, b = map(read, sets())
    once = replace(b, runs=b.runs[b.runs["seed"] == 0])
    mixed = replace(b, runs=b.runs[(b.runs["seed"] == 0) | (b.runs["world_size"] > 1)])

    assert {one.verdict for one in judge(a, once).findings if one.metric == "step_s"} == {OPEN}
    assert {one.verdict for one in judge(a, mixed).findings if one.metric == "step_s"} == {ALIKE}


def test_runs_that_break_are_worse_and_runs_that_are_missing_are_not(sets, capsys):
    def train(spec):
        return Result("diverged", "loss is nan", (1.0,), (np.nan,)) if spec.world_size == 4 else trained()(spec)

    code, out, _ = compared(capsys, *sets(train=train))

    assert code == 1
    assert "4 of 4 runs of B diverged" in out
    a = "a"
    found = judge(read(a), replace(read(a), runs=read(a).runs[read(a).runs["world_size"] < 4]))
    assert found.those(WORSE) == []
    assert found.only_a == ("world_size 4",)


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("oversubscribed", True, "oversubscribed: its times mean nothing"),
        ("placement_verified", False, "not placed as it was asked: its times are those of another placement"),
    ],
)
def test_times_that_mean_nothing_are_not_judged(sets, column, value, reason):
    a, b = map(read, sets(**{column: value, "slow": {1: 2.0}}))
    times = [one for one in judge(a, b).findings if one.metric in ("step_s", "samples_per_s")]

    assert {(one.verdict, one.reason) for one in times} == {(OPEN, reason)}


def test_points_match_by_spec_and_not_by_order_or_seed(sets):
    grid = [{"exchange": "ring", "world_size": [4, 1], "batch_size": [32, 16], "learning_rate": 0.1, "seed": 7}]
    found = judge(*map(read, sets(grid=grid)))

    assert found.points == 2
    assert found.only_a == ("world_size 2, batch_size 16",)
    assert set(found.only_b) == {"world_size 4, batch_size 32", "world_size 1, batch_size 32"}


def test_sets_without_a_common_point_are_an_error(sets, capsys):
    code, _, err = compared(capsys, *sets(budget={"steps": 30}))

    assert code == 2
    assert "no point in common" in err


@pytest.mark.parametrize(
    ("given", "words"), [("elsewhere/b", "no such folder"), (".", "no finished run"), ("note.txt", "cannot be read")]
)
def test_what_is_no_result_set_is_told_with_what_is_allowed(tmp_path, monkeypatch, capsys, given, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "note.txt").write_text("hello")
    code, _, err = compared(capsys, given, given)

    assert code == 2
    assert words in err
    assert "expected: a study, STUDY@before, a folder of results, or a table runs.parquet" in err


def test_a_table_of_runs_is_a_result_set_too(tmp_path, sets, capsys):
    a, _ = sets()
    file = tables.make("runs", made_up(tmp_path / "c", trained(slow={4: 1.3}), **STUDY), tmp_path / "saved")
    code, out, _ = compared(capsys, a, str(file))

    assert code == 1
    assert "world_size 4" in out


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with one study, some of whose runs have an older namesake by other code."""
    study_runs = made_up(tmp_path, trained(slow={2: 1.3}), **STUDY)
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow" / "Snakefile").touch()
    monkeypatch.chdir(tmp_path)
    for number, (code, ended, slow) in enumerate(
        (("0000000000", "2026-01-02", {}), ("1111111111", "2026-01-01", {2: 9}))
    ):
        for planned in study_runs.planned:
            old = replace(planned, run=f"{planned.run.rpartition('-')[0]}-{code}")
            result = trained(number=number + 2, slow=slow)(planned.spec)
            write(study_runs, old, replace(result, columns={"ended_at": ended}))
    return study_runs


def test_before_are_the_newest_runs_by_other_code(project, capsys):
    code, out, _ = compared(capsys, "made_up@before", "made_up")

    assert code == 1
    assert "made_up@before: 12 runs of older code left out" in out
    assert {line.split()[1] for line in out.splitlines() if " worse " in line} == {"2"}


def test_before_anything_was_run_is_an_error(tmp_path, monkeypatch, capsys):
    made_up(tmp_path, trained(), **STUDY)
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow" / "Snakefile").touch()
    monkeypatch.chdir(tmp_path)
    code, _, err = compared(capsys, "made_up@before", "made_up")

    assert code == 2
    assert "no run of this study by other code" in err


@pytest.mark.parametrize("given", ["0", "-1", "101", "much"])
def test_percentages_are_checked(capsys, given):
    code, _, err = compared(capsys, "a", "b", "--tolerance", given)

    assert code == 2
    assert "--tolerance" in err


@pytest.mark.parametrize(
    "columns", [{"core_wait_share": 0.4, "others_core_share": 0.5}, {"throttled_by_quota_share": 0.3}]
)
def test_times_of_runs_that_others_slowed_are_no_regression(sets, columns):
    a, b = (read(one) for one in sets(slow={2: 1.5}, **columns))
    judged = judge(a, b)

    assert not judged.those(WORSE)
    assert {one.reason.split(":")[0] for one in judged.those(OPEN)} == {"disturbed"}
