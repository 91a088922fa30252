"""What a claim reads is checked before any run; an edit of a claim makes its table and the page anew, nothing else."""

import importlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from factory import STUDY, made_up, planned, study_file

from ddp_hpc.config import catalog
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.config.study import StudyError
from ddp_hpc.runs import identity
from ddp_hpc.runs.project import Project
from ddp_hpc.workflow import claims_check
from ddp_hpc.workflow.targets import StudyTargets

ROOT = Path(__file__).parents[2]
GRID = [
    {"exchange": "none", "world_size": 1, "batch_size": 16, "learning_rate": 0.1},
    {"exchange": "ring", "world_size": [1, 2, 4], "batch_size": 16, "learning_rate": 0.1},
]
CLAIM = {
    "id": "half",
    "statement": "2 ranks are at least 1.5 times as fast",
    "source": "X (2017)",
    "ours": {"value": {"table": "scaling", "column": "speedup", "where": {"world_size": 2}}},
    "expect": {"at_least": 1.5},
    "applies_when": ["quiet", "within_cores"],
}


def changed(**more):
    return json.loads(json.dumps(CLAIM)) | more


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """A study in which fields, options and budgets vary, and pairs are compared."""
    axes = {"batch_size": [16, 32], "learning_rate": [0.1, 0.5], "placement": [None, "packed"]}
    averaged = ["ring", {"name": "weight_average", "period": 10}, "mpi_allreduce"]
    pairs = {"axis": "exchange", "values": ["ring", "mpi_allreduce"]}
    grid = [GRID[0] | axes, axes | {"exchange": averaged, "world_size": [2, 4]}]
    return planned(tmp_path_factory.mktemp("several"), grid=grid, pairs=pairs, repeats=2)


def checked(folder, *claims):
    study_file(folder, grid=GRID, claims=list(claims))
    project = Project(folder)
    return claims_check.checked(project, project.study_runs(STUDY["name"]))


def test_a_claim_that_reads_what_there_is_has_no_note(tmp_path):
    assert checked(tmp_path, CLAIM).notes == ()


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        ({"column": "spedup"}, ["unknown column 'spedup'", "did you mean 'speedup'", "(table scaling)"]),
        ({"column": "reason"}, ["unknown column of numbers 'reason'", "speedup"]),
        ({"where": {"kinde": "weak"}}, ["unknown column 'kinde'", "did you mean 'kind'"]),
    ],
)
def test_a_column_that_a_table_does_not_have_is_told_with_its_line(tmp_path, cells, told):
    ours = {"value": CLAIM["ours"]["value"] | cells}
    with pytest.raises(StudyError) as error:
        checked(tmp_path, CLAIM, changed(id="other", ours=ours))

    lines = (tmp_path / "config" / "studies" / f"{STUDY['name']}.yaml").read_text().splitlines()
    name = next(iter(cells.values()))
    word = name if isinstance(name, str) else next(iter(name))
    number = next(number for number, line in enumerate(lines, start=1) if f"{word}" in line.replace(":", " ").split())
    assert f"{STUDY['name']}.yaml:{number}: " in str(error.value)
    assert [part for part in told if part not in str(error.value)] == []


@pytest.mark.parametrize("name", Project(ROOT).studies)
def test_the_claims_of_every_study_can_be_judged_by_its_runs(name):
    """Their tables have what they read, and some machine meets their conditions."""
    claims_check.checked(Project(ROOT), Project(ROOT).study_runs(name))


@pytest.mark.parametrize(("cores", "notes"), [(4, 0), (2, 1)])
def test_a_machine_with_too_few_cores_for_a_claim_says_so_before_it_trains(tmp_path, cores, notes):
    found = claims_check.noted(checked(tmp_path, CLAIM, ON_4 | {"id": "four"}), cores).notes

    assert len(found) == notes
    assert all("1 of 2 claims will not be testable here" in note and note.endswith(": four") for note in found)


SMALL = (
    re.search(r"^SMALL := ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].replace("\\", "").split()
)


@pytest.mark.parametrize("name", SMALL)
def test_two_cores_can_answer_all_claims_of_the_studies_that_make_runs_for_publication(name):
    study_runs = Project(ROOT).study_runs(name)

    assert claims_check.noted(study_runs, cores=2).notes == study_runs.notes
    assert study_runs.study.claims
    assert study_runs.study.publication.lacking == []


def test_a_trend_over_texts_is_refused(tmp_path):
    trend = {"table": "runs", "column": "train_s", "over": "exchange", "as": "increasing"}
    with pytest.raises(StudyError, match="over: unknown column of numbers 'exchange'"):
        checked(tmp_path, changed(ours={"trend": trend}, expect=None))


def test_a_budget_that_is_none_is_told_before_any_run(tmp_path):
    ours = {"value": CLAIM["ours"]["value"] | {"where": {"budget": {"stepz": 600}}}}
    with pytest.raises(StudyError, match=r"unknown key 'stepz' .*expected: samples_seen, epochs, steps, seconds"):
        checked(tmp_path, changed(ours=ours))


def test_a_claim_that_reads_no_run_of_the_study_is_refused(tmp_path):
    ours = {"value": CLAIM["ours"]["value"] | {"where": {"world_size": 40}}}
    with pytest.raises(StudyError, match=r"\.yaml:\d+: no run of the study fits the claim half"):
        checked(tmp_path, changed(ours=ours))


SPREAD = {"exchange": "ring", "world_size": 4, "placement": "spread", "ranks_per_node": 2}
ON_4 = changed(ours={"value": {"table": "runs", "column": "train_s", "where": {"world_size": 4, "exchange": "ring"}}})


@pytest.mark.parametrize(
    ("grid", "condition", "told"),
    [
        ({"device": "cpu"}, "gpu", "asks for GPUs, and all runs that it reads have device: cpu"),
        ({"device": "cuda"}, "gpu", None),
        ({}, "gpu", None),  # a GPU where there is one
        ({}, {"ranks": 4}, None),
        ({}, {"ranks": 5}, "asks for 5 ranks, and no run that it reads can have more than 4"),
        ({}, {"ranks": {"at_most": 3}}, "asks for at most 3 ranks, and a run that it reads has 4"),
        ({}, {"nodes": 4}, None),  # as a machine may place them
        ({}, {"nodes": 5}, "asks for 5 nodes, and no run that it reads can have more than 4"),
        ({}, {"ranks_per_node": 5}, "asks for 5 ranks per node, and no run that it reads can have more than 4"),
        (SPREAD, {"nodes": 2}, None),
        (SPREAD, {"nodes": 3}, "asks for 3 nodes, and no run that it reads can have more than 2"),
        (SPREAD, {"nodes": {"at_most": 1}}, "asks for at most 1 nodes, and a run that it reads has 2"),
        (SPREAD, {"ranks_per_node": {"at_most": 2}}, None),
        (
            SPREAD,
            {"ranks_per_node": {"at_most": 1}},
            "asks for at most 1 ranks per node, and a run that it reads has 2",
        ),
    ],
)
def test_a_condition_that_no_run_can_meet_is_refused(tmp_path, grid, condition, told):
    claim = ON_4 | {"applies_when": ["quiet", condition, "within_cores"]}
    study_file(
        tmp_path,
        grid=[GRID[0], {"batch_size": 16, "learning_rate": 0.1} | {"exchange": "ring", "world_size": 4} | grid],
        claims=[claim],
    )
    project = Project(tmp_path)
    if told is None:
        assert claims_check.checked(project, project.study_runs(STUDY["name"])).notes == ()
        return
    with pytest.raises(StudyError) as error:
        claims_check.checked(project, project.study_runs(STUDY["name"]))
    assert str(error.value).endswith(f": applies_when: the claim half can never be judged: it {told}")


@pytest.mark.parametrize("name", [name for name in catalog.names("table") if name != "claims"])
def test_a_few_runs_tell_the_columns_of_all(several, name):
    build = importlib.import_module(f"ddp_hpc.analysis.tables.{name}").build
    few = claims_check._few(several)

    assert len(few) < len(several.planned) / 4
    of_few, of_all = (
        set(build(study_runs)) - set(SPEC_COLUMNS) for study_runs in (replace(several, planned=few), several)
    )
    assert of_few == of_all


def test_without_claims_planning_stays_as_quick_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(claims_check, "read_mapping", None)

    assert checked(tmp_path).notes == ()


def stamps(folder, *claims):
    """The stamps of all tables, figures and the page, by name."""
    study_file(folder, grid=GRID, claims=list(claims))
    project = Project(folder)
    targets = StudyTargets(project, project.study_runs(STUDY["name"]), settled=True)
    return dict(stamp.rsplit("/", 1)[1].split(".") for stamp in targets.stamps)


def anew(before, after):
    return {name for name in after if before.get(name) != after[name]}


@pytest.fixture
def finished(tmp_path):
    made_up(tmp_path, grid=GRID, claims=[CLAIM])
    return tmp_path


def test_an_edit_of_a_claim_makes_its_table_and_the_page_anew_and_trains_nothing(finished):
    before = stamps(finished, CLAIM)

    assert stamps(finished, CLAIM) == before
    assert anew(before, stamps(finished, changed(expect={"at_least": 1.6}))) == {"table-claims", "report-report"}
    assert anew(before, stamps(finished)) == {"report-report"}
    project = Project(finished)
    study_file(finished, grid=GRID, claims=[changed(statement="another")])
    assert StudyTargets(project, project.study_runs(STUDY["name"]), settled=False).missing == []


def test_the_code_of_a_table_that_is_read_makes_the_verdicts_anew(finished, monkeypatch):
    before = stamps(finished, CLAIM)
    whole = identity.file_hash
    for name, those in (("scaling", {"table-scaling", "table-claims"}), ("phases", {"table-phases"})):
        file = catalog.path("table", name)
        monkeypatch.setattr(identity, "file_hash", lambda path, file=file: whole(path) + ("x" if path == file else ""))
        found = {name for name in anew(before, stamps(finished, CLAIM)) if name.startswith("table")}
        assert found == those
