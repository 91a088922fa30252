"""In which order runs are trained: in rounds of repeats, so that a slow minute meets all points alike."""

from factory import planned
from sandbox import Sandbox

from ddp_hpc.runs.project import Project
from ddp_hpc.workflow.targets import StudyTargets, Targets

BASE = (
    "base: {dataset: digits, model: mlp, batch_size: 16, learning_rate: 0.1, threads_per_rank: 1}\nbudget: {steps: 2}\n"
)
GRID = "grid:\n- {exchange: none, world_size: 1}\n- {exchange: [ring, mpi_allreduce], world_size: 1}\n"


def targets_of(folder, *names):
    project = Project(folder)
    return Targets(project, {name: StudyTargets(project, project.study_runs(name), settled=False) for name in names})


def in_rounds(folder, **keys):
    study_runs = planned(folder, **keys)
    return [
        (one.spec.exchange.name, one.spec.batch_size, one.spec.seed)
        for one in StudyTargets(Project(folder), study_runs, settled=False).in_rounds
    ]


def test_all_points_come_once_before_any_comes_twice(tmp_path):
    grid = [
        {"exchange": "none", "world_size": 1, "batch_size": [16, 32], "learning_rate": 0.1},
        {"exchange": "ring", "world_size": 2, "batch_size": 16, "learning_rate": 0.1, "seed": [7, 5]},
    ]
    points = [("none", 16), ("none", 32)]

    assert in_rounds(tmp_path, grid=grid, repeats=2) == [
        *((*point, 0) for point in points),
        ("ring", 16, 5),
        *((*point, 1) for point in points),
        ("ring", 16, 6),
        ("ring", 16, 7),
        ("ring", 16, 8),
    ]


def test_studies_follow_one_another_and_a_shared_run_comes_with_the_first(tmp_path):
    project = Sandbox.make(tmp_path / "project")
    project.study("one", BASE + GRID + "repeats: 2\n")
    project.study("two", BASE + "grid: {exchange: ring, world_size: 1, learning_rate: [0.1, 0.2]}\n")
    targets = targets_of(project.root, "one", "two")
    order = sorted(targets.priority, key=targets.priority.__getitem__, reverse=True)

    assert len(order) == 6 + 1
    assert len(set(targets.priority.values())) == 7
    assert [targets.planned[run].spec.seed for run in order] == [0, 0, 0, 1, 1, 1, 0]
    assert targets.planned[order[-1]].spec.learning_rate == 0.2
