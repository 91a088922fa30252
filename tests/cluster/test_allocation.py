"""Many short runs in one Slurm job, each a step with cores and GPUs of its own."""

import json
from itertools import pairwise

import pytest

pytestmark = pytest.mark.slurm


def test_all_runs_of_a_study_are_steps_of_one_job_and_end_with_the_page(project, cluster):
    project.edit("profiles/allocation/profile.yaml", "machine: example", "machine: test")
    project.study(
        "short",
        "base: {dataset: digits, model: {name: mlp, widths: [8]}, batch_size: 16, learning_rate: 0.1}\n"
        "budget: {steps: 20}\ntables: [runs]\nfigures: []\ngrid:\n"
        "  - {exchange: none, world_size: 1, seed: [1, 2]}\n"
        "  - {exchange: none, world_size: 1, device: cpu}\n"
        "  - {exchange: ring, world_size: 2, placement: spread}\n",
    )
    project.study(
        "paired",
        "base: {dataset: digits, model: {name: mlp, widths: [8]}, batch_size: 16, learning_rate: 0.2, device: cpu}\n"
        "budget: {steps: 20}\ntables: [pairs]\nfigures: []\nrepeats: 2\n"
        "grid: {exchange: [mpi_allreduce, ring], world_size: 2}\n"
        "pairs: {axis: exchange, values: [mpi_allreduce, ring]}\n",
    )
    run = "ddp-hpc run {} --profile profiles/allocation"
    job = project.call(
        "sbatch", "--wait", "--parsable", "--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=2", "--gpus-per-node=4",
        "--time=10", "--output=job.log", f"--wrap={run.format('short')} && {run.format('paired')}",
    )  # fmt: skip

    said = (project.root / "job.log").read_text()
    assert job.returncode == 0, said
    assert "4 of 4 runs finished" in said
    begun = sorted(project.root.glob("results/runs/*/attempts/*/started.json"))
    assert len({file.parents[2] for file in begun}) == 8  # a launch on two nodes may have been tried again
    started = [json.loads(file.read_text()) for file in begun]
    assert {one["slurm_job"] for one in started} == {job.stdout.strip()}
    assert all("--exact" in one["launcher"] for one in started)
    assert {row["status"] for row in project.status("short").values()} == {"ok"}
    assert (project.root / "results" / "studies" / "short" / "report" / "index.html").exists()

    took = sorted(
        tuple(json.loads((journal / name).read_text())["at"] for name in ("started.json", "ended.json"))
        for run in project.status("paired")
        for journal in (project.root / "results" / "runs" / run / "attempts").iterdir()
    )
    assert len(took) >= 4
    assert all(ended <= started for (_, ended), (started, _) in pairwise(took))  # alone, though there was room for 8
