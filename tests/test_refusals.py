"""What sbatch has refused is read from the workflow's log, as it grows."""

from ddp_hpc.engine import Engine, Signals
from ddp_hpc.lock import DriverLock
from ddp_hpc.project import Project


def refusal(run: str, words: str) -> str:
    """How Snakemake 9.27 and its plugin tell of it, with no blank line behind."""
    return (
        f"Error in rule train:\n    message: SLURM sbatch failed. The error message was '{words}'.\n    sbatch call:\n"
        f"        sbatch --parsable -p cpu\n    jobid: 3\n    output: results/runs/{run}/run.parquet\n    shell:\n"
        f"        exec ddp-hpc train {run}\n        (command exited with non-zero exit code)\n"
    )


def test_every_refusal_is_read_once_also_those_in_a_row_and_those_half_written(tmp_path):
    (tmp_path / "profile.yaml").write_text("jobs: 1")
    engine = Engine(Project(tmp_path), "one", DriverLock(tmp_path), ".", None, [], Signals())
    file = tmp_path / engine.log
    file.parent.mkdir(parents=True)
    failed = "Error in rule train:\n    message: SLURM-job '5' failed\n    output: results/runs/z/run.parquet\n"
    text = "Job 1 has been submitted\n" + failed + refusal("a", "sbatch: error: no\nsbatch: no user's limit")
    text += refusal("b", "x") + failed + "Job 2 has been submitted\n" + refusal("c", "y") + failed
    found = []
    for size in range(0, len(text) + 1, 7):
        file.write_text(text[:size])
        found += engine.refusals().items()
    file.write_text(text)
    found += engine.refusals().items()
    assert found == [("a", "sbatch: error: no sbatch: no user's limit"), ("b", "x"), ("c", "y")]
