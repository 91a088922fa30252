"""What missing runs ask for follows from what lies in the store: failed attempts, and times of runs like them."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from factory import write_run
from sandbox import Sandbox

from ddp_hpc.config.errors import StudyError
from ddp_hpc.config.machine import Machine, MachineError
from ddp_hpc.runs.project import Project
from ddp_hpc.workflow import plan, resource_requests, snakefile

STUDY = """\
base: {dataset: digits, model: mlp, exchange: ring, batch_size: 16}
grid: {world_size: [2, 4], learning_rate: [0.1, 0.2]}
budget: {steps: 10}
"""
MACHINE = Machine.model_validate(
    {
        "partitions": {
            "gpu": {"nodes": 2, "cores_per_node": 8, "gpus_per_node": 2, "memory_mb_per_node": 8000},
            "cpu": {"nodes": 9, "cores_per_node": 64, "memory_mb_per_node": 8000},
        }
    }
)


@pytest.fixture
def project(tmp_path) -> Project:
    sandbox = Sandbox.make(tmp_path)
    sandbox.study("one", STUDY)
    return Project(tmp_path)


def by_point(study_runs, asked) -> dict[tuple[int, float], object]:
    specs = {planned.run: planned.spec for planned in study_runs.planned}
    return {(specs[run].world_size, specs[run].learning_rate): one for run, one in asked.items()}


def journal(study_runs, index: int, number: int, **content) -> None:
    folder = study_runs.store.run(study_runs.planned[index].run).path / "attempts" / str(number)
    folder.mkdir(parents=True)
    (folder / "started.json").write_text(json.dumps({"request": content.pop("request", None)}))
    (folder / "ended.json").write_text(json.dumps(content))


def finish(study_runs, index: int, **ended) -> None:
    journal(study_runs, index, 1, **ended)
    one = study_runs.planned[index]
    write_run(study_runs.store.file(one.run), one.spec, {"run": one.run, "status": "ok"})


def test_the_time_is_that_of_a_finished_run_that_differs_only_in_what_takes_no_time(project):
    study_runs = project.study_runs("one")
    plan.prepare(study_runs)
    finish(study_runs, 0, status="ok", wall_s=1800, steps=10)

    asked = by_point(study_runs, resource_requests.requests([study_runs], MACHINE))

    assert asked.keys() == {(2, 0.2), (4, 0.1), (4, 0.2)}, "what is finished asks for nothing"
    assert asked[2, 0.2].runtime_min == 50, "30 minutes x 1.5 and 5 more"
    assert asked[4, 0.2].runtime_min == 60, "of another world size nothing is known"


def test_a_run_that_diverged_says_nothing_of_the_time_of_others(project):
    study_runs = project.study_runs("one")
    plan.prepare(study_runs)
    finish(study_runs, 0, status="diverged", wall_s=60, steps=2)
    assert by_point(study_runs, resource_requests.requests([study_runs], MACHINE))[2, 0.2].runtime_min == 60


def test_what_failed_for_time_or_memory_asks_for_more_than_it_had(project):
    study_runs = project.study_runs("one")
    journal(study_runs, 0, 1, status="timeout", request={"runtime_min": 60, "mem_mb": 8000})
    journal(study_runs, 0, 2, status="timeout", request={"runtime_min": 120, "mem_mb": 8000})
    journal(study_runs, 1, 1, status="oom_host", request={"runtime_min": 60, "mem_mb": 3000})
    journal(study_runs, 2, 1, status="timeout")  # of a machine file nobody had heard then

    asked = resource_requests.requests([study_runs], MACHINE)

    times = [asked[planned.run].runtime_min for planned in study_runs.planned]
    assert times == [240, 60, 60, 60]
    assert [asked[planned.run].mem_mb for planned in study_runs.planned] == [8000, 8000, 8000, 8000]


def test_what_the_machine_cannot_take_is_told_once_for_all_runs_that_have_it(project):
    (project.root / "config/studies/one.yaml").write_text("name: one\n" + STUDY.replace("[2, 4]", "[2, 4, 8]"))
    with pytest.raises(MachineError) as error:
        resource_requests.requests([project.study_runs("one")], MACHINE)
    assert str(error.value).count("\n") == 0
    assert "world_size=8, 2 to a node needs 4 nodes, and partition gpu gives 2" in str(error.value)
    assert "it would fit partition cpu (e.g. world_size 8, learning_rate 0.1; 2 runs)" in str(error.value)


def test_of_two_studies_that_share_runs_the_longer_time_counts(project):
    sandbox = Sandbox(project.root)
    sandbox.study("patient", "runtime_min: 300\n" + STUDY)
    sandbox.study("hasty", "runtime_min: 3\n" + STUDY)
    for order in (["hasty", "patient"], ["patient", "hasty"]):
        asked = resource_requests.requests([project.study_runs(name) for name in order], MACHINE)
        assert {one.runtime_min for one in asked.values()} == {300}


def test_a_job_reads_what_was_asked_for_at_its_submission(project):
    study_runs = project.study_runs("one")
    asked = resource_requests.requests([study_runs], MACHINE)
    resource_requests.write(study_runs.store, study_runs.planned, asked)
    first = study_runs.planned[0].run
    assert resource_requests.read(study_runs.store, first) == asked[first]

    resource_requests.write(study_runs.store, study_runs.planned, {})
    with pytest.raises(MachineError, match=r"request.json is missing"):
        resource_requests.read(study_runs.store, first)


def resources(text: str) -> list[dict[str, str]]:
    """Return the resources of each training in the output of `snakemake -n`."""
    lines = re.findall(r"rule train:.*?\n    resources: (.*?)\n", text, flags=re.DOTALL)
    rows = [dict(part.partition("=")[::2] for part in re.split(r", (?=\w+=)", line)) for line in lines]
    return sorted(rows, key=lambda row: row["mpi"])


def test_the_workflow_asks_slurm_for_it_where_a_machine_is_named(tmp_path):
    sandbox = Sandbox.make(tmp_path)
    sandbox.study("one", "runtime_min: 7\n" + STUDY)

    named = sandbox.call("snakemake", "-n", "trained", "--config", "studies=[one]", "machine=example")
    here = resources(sandbox.dry_run("one"))

    assert named.returncode == 0, named.stdout + named.stderr
    rows = resources(named.stdout + named.stderr)
    assert [(row["nodes"], row["tasks"], row["gpu"], row["cpus_per_task"], row["mem_mb"]) for row in rows] == [
        ("1", ranks, ranks, "16", mem) for ranks, mem in (("2", "250000"), ("2", "250000"), *[("4", "500000")] * 2)
    ]
    assert {row["slurm_partition"] for row in rows} == {"gpu"}
    assert {row["runtime"] for row in [*rows, *here]} == {"7"}, "of the study, with a machine and without"
    assert "qos" not in rows[0], "what the machine file does not give is not asked for"
    assert [row.keys() & {"tasks", "gpu", "slurm_extra"} for row in here] == [set()] * 4
    assert [row["mpi"] for row in here] == ["mpiexec -n 2"] * 2 + ["mpiexec -n 4"] * 2
    assert not list(Path(tmp_path).glob("results/runs/*/request.json")), "a dry run writes nothing"


def test_a_run_that_does_not_fit_ends_the_workflow_before_any_job(tmp_path):
    sandbox = Sandbox.make(tmp_path)
    sandbox.study("one", STUDY.replace("[2, 4]", "[2, 128]"))
    done = sandbox.call("snakemake", "-n", "trained", "--config", "studies=[one]", "machine=example")
    assert done.returncode == 1
    assert "world_size=128, 4 to a node needs 32 nodes, and partition gpu gives 16" in done.stdout + done.stderr

    settled = sandbox.call("snakemake", "-n", "all", "--config", "studies=[one]", "machine=example", "settled=1")
    assert settled.returncode == 0, "tables are made from what there is"

    shutil.rmtree(tmp_path / "config" / "machines")
    done = sandbox.call("snakemake", "-n", "trained", "--config", "studies=[one]", "machine=example")
    assert "no machine 'example' in" in done.stdout + done.stderr
    assert "expected: none; `ddp-hpc doctor --machine` proposes one" in done.stdout + done.stderr


def test_the_plan_says_what_the_runs_ask_for_and_what_that_may_cost(project):
    sandbox = Sandbox(project.root)
    plain = sandbox.call("ddp-hpc", "plan", "one")
    done = sandbox.call("ddp-hpc", "plan", "one", "--profile", "profiles/slurm")

    assert done.returncode == 0, done.stderr
    assert done.stdout.removeprefix(plain.stdout).splitlines() == [
        "  2 jobs: 1 node of gpu, 2 ranks, 2 GPUs, 16 cores each, 250000 MB of a node, 60 min",
        "  2 jobs: 1 node of gpu, 4 ranks, 4 GPUs, 16 cores each, 500000 MB of a node, 60 min",
        "at most 4.0 node-hours, if all ran to their time limits",
        "whether one job for all pays is not known: no runs like them have finished",
    ]
    rows = json.loads(sandbox.call("ddp-hpc", "plan", "one", "--json", "--profile", "profiles/slurm").stdout)["runs"]
    assert [row["request"]["gpus"] for row in rows] == [2, 2, 4, 4]


@pytest.mark.parametrize("verb", ["plan", "run"])
def test_what_the_machine_cannot_take_is_refused_by_plan_and_run(project, verb):
    sandbox = Sandbox(project.root)
    sandbox.study("large", STUDY.replace("[2, 4]", "[2, 128]"))
    done = sandbox.call("ddp-hpc", verb, "--profile", "profiles/slurm", "large")
    assert (done.returncode, done.stdout) == (2, "")
    assert "world_size=128, 4 to a node needs 32 nodes, and partition gpu gives 16; expected there" in done.stderr
    assert not (project.root / "results").exists()


def test_a_profile_that_submits_must_name_a_machine(project):
    sandbox = Sandbox(project.root)
    sandbox.edit("profiles/slurm/profile.yaml", "machine: example", "runtime_min: 5")
    done = sandbox.call("ddp-hpc", "run", "--profile", "profiles/slurm", "one")
    assert done.returncode == 2
    assert "profiles/slurm submits to Slurm and names no machine: write `config: {machine: NAME}` there" in done.stderr


EDITS = {
    "the study asks for others": ("config/studies/one.yaml", STUDY.replace("steps: 10", "steps: 20")),
    "the study is half written": ("config/studies/one.yaml", "base: {model: ["),
    "the list of the pass is gone": ("logs/pass.json", None),
}


@pytest.mark.parametrize(("file", "text"), EDITS.values(), ids=EDITS)
def test_a_job_trains_what_was_submitted_whatever_is_edited_while_it_waits(project, monkeypatch, file, text):
    monkeypatch.chdir(project.root)
    study_runs = project.study_runs("one")
    run = study_runs.planned[0].run
    plan.prepare(study_runs)
    resource_requests.write(study_runs.store, study_runs.planned, resource_requests.requests([study_runs], MACHINE))
    (project.root / "config" / "machines" / "here.yaml").write_text(json.dumps(MACHINE.model_dump(mode="json")))
    config = {"studes": ["one"], "machine": "here", "only": "logs/pass.json"}
    if text:
        (project.root / file).write_text(text)

    targets = snakefile.targets(config, in_a_job=True)
    asked = snakefile.resources(targets, in_a_job=True)

    wildcards = SimpleNamespace(run=run)
    assert targets.data_for(run) == []  # digits ship with us
    assert targets.missing == targets.wanted == []
    assert asked["mpi"](wildcards).endswith("-n 2 -c 4 --ntasks-per-node=2 --distribution=block")
    assert (asked["slurm_partition"](wildcards), asked["runtime"](wildcards)) == ("gpu", 60)

    shutil.rmtree(study_runs.store.run(run).path)
    with pytest.raises(MachineError, match=r"spec\.json is missing .* call `ddp-hpc run` again"):
        targets.data_for(run)


WRONG_CONFIG = {
    "mistyped": ({"studes": ["one"]}, "", r"^snakemake --config: unknown key 'studes' \(did you mean 'studies'\?\)"),
    "no study": ({"studies": [], "runtime_min": 7}, "", r"names no studies; expected: one$"),
    "lost": ({"studies": ["one"]}, "", r"drop the `config` of profiles/default: add 'runtime_min=7' to it"),
    "file": ({"studies": ["one"]}, "studes: [one]\n", r"config\.yaml:1: unknown key 'studes'"),
}


@pytest.mark.parametrize(("config", "file", "told"), WRONG_CONFIG.values(), ids=WRONG_CONFIG)
def test_the_workflow_refuses_settings_that_it_would_not_heed(project, monkeypatch, config, file, told):
    monkeypatch.chdir(project.root)
    monkeypatch.setattr("sys.argv", ["snakemake", "--config", "..."])
    Sandbox(project.root).edit("profiles/default/profile.yaml", "launcher: mpiexec", "runtime_min: 7")
    if file:
        (project.root / "config" / "config.yaml").write_text(file)
    with pytest.raises(StudyError, match=told):
        snakefile.targets(config)


def test_settings_that_are_given_take_the_place_of_those_of_the_profile(project, monkeypatch):
    monkeypatch.chdir(project.root)
    monkeypatch.setattr("sys.argv", ["snakemake", "--workflow-profile", "default"])
    Sandbox(project.root).edit("profiles/default/profile.yaml", "launcher: mpiexec", "runtime_min: 7")
    found = snakefile.targets({"studies": ["config/studies/one.yaml"], "runtime_min": 60, "launcher": "srun"})
    asked = snakefile.resources(found, in_a_job=False)
    wildcards = SimpleNamespace(run=found.studies["one"].missing[0].run)
    assert (asked["runtime"](wildcards), asked["mpi"](wildcards)) == (60, "srun -n 2")
