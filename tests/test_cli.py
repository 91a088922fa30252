"""What the planning verbs print."""

import pytest
from sandbox import Sandbox

BASE = "base: {dataset: digits, model: mlp, exchange: none, world_size: 1, batch_size: 16}\nbudget: {steps: 5}\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Sandbox:
    return Sandbox.make(tmp_path_factory.mktemp("cli") / "project")


def test_a_pattern_that_fits_nothing_and_points_given_twice_are_told(project):
    project.study(
        "notes", BASE + "grid: {learning_rate: [0.1, 1e-1, 0.2], exclude: [{learning_rate: 7}, {learning_rate: 0.2}]}\n"
    )

    said = project.call("ddp-hpc", "plan", "notes").stdout

    assert "notes: 1 run: 1 new" in said
    assert "note: " in said
    assert "notes.yaml:4: exclude: {learning_rate: 7} fits no point" in said
    assert "1 of 2 runs is given more than once" in said


def test_a_value_that_a_field_cannot_have_is_an_error_in_a_pattern_too(project):
    pattern = "{exchange: rin, optimizer: adm, learning_rate: '0.1'}"
    project.study("typo", BASE + f"grid: {{learning_rate: [0.1, 0.2], exclude: {pattern}}}\n")

    done = project.call("ddp-hpc", "plan", "typo")

    assert done.returncode == 2
    assert "typo.yaml:4: exchange: no exchange 'rin' (did you mean 'ring'?)" in done.stderr
    assert "typo.yaml:4: optimizer: given 'adm' (text), allowed: 'sgd' or 'adam' (did you mean 'adam'?)" in done.stderr
    assert "typo.yaml:4: learning_rate: given '0.1' (text; write numbers without quotes)" in done.stderr


def test_a_plan_gives_each_reason_once_with_the_nearest_run(project):
    project.study("near", BASE + "grid: {learning_rate: [0.1, 10], seed: [1, 2]}\n")
    project.finish("near")
    project.edit("config/studies/near.yaml", "[0.1, 10]", "[0.1, 10, 0.3]")

    said = project.call("ddp-hpc", "plan", "near").stdout

    assert "near: 6 runs: 2 new, 4 kept" in said
    assert "2 new: learning_rate 0.3 (nearest run: 0.1); e.g. learning_rate 0.3, seed 1" in said
    assert project.call("ddp-hpc", "plan", "near", "--all").stdout.count("kept") == 5


def test_a_broken_model_file_does_not_hide_the_others(project):
    broken = project.package / "models" / "broken.py"
    broken.write_text("def build(input_shape, outputs, *, width):\n    return None\n")
    try:
        said = project.call("ddp-hpc", "list", "models").stdout
    finally:
        broken.unlink()

    assert f"WRONG: {broken}:1: option 'width' of model 'broken' needs an annotation and a default" in said
    assert "mlp" in said


def test_a_word_that_is_nothing_is_told_with_the_nearest(project):
    done = project.call("ddp-hpc", "list", "model")

    assert done.returncode == 2
    assert "nothing is called 'model' (did you mean 'models'?)" in done.stderr


@pytest.mark.parametrize("field", ["world_size", "exchange", "budget", "seed"])
def test_what_no_setting_is_cannot_be_searched(project, field):
    project.study("search", BASE + f"grid: {{learning_rate: 0.1}}\nsearch: [{field}]\n")

    done = project.call("ddp-hpc", "plan", "search")

    assert done.returncode == 2
    assert f"{field} is no axis of a search" in done.stderr


def test_limits_of_a_dataset_are_known_before_anything_runs(project):
    project.study(
        "many", BASE.replace("digits", "{name: digits, train_samples: 5000}") + "grid: {learning_rate: 0.1}\n"
    )

    done = project.call("ddp-hpc", "plan", "many")

    assert done.returncode == 2
    assert "dataset 'digits': train_samples=5000, allowed: 1 to 1437" in done.stderr
