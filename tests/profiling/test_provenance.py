"""What is kept of the machine, and what is not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ddp_hpc.profiling import provenance

OMPI_INFO = shutil.which("ompi_info", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")


def test_the_environment_keeps_what_matters_and_no_secret():
    given = {
        "OMP_NUM_THREADS": "4",
        "NCCL_DEBUG": "INFO",
        "CUDA_VISIBLE_DEVICES": "1",
        "SLURM_JOB_ID": "7",
        "SLURM_JWT": "secret",
        "NCCL_API_KEY": "secret",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
        "TRITON_CACHE_DIR": "/x",
        "CUBLASLT_WORKSPACE_SIZE": "1",
        "CUDNN_LOGLEVEL_DBG": "3",
        "NVIDIA_TF32_OVERRIDE": "1",
        "HOME": "/home/x",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    assert list(provenance.environment(given)) == [
        "CUBLASLT_WORKSPACE_SIZE",
        "CUDA_VISIBLE_DEVICES",
        "CUDNN_LOGLEVEL_DBG",
        "NCCL_DEBUG",
        "NVIDIA_TF32_OVERRIDE",
        "OMP_NUM_THREADS",
        "PYTORCH_ALLOC_CONF",
        "SLURM_JOB_ID",
        "TORCHINDUCTOR_MAX_AUTOTUNE",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "TRITON_CACHE_DIR",
    ]
    assert provenance.slurm_job(given) == "7"
    assert provenance.slurm_job({}) is None


def test_software_names_what_there_is_and_null_for_the_rest():
    found = provenance.software("Some MPI 1.2\0")
    assert found["mpi"] == "Some MPI 1.2"
    assert found["torch"] == torch.__version__
    assert (found["cuda"] is None) == (torch.version.cuda is None)


def test_the_machine_is_told_as_lscpu_tells_it():
    told = provenance.machine()
    if shutil.which("lscpu"):
        lines = subprocess.run(["lscpu"], capture_output=True, text=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"})
        said = dict(line.split(":", 1) for line in lines.stdout.splitlines() if ":" in line)
        assert told["architecture"] == said["Architecture"].strip()
        assert told["cores"] == int(said["CPU(s)"])
        assert told["virtual"] == ("Hypervisor vendor" in said)
        if "CPU family" in said:
            names = ("Vendor ID", "CPU family", "Model", "Stepping")
            assert told["cpu_model"] == " ".join(said[name].strip() for name in names)
    assert 0 < told["memory_gb"] * 1e9 < 1.1 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert provenance.machine(Path("/nonexistent"), Path("/nonexistent"))["last_cache"] is None


@pytest.mark.skipif(OMPI_INFO is None, reason="needs Open MPI's ompi_info to compare with")
def test_mpi_says_whether_it_reads_gpu_memory():
    listed = subprocess.run([OMPI_INFO, "--parsable", "--all"], capture_output=True, text=True).stdout
    expected = "mpi_built_with_cuda_support:value:true" in listed
    code = (
        "import mpi4py; mpi4py.rc.initialize = False\n"
        "from ddp_hpc.profiling.mpi_library import mpi_cuda_aware\n"
        "before = mpi_cuda_aware()\n"
        "from mpi4py import MPI\n"
        "print(before, mpi_cuda_aware())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert said.split() == ["None", str(expected)]


def test_source_is_the_commit_of_this_package_or_null():
    package = Path(provenance.__file__).parents[1]
    done = subprocess.run(["git", "-C", package, "rev-parse", "HEAD"], capture_output=True, text=True)
    expected = done.stdout.strip() if done.returncode == 0 else None
    assert provenance.source()["commit"] == expected


def test_source_outside_git_is_null(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "package" / "profiling" / "provenance.py"))
    (tmp_path / "package").mkdir()
    assert provenance.source() == {"commit": None, "dirty": None}


def test_a_file_of_a_run_that_git_does_not_have_makes_the_code_dirty(tmp_path, monkeypatch):
    package = tmp_path / "package"
    for name in ("profiling/provenance.py", "perfmodel.py", "models/mine.py", "data/é.csv"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("")
    monkeypatch.setattr(provenance, "__file__", str(package / "profiling" / "provenance.py"))
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "perfmodel.py", "data"), (*author, "commit", "-qm", "first")):
        subprocess.run(["git", "-C", package, *words], check=True)
    assert provenance.source(["perfmodel.py", "data/é.csv"])["dirty"] is False
    assert provenance.source()["dirty"] is False
    told = provenance.source(["perfmodel.py", "data/é.csv", "models/mine.py"])
    assert (told["dirty"], told["untracked"]) == (True, ["models/mine.py"])
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):  # as within a hook of another repository
        monkeypatch.setenv(name, str(tmp_path / "another"))
    assert provenance.source(["perfmodel.py", "data/é.csv", "models/mine.py"]) == told


def test_a_git_that_distrusts_the_owner_of_the_folder_is_told(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text(
        "#!/bin/sh\necho \"fatal: detected dubious ownership in '/shared'\" >&2\nexit 128\n"
    )
    (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    told = provenance.source()
    assert (told["commit"], told["dirty"]) == (None, None)
    assert "dubious ownership in '/shared'" in told["refused"]


def test_peak_memory_is_in_bytes_and_grows_with_use():
    before = provenance.peak_memory_bytes(torch.device("cpu"))
    block = torch.ones((before + 100_000_000) // 8, dtype=torch.float64)
    after = provenance.peak_memory_bytes(torch.device("cpu"))
    assert before + 100_000_000 <= after < 3 * before + 200_000_000
    del block


def test_this_rank_has_a_processor_and_no_gpu_on_a_cpu():
    facts = provenance.of_rank(torch.device("cpu"))
    assert facts["cpu"]
    assert facts["gpu"] is None
