"""Runs that can no longer win stop, and what is found stays what it is."""

import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import replayed
from drawn import words
from factory import Result, constant, planned, study_file, write
from replayed import found
from sandbox import Sandbox

from ddp_hpc.analysis.figures import loss_areas, loss_curves
from ddp_hpc.analysis.figures._style import style
from ddp_hpc.analysis.tables import areas, curves, scaling, winners
from ddp_hpc.config.grid import expand
from ddp_hpc.config.study import StudyError
from ddp_hpc.runs import records
from ddp_hpc.runs.attempt import Store
from ddp_hpc.runs.project import Project
from ddp_hpc.runs.state import state_of
from ddp_hpc.workflow import plan, status

PUBLISHED = Path(__file__).parents[2] / "results" / "published"
SEARCH = {"batch_size": [16, 32, 64], "learning_rate": [0.1, 0.5, 2.0]}
GRID = [{"exchange": "ring", "world_size": [1, 2], **SEARCH}]
RULES = {"loss_threshold": 0.5}
BUDGET = {"samples_seen": 6400}
STOP = RULES | {"stop_when_beaten": True}
DIGITS = """
base: {dataset: digits, model: {name: mlp, widths: [16]}, batch_size: 16, exchange: none, world_size: 1}
grid: {learning_rate: [0.2, 0.0000001]}
budget: {steps: 1200}
rules: {stop_when_beaten: true}
"""


def whole(seed, spread=0.01):
    """Return what a run of a drawn study would be at its end: areas of a wide range, some above the threshold."""

    def result(spec):
        rng, steps = np.random.default_rng([seed, int(spec.hash[:8], 16)]), spec.steps_asked
        step_s = 1e-3 * (1 + spec.batch_size / 64) * np.exp(spread * rng.normal())
        floor, progress = rng.choice([0.02, 0.02, 0.7]), np.arange(steps) / steps * 10 ** rng.uniform(0.3, 2)
        return Result(t_s=tuple(step_s * np.arange(1, steps + 1)), loss=tuple(floor + 2.3 * np.exp(-progress)))

    return result


def made(folder, train, rules=STOP, **keys):
    """Return a study that was run to its end, and what was trained for it, in this order."""
    return replayed.made(folder, train, **({"grid": GRID, "rules": rules, "budget": BUDGET} | keys))


@pytest.mark.parametrize("spread", [0.001, 0.02, 0.3])
def test_winners_and_what_cannot_be_told_from_them_are_those_of_whole_runs(tmp_path, spread):
    """With a noise of 30 % more than what stops a run cannot be told apart: such runs go on."""
    counts, saved = [], []
    for seed in range(2):
        every, _ = made(tmp_path / f"every-{seed}", whole(seed, spread), RULES)
        study_runs, trained = made(tmp_path / f"stopped-{seed}", whole(seed, spread))
        expected = {run.run for run in every.planned}

        assert {run.run for run in study_runs.planned} == expected  # the rule is in no run's identity
        assert found(study_runs).equals(found(every))
        counts.append(int((study_runs.runs["status"] == "beaten").sum()))
        taken = sum(len(result.loss) for _, result in trained)
        saved.append(1 - taken / sum(spec.steps_asked for spec in (run.spec for run in every.planned)))
    if spread < 0.1:
        assert min(counts) > 0
        assert np.mean(saved) > 0.1


@pytest.mark.parametrize(
    ("pack", "seed"), [("quickstart", 0), *(("fashion_mnist_alexnet_small", seed) for seed in range(3))]
)
def test_recorded_runs_replayed_have_the_winners_and_sets_of_whole_runs(tmp_path, pack, seed):
    """Runs that stopped go on where they may matter, from where they were: no step is taken twice."""
    with zipfile.ZipFile(PUBLISHED / f"{pack}.zip") as packed:
        packed.extractall(tmp_path)
    (root,) = tmp_path.iterdir()
    replay = replayed.replayed(root, seed, tmp_path / "replay")

    assert replay.stopped > 0
    assert replay.same
    assert 0 <= replay.saved <= replay.oracle


def test_a_stopped_run_is_a_finding_and_in_no_comparison(tmp_path):
    study_runs, _ = made(tmp_path, whole(1))
    stopped_runs = study_runs.runs[study_runs.runs["status"] == "beaten"]
    frame, bars = scaling.build(study_runs), areas.build(study_runs)

    assert len(stopped_runs)
    assert study_runs.lacking == []
    assert status.overview(study_runs)["counts"]["beaten"] == len(stopped_runs)
    assert set(stopped_runs["reason"].str[:3]) == {"by "}
    keys = ["world_size", "batch_size", "learning_rate"]
    of_stopped = frame.merge(stopped_runs[keys])
    assert of_stopped["speedup"].isna().all()
    lower = bars.merge(stopped_runs[[*keys, "loss_area_loss_s"]], on=keys, suffixes=("", "_so_far"))
    assert (lower["excluded"] == "beaten").all()
    assert (lower["loss_area_loss_s"] == lower["loss_area_loss_s_so_far"]).all()
    with style():
        figure = loss_areas.draw({"areas": bars, "winners": winners.build(study_runs)}, study_runs.study, "")
        table = {"curves": curves.build(study_runs), "winners": winners.build(study_runs)}
        lines = loss_curves.draw(table, study_runs.study, "")
    assert "stopped when it was beaten: the area is at least this" in words(figure).replace("\n", " ")
    assert "To a bar: stopped when it was beaten." in str(lines.get_label())
    assert "diverged" not in str(lines.get_label())
    arrows = [line for axes in figure.axes for line in axes.lines if line.get_marker() == "^"]
    assert len(arrows) == len(stopped_runs)


def test_likely_winners_run_first(tmp_path):
    """The middle of the axes while nothing is known; then what was good with as many ranks, or with fewer."""
    _, trained = made(tmp_path / "a", whole(1), grid=[GRID[0] | {"world_size": 1}])
    study_runs, again = made(tmp_path / "a", whole(1))
    (first, *_), (other, *_) = trained, again

    assert (first[0].batch_size, first[0].learning_rate) == (32, 0.5)
    (won,) = winners.build(study_runs).query("world_size == 1").to_dict("records")
    assert (other[0].world_size, other[0].batch_size, other[0].learning_rate) == (
        2,
        won["batch_size"],
        won["learning_rate"],
    )


def test_asked_for_whole_they_are_trained_to_their_end_and_stay_so(tmp_path):
    study_runs, _ = made(tmp_path, whole(1))
    runs = set(study_runs.runs["run"][study_runs.runs["status"] == "beaten"])
    plan.ask_for_whole(study_runs)
    items = plan.plan(Project(tmp_path).study_runs("made_up"))

    assert {item.planned.run for item in items if item.will_run} == runs
    assert all("and is to go on" in item.reason for item in items if item.will_run)
    counts = status.overview(Project(tmp_path).study_runs("made_up"))["counts"]  # as the plan has it
    assert counts == {"ok": len(study_runs.planned) - len(runs), "missing": len(runs)}
    study_runs, trained = made(tmp_path, whole(1))
    assert {result.status for _, result in trained} == {"ok"}
    assert len(trained) == len(runs)
    assert made(tmp_path, whole(1))[1] == []


def test_a_study_without_the_rule_wants_them_whole(tmp_path):
    study_runs, _ = made(tmp_path, whole(1))
    stopped_runs = set(study_runs.runs["run"][study_runs.runs["status"] == "beaten"])
    study_file(tmp_path, grid=GRID, rules=RULES, budget=BUDGET)

    assert {run.run for run in Project(tmp_path).study_runs("made_up").lacking} == stopped_runs
    made(tmp_path, whole(1), RULES)
    study_file(tmp_path, grid=GRID, rules=STOP, budget=BUDGET)
    assert Project(tmp_path).study_runs("made_up").lacking == []  # what is whole is right for both


def test_without_the_run_that_beat_them_they_are_trained_again(tmp_path):
    study_runs, _ = made(tmp_path, whole(1))
    before = found(study_runs)
    beaten = study_runs.runs[study_runs.runs["status"] == "beaten"]
    eligible = areas.build(study_runs).query("excluded.isna()")
    gone = [run for row in winners.build(study_runs)["winner_runs"] for run in row.split()]
    for run in study_runs.runs["run"][study_runs.runs["status"] == "ok"]:
        shutil.rmtree(study_runs.store.run(run).path)  # all that beat some, and what else had ended
    lacking = {run.run for run in Project(tmp_path).study_runs("made_up").lacking}

    assert {*beaten["run"], *gone} <= lacking
    assert len(eligible)
    study_runs, _ = made(tmp_path, whole(1))
    assert found(study_runs).equals(before)
    assert study_runs.lacking == []


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"rules": STOP | {"winner_by": "test_metric"}}, "winner_by test_metric: a metric may still improve"),
        ({"repeats": 3}, "points have repeats"),
        ({"grid": [GRID[0] | {"seed": [0, 1]}]}, "points have repeats"),
        ({"grid": [GRID[0] | {"learning_rate": 0.1}]}, "no two runs do the same work per step"),
        (
            {"base": {"dataset": "step_function", "model": "neuron", "threads_per_rank": 1}},
            "model neuron has a loss of its own",
        ),
    ],
)
def test_what_cannot_be_exact_is_refused_with_its_line(tmp_path, keys, problem):
    file = study_file(tmp_path, **({"grid": GRID, "rules": STOP} | keys))
    with pytest.raises(StudyError, match=rf"made_up.yaml:\d+: stop_when_beaten: given true, but .*{problem}"):
        expand(file)


def test_points_that_see_other_samples_do_not_stop(tmp_path):
    """They do not compare, so none wins; a group of one kind of points would have a winner that there is not."""
    study_runs = planned(tmp_path, grid=GRID, rules=STOP, budget={"steps": 100})
    plan.prepare(study_runs)

    assert not [run for run in study_runs.planned if "rivals" in study_runs.store.run(run.run).plan]


def test_a_real_run_stops_and_goes_on_from_there_with_the_losses_of_a_whole_one(tmp_path):
    """On the digits: a rate with which nothing is learnt against a made-up run that is sooner there than any can be."""
    project = Sandbox.make(tmp_path / "project")
    project.study("digits", DIGITS)
    study_runs = Project(project.root).study_runs("digits")
    winner, loser = sorted(study_runs.planned, key=lambda one: -one.spec.learning_rate)
    write(study_runs, winner, constant(1e-6, steps=1200, samples_seen=1200 * 16))
    good, idle = winner.run, loser.run
    assert project.call("ddp-hpc", "plan", "digits", "--write").returncode == 0
    said = project.call("ddp-hpc", "train", idle).stdout

    assert "beaten: its loss area is" in said
    store = Store(project.root / "results")
    assert [state_of(store, run).status for run in (good, idle)] == ["ok", "beaten"]
    kept = records.read("steps", store.file(idle, "steps")).to_pylist()
    planned_again = project.call("ddp-hpc", "plan", "digits", "--whole", "--write").stdout
    assert "1 not yet run" in planned_again
    assert "and is to go on" in planned_again
    said = project.call("ddp-hpc", "train", idle).stdout
    every = records.read("steps", store.file(idle, "steps")).to_pylist()
    assert len(every) == 3 + 1200 > len(kept)
    assert f"training goes on after step {len(kept) - 3}" in said
    for name in ("loss", "t_s"):  # bit for bit: no step was taken again
        assert [row[name] for row in kept] == [row[name] for row in every[: len(kept)]]
    assert state_of(store, idle).status == "ok"
    assert not store.run(idle).checkpoint.path.exists()
