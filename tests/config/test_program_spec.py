"""The key `program` of a spec: what its command may say, and what is told at planning."""

import pytest
from factory import study_file

from ddp_hpc.config import catalog, spec
from ddp_hpc.config.grid import expand
from ddp_hpc.config.study import StudyError

PROGRAM = {"command": "python train.py --lr {learning_rate} --steps {steps}", "files": ["train.py"]}
POINT = {"world_size": 2, "batch_size": 8, "learning_rate": 0.1, "budget": {"steps": 20}}


@pytest.fixture
def project(tmp_path):
    before = catalog.project()
    catalog.use_project(tmp_path)
    (tmp_path / "train.py").write_text("print('trains')\n")
    yield tmp_path
    catalog.use_project(before)


def test_a_command_has_the_specs_values_in_braces_and_words_stay_whole():
    given = {"command": "run '{title}' {{}} {lr10} {batch_size}-{global_batch_size} {on}", "files": ["a"]}
    given["parameters"] = {"title": "two words; rm -rf", "lr10": 1e-5, "on": True}

    one = spec.load(POINT | {"program": given})

    assert one.program.words(one.values) == ["run", "two words; rm -rf", "{}", "1e-05", "8-16", "true"]


def test_model_dataset_and_exchange_are_null_and_the_spec_is_the_same_when_read_again():
    one = spec.load(POINT | {"program": PROGRAM})
    assert spec.load(one.canonical) == one
    assert one.canonical.keys() == {"world_size", "batch_size", "learning_rate", "budget", "program"}
    row = one.columns()
    assert row["model"] is row["dataset"] is row["dtype"] is None
    assert (row["exchange"], row["program"]) == ("program", "train.py")
    assert spec.load(POINT | {"program": PROGRAM, "world_size": 1}).exchange.name == "none"  # the baseline
    changed = PROGRAM | {"command": PROGRAM["command"] + " -v"}
    assert spec.load(POINT | {"program": changed}).hash != one.hash


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"command": "train {learnin_rate}"}, "unknown field in braces 'learnin_rate' (did you mean 'learning_rate'?)"),
        ({"command": "train {seconds}"}, "{seconds} is null in this spec, with budget 20 steps"),
        ({"command": ""}, "program.command: given '' (string), expected: a string that is not empty"),
        ({"command": "  "}, "expected: a program and its arguments"),
        ({"command": "train 'a"}, "which has no end: No closing quotation"),
        ({"command": "train {seed:03d}"}, "{seed:03d}: expected a name alone in braces"),
        ({"parameters": {"depth": 2}}, "parameters: the command has no {depth}"),
        ({"parameters": {"depth": [2]}}, "depth: given the list [2], expected: a number, a string"),
        ({"files": ["trian.py"]}, "files: no file 'trian.py' in {project} (did you mean 'train.py'?)"),
        ({"files": ["nets/*.py"]}, "files: no file 'nets/*.py' in {project}"),
        ({"files": ["/etc/passwd"]}, "expected: a path within the project"),
        ({"files": []}, "program.files: given an empty list, expected: at least 1"),
        ({"comand": "x"}, "unknown key 'comand' (did you mean 'command'?)"),
    ],
)
def test_what_is_wrong_with_a_program_is_told_at_planning(project, change, words):
    file = study_file(
        project, base={"program": PROGRAM | change}, grid=without_budget(), budget=POINT["budget"], rules={}
    )

    with pytest.raises(StudyError) as error:
        expand(file)

    assert words.replace("{project}", str(project)) in str(error.value)
    assert f"{file}:" in str(error.value)


def without_budget() -> dict:
    return {name: value for name, value in POINT.items() if name != "budget"}


def expanded(project, base, **grid):
    return expand(study_file(project, base=base, grid=without_budget() | grid, budget=POINT["budget"], rules={}))


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ({"model": "mlp"}, "program stands in place of model, dataset and exchange; given beside it: model"),
        ({"optimizer": "adam"}, "optimizer=adam with program=train.py"),
    ],
)
def test_what_a_program_would_not_know_is_refused(project, base, words):
    with pytest.raises(StudyError) as error:
        expanded(project, {"program": PROGRAM} | base)
    assert words in str(error.value)


def test_parameters_are_axes_and_two_programs_need_two_names(project):
    deep = PROGRAM | {"command": "python train.py {depth} {learning_rate}", "parameters": {"depth": 1}}
    grid = {"program.depth": [1, 2, 3], "exclude": {"program.depth": 3}}

    specs = expanded(project, {"program": deep}, **grid).specs

    assert [one.program.parameters for one in specs] == [{"depth": 1}, {"depth": 2}]
    assert len({one.hash for one in specs}) == 2
    two = [PROGRAM | {"name": "mine"}, PROGRAM | {"name": "mine", "command": "python train.py"}]
    with pytest.raises(StudyError, match="two differ and are both called 'mine'"):
        expanded(project, {}, program=two)


def test_what_varies_without_being_told_is_noted(project):
    notes = expanded(project, {"program": PROGRAM}, seed=[0, 1], batch_size=[8, 16]).notes

    assert [note.split("program: ")[1].split(",")[0] for note in notes] == [
        "batch_size has 2 values",
        "seed has 2 values",
    ]


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"metric": "top5"}, "metric: given 'top5', expected: none, as a program's test metric is what it records"),
        ({"stop_when_beaten": True}, "stop_when_beaten: given true, but a program takes its steps itself"),
    ],
)
def test_rules_that_need_a_model_of_ours_are_refused(project, rules, words):
    file = study_file(project, base={"program": PROGRAM}, grid=without_budget(), budget=POINT["budget"], rules=rules)
    with pytest.raises(StudyError) as told:
        expand(file)
    assert words in str(told.value)


def test_a_budget_in_epochs_needs_their_size_and_a_program_is_named_by_its_file(project):
    program = {"command": "python train.py --lr {learning_rate} {epochs}", "files": ["train.py"]}
    file = study_file(project, base={"program": program}, grid=without_budget(), budget={"epochs": 3}, rules={})
    with pytest.raises(StudyError, match=r"expected: `train_samples` of the program \(e\.g\. .*program=train\.py, "):
        expand(file)
