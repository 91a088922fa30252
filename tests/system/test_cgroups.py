"""What ranks may use of a machine: cores, memory and disk, also inside a container."""

from pathlib import Path

import psutil
import pytest

from ddp_hpc.cli import doctor
from ddp_hpc.system import cgroups


@pytest.mark.parametrize(
    ("counted", "state", "told"),
    [
        ((8, None, 8, 8), "ok", "more than 8 CPU ranks are marked oversubscribed"),
        ((8, None, 8, 4), "ok", "4 physical cores: beyond them two ranks share one"),
        ((2, None, 64, 32), "ok", "2 usable of 64 (32 physical)"),
        ((8, 2.5, 8, None), "warning", "the control group gives 2.5 cores of time"),
        ((8, 0.5, 8, 8), "warning", "timings of more than 1 mean little"),
        ((2, 16.0, 64, 32), "ok", "more than 2 CPU ranks"),
    ],
)
def test_cores_are_what_affinity_and_control_group_leave(counted, state, told):
    finding = doctor.cores(*counted)
    assert finding.state == state
    assert told in f"{finding.found}; {finding.means}"


CPU_TREES = {
    "v2, a limit above ours": ("0::/job/step", {"job/cpu.max": "150000 100000", "job/step/cpu.max": "max 100000"}, 1.5),
    "v2, the least counts": ("0::/job/step", {"job/cpu.max": "400000 100000", "job/step/cpu.max": "50000 100000"}, 0.5),
    "v2, none": ("0::/", {"cpu.max": "max 100000"}, None),
    "v1": (
        "3:cpu:/job\n1:memory:/",
        {"cpu/job/cpu.cfs_quota_us": "200000", "cpu/job/cpu.cfs_period_us": "100000"},
        2.0,
    ),
    "v1, mounted by both names": (
        "3:cpuacct,cpu:/a/b\n1:memory:/",
        {"cpuacct,cpu/a/cpu.cfs_quota_us": "150000", "cpuacct,cpu/a/cpu.cfs_period_us": "100000"},
        1.5,
    ),
    "v1, a container that sees only its own group": (
        "3:cpu,cpuacct:/docker/abc",
        {"cpu,cpuacct/cpu.cfs_quota_us": "50000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
        0.5,
    ),
    "v2, a container that sees only its own group": ("0::/../outer", {"cpu.max": "300000 100000"}, 3.0),
    "v1, none": ("3:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    "rubbish": ("0::/", {"cpu.max": "a lot"}, None),
    "not there": ("0::/elsewhere", {}, None),
}


@pytest.mark.parametrize(("own", "files", "expected"), CPU_TREES.values(), ids=CPU_TREES.keys())
def test_the_quota_of_control_groups(tmp_path, own, files, expected):
    assert cgroups.cores(*tree(tmp_path, own, files)) == expected


@pytest.mark.parametrize(
    ("own", "files"),
    [
        (
            "0::/job/step",
            {"job/cpu.max": "150000 100000", "job/cpu.stat": "usage_usec 5\nnr_periods 40\nnr_throttled 10"},
        ),
        (
            "3:cpu,cpuacct:/job/step",
            {
                "cpu/job/cpu.cfs_quota_us": "150000",
                "cpu/job/cpu.cfs_period_us": "100000",
                "cpu/job/cpu.stat": "nr_periods 40\nnr_throttled 10\nthrottled_time 7",
            },
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_the_periods_in_which_a_quota_is_used_up_are_counted(tmp_path, own, files):
    assert list(cgroups.quota_periods(*tree(tmp_path, own, files)).values()) == [(40, 10)]


def test_groups_without_a_quota_count_no_periods(tmp_path):
    files = {"job/cpu.max": "max 100000", "job/cpu.stat": "nr_periods 0\nnr_throttled 0"}
    assert cgroups.quota_periods(*tree(tmp_path, "0::/job", files)) == {}


def tree(folder: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A made-up /sys/fs/cgroup, and the file that says where in it a process is."""
    for name, text in files.items():
        (folder / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup" / name).write_text(text + "\n")
    (folder / "own").write_text(own + "\n")
    return folder / "cgroup", folder / "own"


def test_the_memory_of_a_control_group_counts(tmp_path):
    assert cgroups.memory_bytes(*tree(tmp_path, "0::/job", {"job/memory.max": "1000000000"}))[0] == 10**9
    whole = psutil.virtual_memory().total
    assert cgroups.memory_bytes(*tree(tmp_path / "b", "0::/job", {"job/memory.max": "max"}))[0] == whole
    assert cgroups.cores(tmp_path / "gone", tmp_path / "gone") is None


def test_little_memory_is_a_warning():
    assert doctor.memory(8 * 10**9, 6 * 10**9).state == "ok"
    low = doctor.memory(8 * 10**9, 10**9)
    assert low.state == "warning"
    assert "about 2 ranks" in low.means


def test_a_folder_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    assert doctor.results(tmp_path / "not" / "yet").state == "ok"

    def full(*ignored: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.os, "replace", full)
    finding = doctor.results(tmp_path)
    assert (finding.state, finding.needed) == ("missing", True)
    assert f"{tmp_path}: Permission denied" in finding.found
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_or_room_is_a_warning(tmp_path, monkeypatch):
    usage = doctor.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: usage._replace(free=10**8))
    assert "thousands of runs" in doctor.results(tmp_path).means

    def unsupported(*ignored: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(doctor.fcntl, "flock", unsupported)
    assert "two drivers" in doctor.results(tmp_path).means


@pytest.mark.parametrize(
    ("own", "files", "kills"),
    [
        ("0::/a", {"a/memory.events": "low 0\noom 1\noom_kill 2\n"}, 2),
        # a rank in another step of the same job, which the job's group counts too; other jobs do not matter
        (
            "0::/slurm/job_17/step_batch",
            {
                "slurm/memory.events": "oom_kill 9",
                "slurm/job_17/memory.events": "oom_kill 1",
                "slurm/job_17/step_batch/memory.events": "oom_kill 0",
            },
            1,
        ),
        (
            "11:memory:/slurm/uid_0/job_17/step_batch\n3:cpu:/",
            {"memory/slurm/uid_0/job_17/memory.oom_control": "under_oom 0\noom_kill 3"},
            3,
        ),
        ("0::/a", {}, 0),
        ("", {}, 0),
    ],
    ids=["own group", "the job's", "version 1", "no counter", "no group"],
)
def test_kills_for_memory_are_counted_in_our_group_and_in_that_of_the_job(tmp_path, own, files, kills):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own").write_text(own)
    assert cgroups.oom_kills(tmp_path, tmp_path / "own") == kills


def test_where_the_kernel_does_not_say_nothing_was_killed(tmp_path):
    assert cgroups.oom_kills(tmp_path, tmp_path / "nowhere") == 0
