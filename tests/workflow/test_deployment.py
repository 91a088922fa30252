"""The workflow as others take it: by snakedeploy, from a release at a host, which a local repository stands for."""

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from cached_environment import installed
from launching import MPI_ENVIRONMENT
from sandbox import PROJECT, Sandbox

PAGE = (PROJECT / "docs" / "deployment.md").read_text()
STUDY = """
base:
  {dataset: digits, model: {name: mlp, widths: [4]}, exchange: none, world_size: 1, batch_size: 32, learning_rate: 0.1}
budget: {steps: 5}
tables: [runs]
figures: []
"""


@dataclass(frozen=True)
class Deployed(Sandbox):
    """A project for which the host lies in a folder here: git is told so, and Snakemake asks git."""

    host: Path = Path()

    @property
    def environment(self) -> dict[str, str]:
        told = {"GIT_CONFIG_KEY_0": f"url.file://{self.host}/.insteadOf", "GIT_CONFIG_VALUE_0": "https://github.com/"}
        cache = {"XDG_CACHE_HOME": str(self.host / "cache")}
        return super().environment | MPI_ENVIRONMENT | told | cache | {"GIT_CONFIG_COUNT": "1"}


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> Path:
    """A folder with this project as its repository ddp-hpc/ddp-hpc, of which there is a release."""
    folder = tmp_path_factory.mktemp("host")
    release = folder / "ddp-hpc" / "ddp-hpc"
    for name in ("config", "profiles", "workflow"):
        shutil.copytree(PROJECT / name, release / name)
    shutil.copy(PROJECT / "LICENSE", release)
    said = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "A release"], ["tag", "v0.1.0"]):
        subprocess.run(["git", *said, *words], cwd=release, check=True)
    return folder


def test_what_snakedeploy_takes_from_a_release_trains_to_the_page(host, tmp_path):
    tools = installed(Path(__file__).with_name("snakedeploy.txt"))
    (command,) = re.findall(r"^snakedeploy .*$", PAGE, flags=re.MULTILINE)
    (lines,) = re.findall(r"```snakemake\n(.*?)```", PAGE, flags=re.DOTALL)
    words = shlex.split(command)

    done = Deployed(tmp_path, host=host).call(str(tools / "bin" / words[0]), *words[1:])

    assert done.returncode == 0, done.stdout + done.stderr
    project = Deployed(tmp_path / words[3], host=host)
    assert (project.root / "profiles" / "slurm" / "profile.yaml").is_file()
    assert (
        'github("ddp-hpc/ddp-hpc", path="workflow/Snakefile", tag="v0.1.0")'
        in (project.root / "workflow" / "Snakefile").read_text()
    )
    project.append("workflow/Snakefile", lines)
    project.study("mine", STUDY)
    done = project.call("snakemake", "--cores", "1", "--config", "studies=[mine]")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project.root / "results" / "studies" / "mine" / "report" / "index.html").is_file()
    again = project.call("ddp-hpc", "run", "mine")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "nothing to do" in again.stdout
    assert os.listdir(host / "cache" / "snakemake")
