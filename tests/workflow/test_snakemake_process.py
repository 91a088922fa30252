"""Snakemake as the driver sees it: what it tells of refusals, and a terminal that goes away."""

import json
import os
import pty
import signal
import sys

from ddp_hpc.runs.project import Project
from ddp_hpc.workflow.driver_lock import DriverLock
from ddp_hpc.workflow.snakemake_process import NO_MEMORY, Events, Signals, Snakemake

DRIVER = """
import pathlib, time
from ddp_hpc.workflow.snakemake_process import Signals

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


SNAKEFILE = """
rule all:
    input: expand("results/runs/{run}/run.parquet", run=config["runs"]), "results/failed", "results/killed"

rule train:
    output: "results/runs/{run}/run.parquet"
    log: "logs/train/{run}.log"
    resources: slurm_account="lab", slurm_partition="cpu", runtime=1, mem_mb=100
    shell: "touch {output}"

rule data:
    output: "results/failed"
    log: "logs/data/failed.log"
    localrule: True
    shell: "echo no such archive > {log}; exit 1"

rule table:
    output: "results/killed"
    log: "logs/table/killed.log"
    localrule: True
    shell: "sh -c 'kill -9 $$' > {log} 2>&1"
"""
# how sbatch refuses one of the two runs, and the other is there already
SBATCH = """#!/bin/sh
echo "sbatch: error: AssocMaxSubmitJobLimit" >&2
echo "sbatch: error: Batch job submission failed: the lab's limit" >&2
exit 1
"""
PROFILE = """
executor: slurm
jobs: 2
slurm-status-command: squeue
slurm-init-seconds-before-status-checks: 1
"""


class Unseen:
    """A progress display that shows nothing."""

    def show(self) -> None: ...

    def end(self) -> None: ...


def test_a_refusal_reaches_the_driver_in_the_words_of_sbatch(tmp_path, monkeypatch):
    """Snakemake itself and its Slurm plugin, with a Slurm that is made up."""
    for name, text in {"workflow/Snakefile": SNAKEFILE, "slurm/profile.yaml": PROFILE}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    (tmp_path / "bin").mkdir()
    answers = {"sbatch": SBATCH, "sacctmgr": "#!/bin/sh\necho lab\n"}
    for name in ("sbatch", "sacctmgr", "sinfo", "squeue", "scontrol", "sacct"):
        (tmp_path / "bin" / name).write_text(answers.get(name, "#!/bin/sh\n"))
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    snakemake = Snakemake(Project(tmp_path), "one", DriverLock(tmp_path), "slurm", None, more=[], signals=Signals())

    assert snakemake.start("all", Unseen(), "runs=[first,second]") == 1

    words = "sbatch: sbatch: error: AssocMaxSubmitJobLimit sbatch: error: Batch job submission failed: the lab's limit"
    assert snakemake.events.refusals() == {"first": words, "second": words}
    assert snakemake.events.refusals() == {}  # each is told once
    killed = ["logs/table/killed.log:", f"killed by SIGKILL: {NO_MEMORY}"]  # by whom nobody says, so it has no words
    failed = ["logs/data/failed.log:", "no such archive"]
    assert snakemake.said_beside() in (failed + killed, killed + failed)

    monkeypatch.setenv("PATH", os.environ["PATH"].partition(os.pathsep)[2])
    assert snakemake.start("results/runs/first/run.parquet", Unseen(), "runs=[]") == 1
    ((run, said),) = snakemake.events.refusals().items()
    assert run == "first"
    assert said.startswith("plugin: ")


def test_a_line_that_is_not_whole_waits_and_one_that_a_full_disk_has_cut_is_left_out(tmp_path):
    events = Events(tmp_path / "events")
    error = {"rule_name": "train", "rule_msg": "no memory", "output": [], "log": []}
    line = json.dumps(error)
    events.file.write_text(line[:20])
    assert events.errors() == []
    with events.file.open("a") as file:
        file.write(f"{line[20:]}\n{line[:9]}{line}\n")
    assert events.errors() == [error]
