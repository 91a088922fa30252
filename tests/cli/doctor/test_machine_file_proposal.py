"""The doctor proposes a machine file from what sinfo says, and it is a good one."""

from pathlib import Path

import pytest

from ddp_hpc.cli.doctor import machine_file, software
from ddp_hpc.config import machine

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


# GRES of nodes as sites' `sinfo -o %G` prints them, and what a node then has
GRES = {
    "(null)": {},
    "gpu:4": {"": 4},
    "gpu": {"": 1},
    "gpu:a100": {"a100": 1},
    "gpu:a100:4": {"a100": 4},
    "gpu:a100:4(S:0-3)": {"a100": 4},
    "gpu:4(S:0,2)": {"": 4},
    "gpu:v100:2(S:0),gpu:v100:2(S:1)": {"v100": 4},
    "gpu:h100:8(S:0-7),tmpdisk:900": {"h100": 8},
    "gpu:2080ti:8(S:0-1)": {"2080ti": 8},
    "gpu:1080:2": {"1080": 2},
    "gpu:rtx_2080_ti:10(S:0-1)": {"rtx_2080_ti": 10},
    "gpu:nvidia_a100-sxm4-80gb:4(S:0,1)": {"nvidia_a100-sxm4-80gb": 4},
    "gpu:nvidia_h100_80gb_hbm3:4(S:0-1)": {"nvidia_h100_80gb_hbm3": 4},
    "gpu:nvidia_gh200_480gb:1(S:0)": {"nvidia_gh200_480gb": 1},
    "gpu:1g.10gb:7": {"1g.10gb": 7},
    "gpu:a100_1g.5gb:7,gpu:a100_2g.10gb:3": {"a100_1g.5gb": 7, "a100_2g.10gb": 3},
    "gpu:a100:2(S:0),gpu:1g.10gb:14(S:1)": {"1g.10gb": 14, "a100": 2},
    "gpu:nvidia_a100_80gb_pcie_1g.10gb+me:1(S:0)": {"nvidia_a100_80gb_pcie_1g.10gb+me": 1},
    "gpu:mi250x:8(S:0-7)": {"mi250x": 8},
    "gpu:pvc:4(S:0-1),lustre:1": {"pvc": 4},
    "gpu:tesla:no_consume:2": {"tesla": 2},
    "gpu:k80:4,gpu:p100:4,mps:400": {"k80": 4, "p100": 4},
    "craynetwork:4": {},
    "craynetwork:4,gpu:4": {"": 4},
    "bandwidth:lustre:no_consume:4G": {},
    "gpu_mem:80": {},
    "vgpu:4": {},
    "shard:a100:16(S:0),gpu:a100:4(S:0)": {"a100": 4},
    "gpu:gtx_titan_x:4(IDX:0-3)": {"gtx_titan_x": 4},
    "nvme:1,localssd:1.7T": {},
}


@pytest.mark.parametrize(("gres", "counts"), GRES.items())
def test_gpus_are_counted_once_by_their_type(gres, counts):
    assert machine_file.gpus(gres) == counts


def test_of_several_types_in_one_node_the_most_are_asked_for_and_the_others_named(tmp_path):
    listed = "mixed|3|64|515000|gpu:a100:2(S:0),gpu:1g.10gb:14(S:1)|1:00:00|up|1-3|mixed*\n"
    text = machine_file.proposal(machine_file.nodes(listed), ANSWER, "MPICH")
    mixed = read(tmp_path, text).partitions["mixed"]
    assert (mixed.gpus_per_node, mixed.gpu_type) == (14, "1g.10gb")
    assert "mixed: # not counted: 2 GPUs a100" in text


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("gpu|2|64|515000|gpu:a100:4K|1:00:00|up|1|gpu", "GRES 'gpu:a100:4K', expected: gpu[:TYPE][:COUNT]"),
        ("gpu|2|64|515000|gpu:a100:4|1:00:00|up|1", "8 columns, expected: 9"),
        ("gpu|2|many|515000|gpu:4|1:00:00|up|1|gpu", "'many', expected: a number"),
        ("gpu|2|64|515000|gpu:4|a while|up|1|gpu", "time limit 'a while'"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_line(line, told):
    with pytest.raises(machine_file.NoSlurmError) as refused:
        machine_file.nodes(f"Welcome!\n{LISTED}{line}\n")
    assert repr(line) in str(refused.value)
    assert told in str(refused.value)


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
