"""The doctor proposes a machine file from what sinfo says, and it is a good one."""

from pathlib import Path

import pytest

from ddp_hpc.config import machine
from ddp_hpc.doctor import machine_file, software

# partition, nodes, CPUs, MB, GRES, time limit, state, size of jobs, and the default's star
LISTED = """\
gpu|12|64|515000|gpu:a100:4(S:0-3)|1-00:00:00|up|1-8|gpu*
gpu|2|128|1031000|gpu:h100:8(S:0-7),tmpdisk:900|1-00:00:00|up|1-8|gpu*
cpu|40|128+|250000|(null)|infinite|up|1-infinite|cpu
debug|1|64|515000|gpu:4|30:00|up|1|debug
404|3|8|8000|(null)|5:00:00|up|1-infinite|404
old|9|16|64000|(null)|1:00:00|down|1-infinite|old
"""
ANSWER = {
    "pmi": ["none", "pmi2", "pmix"],
    "sacct": None,
    "accounting": "accounting_storage/slurmdbd",
    "min_job_age_s": 300,
}


def read(tmp_path: Path, text: str) -> machine.Machine:
    file = tmp_path / "proposed.yaml"
    file.write_text(text)
    return machine.read(file)


def test_what_sinfo_says_becomes_a_good_machine_file(tmp_path, monkeypatch):
    monkeypatch.setattr(software, "version_of", lambda package: None)
    text = machine_file.proposal(machine_file.nodes(LISTED), ANSWER, "Open MPI")
    read_back = read(tmp_path, text)

    assert list(read_back.partitions) == ["gpu", "cpu", "debug", "404"], "what is down is left out"
    assert read_back.partition(None)[0] == "gpu", "the default, by its star"
    gpu, cpu, debug = (read_back.partitions[name] for name in ("gpu", "cpu", "debug"))
    assert (gpu.nodes, gpu.cores_per_node, gpu.gpus_per_node, gpu.memory_mb_per_node) == (8, 64, 4, 515_000)
    assert gpu.max_minutes == 1440
    assert gpu.gpu_type == "a100", "where there are several, Slurm has to be told which"
    assert "# not counted: 2 nodes of 128 cores, 8 GPUs h100, 1031000 MB" in text
    assert (cpu.nodes, cpu.cores_per_node, cpu.gpus_per_node, cpu.max_minutes) == (40, 128, 0, None)
    assert (debug.nodes, debug.gpus_per_node, debug.gpu_type, debug.max_minutes) == (1, 4, None, 30)
    assert read_back.launcher == "srun --kill-on-bad-exit=1 --mpi=pmix"
    assert read_back.status_command == "squeue"


def test_a_type_that_the_plugin_cannot_ask_for_is_told_in_a_comment(tmp_path):
    text = machine_file.proposal(
        machine_file.nodes(LISTED.replace("gpu:a100", "gpu:nvidia_a100-80gb")), ANSWER, "MPICH"
    )
    assert read(tmp_path, text).partitions["gpu"].gpu_type is None
    assert "# GPUs of type nvidia_a100-80gb, which the plugin cannot ask for: choose them by `constraint`" in text


@pytest.mark.parametrize(
    ("limit", "minutes"),
    [("infinite", None), ("5:00", 5), ("0:30", 1), ("30", 1), ("1:00:00", 60), ("2-12:00:00", 3600), ("n/a", None)],
)
def test_time_limits_are_read_as_sinfo_writes_them(limit, minutes):
    assert machine_file.minutes(limit) == minutes


@pytest.mark.parametrize(
    ("answer", "vendor", "line"),
    [
        ({}, "MPICH", "launcher: srun --kill-on-bad-exit=1 --mpi=pmi2"),
        ({"pmi": ["none"]}, "Open MPI", "launcher: mpiexec # srun has no pmix"),
        ({"min_job_age_s": 30}, "Open MPI", "status_command: sacct # squeue forgets a job 30 s after its end"),
        ({"min_job_age_s": 30, "sacct": "disabled"}, "Open MPI", "status_command: squeue"),
        (
            {"accounts": ["lab", "shared"]},
            "MPICH",
            "# account: lab # who pays, if not Slurm's default; yours: lab, shared",
        ),
        ({"accounts": None}, "MPICH", "# account: NAME # who pays, if your site wants it named"),
    ],
)
def test_launcher_and_status_command_are_those_that_work_there(answer, vendor, line):
    assert line in machine_file.proposal(machine_file.nodes(LISTED), ANSWER | answer, vendor)


def test_without_slurm_it_says_where_to_call_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(machine_file.NoSlurmError, match=r"sinfo: .*; call this on the login node of the cluster"):
        machine_file.main()
