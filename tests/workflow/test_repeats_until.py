"""Repeats as far as they are needed: rounds follow from the results, for the winner and who may be better than it."""

from collections import Counter

import numpy as np
import pytest
from factory import constant, study_file, write

from ddp_hpc.analysis.formatting import in_words
from ddp_hpc.analysis.tables import winners
from ddp_hpc.config.grid import expand
from ddp_hpc.config.study import StudyError
from ddp_hpc.runs.project import Project
from ddp_hpc.workflow import driver, plan
from ddp_hpc.workflow.targets import StudyTargets

GRID = {"exchange": "ring", "world_size": 2, "batch_size": [16, 32, 64], "learning_rate": 0.1}
STUDY = {"grid": GRID, "repeats": {"until": "5 %", "at_most": 7}}


def planned(folder, **keys):
    study_file(folder, **(STUDY | keys))
    return plan.with_next_round(Project(folder).study_runs("made_up"))


def trained(area):
    """Return what trains a study in the place of the workflow: an area by batch size and seed; and its rounds."""
    rounds = []

    class Rounds:
        def __init__(self, study_runs):
            self.study_runs = study_runs

        def train(self, missing):
            order = [run.run for run in StudyTargets(None, self.study_runs, False).in_rounds]
            rounds.append([run.spec for run in sorted(missing, key=lambda run: order.index(run.run))])
            for run in missing:
                write(self.study_runs, run, constant(area(run.spec), run.spec.steps_asked))
            return 0

    return Rounds, rounds


def scattered(means, spread):
    """Return areas around a mean for each batch size: each seed of its own, alike in every call."""
    return lambda spec: means[spec.batch_size] * np.exp(spread * np.sin(17 * spec.seed + spec.batch_size))


def counts(study_runs):
    return Counter(run.spec.batch_size for run in study_runs.planned)


def test_only_the_winner_and_who_may_be_better_run_again_in_turns_up_to_the_most(tmp_path):
    """64 is far behind. 16 and 32 scatter by more than they differ: 3 repeats, then 5, then 7, which is the most."""
    rounds_of, rounds = trained(scattered({16: 1.0, 32: 1.01, 64: 9.0}, 0.3))
    study_runs, code = driver._train(planned(tmp_path), rounds_of, shared=False)

    assert code == 0
    assert [len(specs) for specs in rounds] == [9, 4, 4]
    assert [(spec.batch_size, spec.seed) for spec in rounds[1]] == [(16, 3), (32, 3), (16, 4), (32, 4)]
    assert counts(study_runs) == {16: 7, 32: 7, 64: 3}
    (row,) = winners.build(study_runs).to_dict("records")
    assert row["judged_by"] == "3 or 7 repeats, at least 4.52 degrees of freedom"
    assert "64" not in row["cannot_be_told_from"]
    assert "between the 3 to 7 repeats" in in_words(study_runs.study.rules, study_runs.study.looks)[1]


def test_the_same_results_ask_for_nothing_new(tmp_path):
    rounds_of, _ = trained(scattered({16: 1.0, 32: 1.01, 64: 9.0}, 0.3))
    study_runs, _ = driver._train(planned(tmp_path), rounds_of, shared=False)
    again = planned(tmp_path)

    assert {run.run for run in again.planned} == {run.run for run in study_runs.planned}
    assert again.lacking == []


@pytest.mark.parametrize(
    ("means", "spread"),
    [
        ({16: 1.0, 32: 1.5, 64: 2.0}, 0.01),  # told apart
        ({16: 1.0, 32: 1.0, 64: 1.0}, 0.001),  # as good, within 5 %
    ],
)
def test_where_all_is_known_nothing_follows(tmp_path, means, spread):
    rounds_of, rounds = trained(scattered(means, spread))
    driver._train(planned(tmp_path), rounds_of, shared=False)

    assert [len(specs) for specs in rounds] == [9]


def test_the_less_is_to_be_known_the_fewer_repeats_follow(tmp_path):
    """Of equal points that scatter by 3 %, 2 % takes more runs than 20 %."""
    runs = []
    for until in ("2 %", "20%"):
        rounds_of, _ = trained(scattered({16: 1.0, 32: 1.0, 64: 1.0}, 0.03))
        keys = {"repeats": {"until": until, "at_most": 40}}
        study_runs, _ = driver._train(planned(tmp_path / until[:2].strip(), **keys), rounds_of, shared=False)
        runs.append(len(study_runs.planned))

    assert runs[0] > runs[1] == 9


def test_a_failed_run_ends_the_rounds_and_the_same_command_goes_on(tmp_path):
    rounds_of, rounds = trained(scattered({16: 1.0, 32: 1.01, 64: 9.0}, 0.3))

    class Failing(rounds_of):
        def train(self, missing):
            super().train(missing[1:])
            return 1

    study_runs, code = driver._train(planned(tmp_path), Failing, shared=False)
    assert (code, len(study_runs.lacking), len(rounds)) == (1, 1, 1)
    study_runs, code = driver._train(planned(tmp_path), rounds_of, shared=False)
    assert code == 0
    assert [len(specs) for specs in rounds] == [8, 1, 4, 4]
    assert counts(study_runs) == {16: 7, 32: 7, 64: 3}


def test_a_round_that_was_begun_is_planned_until_it_has_ended(tmp_path):
    """Its runs are rows of the tables though another process than the driver asks, and none more follows before."""
    rounds_of, _ = trained(scattered({16: 1.0, 32: 1.01, 64: 9.0}, 0.3))
    first = planned(tmp_path)
    plan.prepare(first)
    rounds_of(first).train(first.lacking)
    second = planned(tmp_path)
    plan.prepare(second)

    assert len(second.lacking) == 4
    assert {run.run for run in Project(tmp_path).study_runs("made_up").lacking} == {run.run for run in second.lacking}
    assert counts(planned(tmp_path)) == counts(second)
    fixed = planned(tmp_path, repeats=3)
    assert counts(fixed) == {16: 3, 32: 3, 64: 3}


def test_the_plan_says_what_may_follow(tmp_path):
    (note,) = planned(tmp_path, rules={}).notes

    assert "every point has 3" in note
    assert "up to 5, 7 repeats: at most 12 runs more" in note


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"repeats": {"until": "little", "at_most": 7}}, "given 'little' (string), expected: a percentage, e.g. 5 %"),
        ({"repeats": {"until": "5 %", "at_most": 2}}, "at_most: given 2, expected: greater than or equal to 3"),
        ({"repeats": {"until": "5 %"}}, "repeats.at_most is missing"),
        ({"grid": GRID | {"seed": [1, 2]}}, "given until, pairs or several seeds beside it; expected: a number"),
    ],
)
def test_what_cannot_be_is_said(tmp_path, keys, said):
    with pytest.raises(StudyError) as error:
        expand(study_file(tmp_path, **(STUDY | keys)))
    assert said in str(error.value)
