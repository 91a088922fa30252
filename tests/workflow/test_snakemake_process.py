"""Snakemake as the driver sees it: what its log says of refusals, and a terminal that goes away."""

import os
import pty
import signal
import sys

from ddp_hpc.runs.project import Project
from ddp_hpc.workflow.driver_lock import DriverLock
from ddp_hpc.workflow.snakemake_process import Engine, Signals

DRIVER = """
import pathlib, time
from ddp_hpc.engine import Signals

with Signals() as signals:
    print("begun", flush=True)
    while not signals.asked:
        time.sleep(0.05)
    print("still here", flush=True)
    pathlib.Path("left").write_text(str(signals.asked))
"""


def test_a_driver_whose_terminal_is_closed_leaves_in_order(tmp_path):
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, "-c", DRIVER])
    assert b"begun" in os.read(terminal, 1000)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (tmp_path / "left").read_text() == str([int(signal.SIGHUP)])


SBATCH = "SLURM sbatch failed. The error message was '{}'.\n    sbatch call:\n        sbatch --parsable -p cpu\n"
PLUGIN = "Job submission failed with exception: {}"  # it asks by itself whether the account is one of the user's


def refusal(run: str, words: str, whose: str = SBATCH) -> str:
    """How Snakemake 9.27 and its plugin tell of it, with no blank line behind."""
    return (
        f"Error in rule train:\n    message: {whose.format(words)}For further error details see the log\n    jobid: 3\n"
        f"    output: results/runs/{run}/run.parquet\n    shell:\n        exec ddp-hpc train {run}\n"
        "        (command exited with non-zero exit code)\n"
    )


def test_every_refusal_is_read_once_also_those_in_a_row_and_those_half_written(tmp_path):
    (tmp_path / "profile.yaml").write_text("jobs: 1")
    engine = Engine(Project(tmp_path), "one", DriverLock(tmp_path), ".", None, [], Signals())
    file = tmp_path / engine.log
    file.parent.mkdir(parents=True)
    failed = "Error in rule train:\n    message: SLURM-job '5' failed\n    output: results/runs/z/run.parquet\n"
    text = "Job 1 has been submitted\n" + failed + refusal("a", "sbatch: error: no\nsbatch: no user's limit")
    text += refusal("b", "x") + failed + refusal("d", "The given account z appears to be invalid:\nlab", PLUGIN)
    text += "Job 2 has been submitted\n" + refusal("c", "y") + failed
    found = []
    for size in range(0, len(text) + 1, 7):
        file.write_text(text[:size])
        found += engine.refusals().items()
    file.write_text(text)
    found += engine.refusals().items()
    assert found == [
        ("a", "sbatch: sbatch: error: no sbatch: no user's limit"),
        ("b", "sbatch: x"),
        ("d", "plugin: The given account z appears to be invalid: lab"),
        ("c", "sbatch: y"),
    ]
