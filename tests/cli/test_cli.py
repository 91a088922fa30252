"""What the planning verbs print."""

import argparse
import json
import os
import re

import factory
import pytest
from sandbox import Sandbox

from ddp_hpc.cli import listing, main
from ddp_hpc.config.settings import ProfileConfig
from ddp_hpc.config.study import StudyError
from ddp_hpc.runs.project import Project
from ddp_hpc.system.process import process_created
from ddp_hpc.system.progress import ProgressLine
from ddp_hpc.system.terminal import duration, rank_time
from ddp_hpc.workflow import plan, progress

BASE = "base: {dataset: digits, model: mlp, exchange: none, world_size: 1, batch_size: 16}\nbudget: {steps: 5}\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Sandbox:
    return Sandbox.make(tmp_path_factory.mktemp("cli") / "project")


def test_a_pattern_that_fits_nothing_and_points_given_twice_are_told(project):
    project.study(
        "notes", BASE + "grid: {learning_rate: [0.1, 1e-1, 0.2], exclude: [{learning_rate: 7}, {learning_rate: 0.2}]}\n"
    )

    said = project.call("ddp-hpc", "plan", "notes").stdout

    assert "notes: 1 run: 1 not yet run (1 new)" in said
    assert "note: " in said
    assert "notes.yaml:4: exclude: {learning_rate: 7} fits no point" in said
    assert "1 of 2 runs is given more than once" in said


def test_a_value_that_a_field_cannot_have_is_an_error_in_a_pattern_too(project):
    pattern = "{exchange: rin, optimizer: adm, learning_rate: '0.1'}"
    project.study("typo", BASE + f"grid: {{learning_rate: [0.1, 0.2], exclude: {pattern}}}\n")

    done = project.call("ddp-hpc", "plan", "typo")

    assert done.returncode == 2
    assert "typo.yaml:4: exchange: no exchange 'rin' (did you mean 'ring'?)" in done.stderr
    assert "typo.yaml:4: optimizer: given 'adm' (string), expected: 'sgd' or 'adam' (did you mean" in done.stderr
    assert "typo.yaml:4: learning_rate: given '0.1' (string; write numbers without quotes)" in done.stderr


def test_a_plan_gives_each_reason_once_with_the_nearest_run(project):
    project.study("near", BASE + "grid: {learning_rate: [0.1, 10], seed: [1, 2]}\n")
    project.finish("near")
    project.edit("config/studies/near.yaml", "[0.1, 10]", "[0.1, 10, 0.3]")

    said = project.call("ddp-hpc", "plan", "near").stdout

    assert "near: 6 runs: 4 finished, 2 not yet run (2 new)" in said
    assert "2 new: learning_rate 0.3 (nearest run: 0.1); e.g. learning_rate 0.3, seed 1" in said
    assert project.call("ddp-hpc", "plan", "near", "--all").stdout.count("\n  kept ") == 4


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


@pytest.mark.parametrize("field", ["world_size", "exchange", "dataset", "budget", "seed"])
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
    assert "dataset 'digits': train_samples=5000, expected: 1 to 1437" in done.stderr


def test_options_are_listed_in_words_and_as_structure(project):
    said = project.call("ddp-hpc", "list", "models").stdout
    rows = {row["model"]: row for row in json.loads(project.call("ddp-hpc", "list", "models", "--json").stdout)}

    assert "widths: a list of integers > 0 (default: [64, 32])" in said
    assert rows["mlp"]["options"] == [{"name": "widths", "allowed": "a list of integers > 0", "default": [64, 32]}]


def test_a_plan_for_programs_has_notes_counts_hours_and_every_run(project):
    project.study("values", BASE + "grid: {learning_rate: [0.1, 0.3], exclude: {learning_rate: 7}}\n")
    project.finish("values")
    for folder in (project.root / "results" / "runs").glob("none-w1-b16-lr0.*"):
        journal = folder / "attempts" / "1"
        journal.mkdir(parents=True, exist_ok=True)
        (journal / "ended.json").write_text('{"status": "ok", "wall_s": 8.0, "train_s": 6.0, "steps": 5}')
    project.edit("config/studies/values.yaml", "budget: {steps: 5}", "budget: {steps: 3000}")

    plan = json.loads(project.call("ddp-hpc", "plan", "values", "--json").stdout)
    said = project.call("ddp-hpc", "plan", "values").stdout

    assert plan["study"] == "values"
    assert "fits no point" in plan["notes"][0]
    assert plan["counts"] == {"new": 2}
    assert [run["estimate_s"] for run in plan["runs"]] == [3602.0, 3602.0]  # 2 s to start, 1.2 s for each step
    assert plan["hours"]["ranks_h"] == pytest.approx(2 * 3602 / 3600)
    assert "2 runs to train: about 2 h 0 min one after the other, 2.0 rank-hours" in said


def test_points_that_a_run_s_name_does_not_tell_apart_are_told_apart(project):
    project.study("twins", BASE + "grid: {learning_rate: 0.1, optimizer: [sgd, adam]}\n")

    said = project.call("ddp-hpc", "plan", "twins", "--all").stdout

    assert "(optimizer sgd)" in said
    assert "(optimizer adam)" in said


def test_a_reason_shows_options_and_budgets_in_words(project):
    project.study("wide", BASE + "grid: {learning_rate: 0.9}\n")
    project.finish("wide")
    project.edit("config/studies/wide.yaml", "model: mlp", "model: {name: mlp, widths: [8]}")
    project.edit("config/studies/wide.yaml", "budget: {steps: 5}", "budget: {steps: 6}")

    said = project.call("ddp-hpc", "plan", "wide").stdout

    assert "model mlp (widths 8) (nearest run: mlp); budget 6 steps (nearest run: 5 steps)" in said


def test_many_new_runs_are_grouped_by_the_fields_in_which_they_differ(tmp_path):
    grid = [{"exchange": "none", "world_size": 1, "batch_size": 16, "learning_rate": [0.1, 0.2]}]
    finished = factory.planned(tmp_path, grid=grid)
    plan.prepare(finished)
    for planned in finished.planned:
        factory.write(finished, planned, factory.realistic(planned.spec))
    rates = [0.1, 0.2, *(number / 10 for number in range(3, 13))]
    more = {"exchange": ["ring", "mpi_allreduce"], "world_size": [2, 4], "batch_size": [16, 32], "learning_rate": rates}
    study_runs = factory.planned(tmp_path, grid=[*grid, more])

    lines = listing.plan_lines(study_runs, plan.plan(study_runs), everything=False)

    assert lines[1].startswith("  96 new: exchange ring, mpi_allreduce (nearest run: none) in 96; e.g. ")
    assert lines[2:5] == [
        "      world_size 2, 4 (nearest run: 1) in 96",
        "      batch_size 32 (nearest run: 16) in 48",
        "      learning_rate 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, ... (10 values) (nearest run: 0.2) in 80",
    ]
    assert "96 runs to train" in lines[5]


def test_progress_tells_runs_apart_on_little_space(project, capsys):
    models = "model: [mlp, {name: mlp, widths: [150, 200]}]"
    project.study(
        "short", BASE + f"grid: {{{models}, learning_rate: [11, 12], compile: [true, false], seed: [1, 2]}}\n"
    )
    study_runs = Project.here(project.root).study_runs("short")
    last = study_runs.planned[-1].run
    journal = study_runs.store.run(last).path / "attempts" / "1"
    shown = progress.TrainingProgress(study_runs, study_runs.planned)
    shown.line = ProgressLine(at_once=True)
    journal.mkdir(parents=True)
    mine = {
        "at": "now",
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "process_created": process_created(os.getpid()),
    }
    (journal / "started.json").write_text(json.dumps(mine))

    shown.show()

    assert (
        "0 of 16 runs trained, 0 s; now mlp (widths 150-200), rate 12.0, seed 2, compile False"
        in capsys.readouterr().out
    )
    assert study_runs.describe(last) == "model mlp (widths 150-200), learning_rate 12.0, seed 2, compile False"
    assert "mlp (widths 150-200)" in project.call("ddp-hpc", "list", "short").stdout


def test_time_left_counts_what_runs_side_by_side_have_done(project, capsys):
    """One of eight runs has ended, the others are nine tenths through: not seven times as long is left, but a tenth."""
    project.study("many", BASE + "grid: {learning_rate: [13, 14], optimizer: [sgd, adam], seed: [1, 2]}\n")
    study_runs = Project.here(project.root).study_runs("many")
    shown = progress.TrainingProgress(study_runs, study_runs.planned)
    shown.line = ProgressLine(at_once=True)
    shown.began -= 79
    journals = [study_runs.store.run(one.run).path / "attempts" / "1" for one in study_runs.planned]
    for journal in journals:
        journal.mkdir(parents=True)
        (journal / "progress.json").write_text(json.dumps({"step": 90, "steps_asked": 100, "eta_s": 8}))
    (journals[0] / "ended.json").write_text(json.dumps({"status": "crashed"}))

    shown.show()

    assert re.search(r"1 failed, 7 running, 1 min 19 s, about (7|8) s left", capsys.readouterr().out)


def test_the_example_of_a_machine_is_not_taken_for_one(project):
    project.study("fresh", BASE + "grid: {learning_rate: 0.7}\n")
    refused = project.call("ddp-hpc", "run", "fresh", "--profile", "profiles/slurm")
    assert refused.returncode == 2
    assert "names the machine 'example'" in refused.stderr
    assert "doctor --machine" in refused.stderr


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "slurm",
            None,
            ["slurm has no profile.yaml (did you mean 'profiles/slurm'?)", "profiles/allocation"],
        ),
        ("profiles/nothing", "", ["profiles/nothing/profile.yaml: is empty"]),
    ],
)
def test_a_wrong_profile_is_told(project, name, text, said):
    if text is not None:
        (project.root / name).mkdir()
        (project.root / name / "profile.yaml").write_text(text)
    with pytest.raises(StudyError) as error:
        Project(project.root).profile(name)
    assert all(part in str(error.value) for part in said)


def test_the_words_for_what_was_not_run_are_the_same_everywhere(project):
    project.study("fresh", BASE + "grid: {learning_rate: [0.7, 0.8]}\n")

    assert "fresh: 2 runs: 2 not yet run (2 new)" in project.call("ddp-hpc", "plan", "fresh").stdout
    assert "fresh: 0 of 2 runs finished: 2 not yet run" in project.call("ddp-hpc", "status", "fresh").stdout


@pytest.mark.parametrize("verb", main.VERBS)
def test_every_argument_has_its_help(verb):
    parser = argparse.ArgumentParser()
    main.VERBS[verb].add_to(parser)
    assert [action.dest for action in parser._actions if not action.help] == []


@pytest.mark.parametrize(
    ("seconds", "words", "ranks"),
    [
        (8.4, "8 s", "8 rank-seconds"),
        (165, "2 min 45 s", "2.8 rank-minutes"),
        (3599.6, "1 h 0 min", "60.0 rank-minutes"),
        (11_400, "3 h 10 min", "3.2 rank-hours"),
        (4_000_000, "1111 h 6 min", "1,111.1 rank-hours"),
    ],
)
def test_durations_in_words(seconds, words, ranks):
    assert duration(seconds) == words
    assert rank_time(seconds) == ranks


@pytest.mark.parametrize("given", ["run s --profile p -- -n --quiet", "run --profile p s -- -n --quiet"])
def test_what_follows_two_dashes_is_for_snakemake(given, monkeypatch):
    asked = []
    monkeypatch.setattr("ddp_hpc.workflow.driver.run", lambda project, *rest: asked.append(rest) or 0)

    with pytest.raises(SystemExit):
        main.main(given.split())

    assert asked == [("s", "p", None, ["-n", "--quiet"])]


def said_by(capsys, *words: str) -> str:
    """What a call with these words prints, on both streams."""
    with pytest.raises(SystemExit):
        main.main(words)
    return "".join(capsys.readouterr())


def test_choices_are_listed_outside_of_a_project_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "widths: a list of integers > 0" in said_by(capsys, "list", "models")
    assert "is in no ddp-hpc project" in said_by(capsys, "list")


def test_who_leaves_out_a_word_is_told_which_there_are(project, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert said_by(capsys, "plan").endswith("required: study\n")
    monkeypatch.chdir(project.root)
    project.study("there", BASE + "grid: {learning_rate: 0.1}\n")
    listed = ", ".join(Project(project.root).studies)
    assert said_by(capsys, "run").endswith(f"required: study; expected: {listed}\n")
    assert f"required: study; expected: {listed}\n" in said_by(capsys, "table")
    assert "required: dataset; expected: cifar10, " in said_by(capsys, "data")
    assert "required: VERB; expected: init, list, plan, try, run" in said_by(capsys)


def test_a_path_means_the_file_that_it_names(project, tmp_path, monkeypatch):
    project.study("tiny", BASE + "grid: {learning_rate: 0.1}\n")
    here, other = Project(project.root), tmp_path / "tiny.yaml"
    other.write_text("name: tiny\n")
    studies = project.root / "config" / "studies"
    monkeypatch.chdir(studies)
    for given in ("tiny", "tiny.yaml", "./tiny.yaml", "config/studies/tiny.yaml", str(studies / "tiny.yaml")):
        assert here.study_file(given) == studies / "tiny.yaml"
    monkeypatch.chdir(tmp_path)
    for given in ("tiny.yaml", "./tiny.yaml", str(other), "../tiny.yaml", "x/tiny.yaml", "config/studies/tiny"):
        with pytest.raises(StudyError, match=rf"{re.escape(given)} is .*; expected, by name: .*tiny"):
            here.study_file(given)
    with pytest.raises(StudyError, match=r"no study 'tin' in .* \(did you mean 'tiny'\?\)"):
        here.study_file("tin")


@pytest.mark.parametrize(("verb", "names"), [("table", ["runs"]), ("figure", ["loss_curves"]), ("report", [])])
def test_what_is_made_of_a_study_lies_in_its_folder_however_it_is_named(project, monkeypatch, capsys, verb, names):
    project.study("named", BASE + "grid: {learning_rate: 0.1}\n")
    monkeypatch.chdir(project.root)
    asked = []
    for module in ("ddp_hpc.analysis.tables", "ddp_hpc.analysis.figures", "ddp_hpc.analysis.report.page"):
        monkeypatch.setattr(f"{module}.make", lambda *given, **_: asked.append(given) or project.root)
    monkeypatch.setattr("ddp_hpc.analysis.tables.lines", lambda *given: [])

    said_by(capsys, verb, "config/studies/named.yaml", *names)

    folder = project.root / "results" / "studies" / "named"
    assert folder in asked[0] or folder / f"{verb}s" in asked[0]


@pytest.mark.parametrize(
    "words",
    [
        ["train", "run", "--time-limit-min"],
        ["train", "run", "--checkpoint-every-s"],
        ["predict", "study", "--bandwidth", "1", "--latency"],
        ["predict", "study", "--latency", "0", "--bandwidth"],
        ["prune", "--older-than"],
        ["bench", "gpu", "--seconds"],
        ["bench", "meters", "--steps"],
        ["bench", "planning", "--points"],
    ],
)
@pytest.mark.parametrize("number", ["nan", "inf", "-1", "x"])
def test_a_number_that_would_be_ignored_is_refused(words, number, capsys):
    with pytest.raises(SystemExit) as ended:
        main.main([*words, number])

    assert ended.value.code == 2
    assert f"argument {words[-1]}: given {number!r}, expected: a" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keys", "config", "told"),
    [
        ({}, {}, ["60 min, up to 5 h 0 min"]),
        ({"runtime_min": 301}, {}, []),
        ({}, {"runtime_min": 301}, []),
        ({}, {"machine": "cluster"}, []),  # which asks for time by what was measured
    ],
)
def test_a_plan_tells_of_runs_that_will_take_longer_than_they_may(tmp_path, keys, config, told):
    study_runs = factory.planned(tmp_path, **keys)
    estimate = plan.Estimate(low_s=10.0, middle_s=18_000.0, high_s=1e6, of=1)
    items = [plan.Item(one, "new", "", estimate) for one in study_runs.planned]

    notes = plan.with_time_limit(study_runs, items, ProfileConfig(**config)).notes

    assert ["60 min" in note and note.partition("limit of ")[2].partition(":")[0] for note in notes] == told


@pytest.mark.parametrize(
    ("gpus", "told"),
    [
        (0, "36 runs would end .* no GPUs: none on 1 rank, ring on 1 rank, ring on 2 ranks and more;"),
        (1, "18 runs would end .* 1 GPU: ring on 2 ranks, ring on 4 ranks;"),
    ],
)
def test_a_plan_tells_of_runs_that_will_be_refused_for_want_of_gpus(tmp_path, gpus, told):
    study_runs = factory.planned(tmp_path, base=factory.STUDY["base"] | {"device": "cuda"})
    items = [plan.Item(one, "new", "", None) for one in study_runs.planned]
    (note,) = plan.with_gpus(study_runs, items, ProfileConfig(), gpus).notes[len(study_runs.notes) :]
    assert re.search(told, note)
    assert plan.with_gpus(study_runs, items, ProfileConfig(machine="cluster"), gpus).notes == study_runs.notes
    assert plan.with_gpus(study_runs, items, ProfileConfig(), 64).notes == study_runs.notes


def test_hidden_files_are_no_studies_and_what_is_no_file_is_told(tmp_path):
    folder = factory.study_file(tmp_path).parent
    (folder / "._made_up.yaml").write_text("left by macOS")
    (folder / "link.yaml").symlink_to("nowhere")
    project = Project(tmp_path)

    assert project.studies == ["link", "made_up"]
    with pytest.raises(StudyError, match="link that leads nowhere"):
        project.study_file("link")
    with pytest.raises(StudyError, match=r"expected: link, made_up$"):
        project.study_file("other")


def test_a_project_is_made_in_no_folder_that_was_not_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SystemExit) as ended:
        main.main(["init", ""])

    assert (ended.value.code, list(tmp_path.iterdir())) == (2, [])
    assert "given no folder" in capsys.readouterr().err


def test_a_run_may_be_named_by_its_folder_as_a_shell_completes_it(tmp_path, monkeypatch, capsys):
    run, *_ = factory.made_up(tmp_path).planned
    monkeypatch.chdir(tmp_path)
    for named in (run.run, f"results/runs/{run.run}/", str(tmp_path / "results" / "runs" / run.run)):
        said = said_by(capsys, "train", named)
        assert f"nothing to do: {run.run} has a finished record" in said
