"""Every command that README, docs, `make` and `ddp-hpc --help` name is run, here in its smallest form or elsewhere."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from launching import MPI_ENVIRONMENT
from sandbox import PROJECT, Sandbox

import ddp_hpc
from ddp_hpc.config import catalog
from ddp_hpc.data import digits

PAGES = [
    *(PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "config/README.md", "profiles/README.md")),
    *(PROJECT / "docs").glob("*.md"),
]
WITH_PARTS = ("list", "bench")  # verbs whose first word is a part of its own
STUDY = """
base: {dataset: digits, model: {name: mlp, widths: [8]}, batch_size: 16, exchange: none, world_size: 1}
grid: {learning_rate: [0.1, 0.2]}
budget: {steps: 20}
publication: {creators: [{name: "Doe, Jane"}], licence: CC-BY-4.0}
keep: weights
"""

# one after the other, in one project; {0} and {1} are its two runs
HERE = [
    "ddp-hpc init another --study neuron",
    "ddp-hpc init another --upgrade",
    "ddp-hpc list",
    "ddp-hpc list models",
    "ddp-hpc list datasets",
    "ddp-hpc list exchanges",
    "ddp-hpc list tables",
    "ddp-hpc list figures",
    "ddp-hpc schema",
    "ddp-hpc plan mine --whole",
    "ddp-hpc try mine",
    "ddp-hpc run mine",
    "ddp-hpc status mine",
    "ddp-hpc prune",
    "ddp-hpc train {0} --trace 11-12 --again",
    "ddp-hpc table mine runs winners",
    "ddp-hpc figure mine loss_curves",
    "ddp-hpc figure mine loss_curves --size column",
    "ddp-hpc report mine --all",
    "ddp-hpc predict mine",
    "ddp-hpc predict mine --batch-size 24,48 --node-hours 2000 --epochs 90 --json",
    "ddp-hpc compare mine@before mine",
    "ddp-hpc compare results results",
    "ddp-hpc compare results/studies/mine/tables/runs.parquet mine --json",
    "ddp-hpc history mine --to history",
    "ddp-hpc diff {0} {1}",
    "ddp-hpc publish mine --redact --to results/packs/mine.zip",
    "ddp-hpc verify results/packs/mine.zip",
    "ddp-hpc rerun results/packs/mine.zip --to again",
    "ddp-hpc doctor",
    "snakemake",
    "ddp-hpc bench planning --points 2 --runs 2 --rounds 1",
    "ddp-hpc bench meters --ranks 2 --rounds 1 --steps 5",
    "ddp-hpc bench exchange --ranks 2 --exchanges ring --sizes 64 256 --rounds 2",
    "ddp-hpc bench realign --shapes 4x3x2 --rounds 2",
    "make",
    "make help",
    "make quickstart",
    "make keys",
    "make clean",
]
ANSWERS_NO = {  # exit codes that are an answer: without repeats nothing can be told
    command: 2 for command in HERE if command.startswith("ddp-hpc compare")
}
SAYS = {  # rows of what these print, by command
    "ddp-hpc bench planning": ["snakemake -n", "times_empty", "the workflow adds to each run", "times_bare"],
    "ddp-hpc bench meters": ["longer_percent"],
    "ddp-hpc bench exchange": ["ring"],
    "ddp-hpc bench realign": ["4x3x2"],
}

# what takes longer, or something that is not everywhere: the test that runs it, and how it says so
ELSEWHERE = {
    "ddp-hpc bench publishing": ("tests/bench/test_bench.py", "publishing.publishing("),
    "ddp-hpc bench prediction": ("tests/bench/test_shaped_links.py", '"bench", "prediction"'),
    "ddp-hpc bench gpu": ("tests/bench/test_gpu_check.py", '"bench", "gpu"'),
    "ddp-hpc data": ("tests/data/test_fashion_mnist.py", '"data"'),
    "sbatch": ("tests/cluster/test_allocation.py", '"sbatch"'),
    "make test": (".ci/run", "make test"),
    "make check": (".ci/run", "make check"),
    "make verify-published": (".ci/run", "make verify-published"),
    "make published": ("tests/publication/test_published_packs.py", "publish_anew("),
    "make small-studies": ("tests/workflow/test_claims_check.py", "SMALL :="),  # trained by hand
    "make test-slurm": ("tests/cluster", "def test_"),  # a part of `make test`
    "make slurm": ("Makefile", "test: .venv/installed-dev browser slurm"),
    "make bench": ("Makefile", "$(BIN)/ddp-hpc bench planning"),  # its lines are in this list
    "make gpu-check": ("Makefile", "$(BIN)/ddp-hpc bench gpu"),  # which has a line of its own here
    "make wheels": ("Makefile", "test-wheels: wheels"),
    "make test-wheels": ("Makefile", "test-wheels: wheels"),  # by hand: it installs some gigabytes
    "make crash": ("tests/workflow/test_crashes.py", "def test_"),  # a few kills of it are a part of `make test`
    "make bench-slurm": ("tests/cluster/test_cluster.py", "overhead.py"),
}


def heads(text: str) -> set[str]:
    """The commands in a text, without their arguments: `ddp-hpc VERB [PART]`, `make TARGET`, `snakemake`, `sbatch`."""
    spans = [*re.findall(r"`((?:ddp-hpc|make|snakemake|sbatch)\b[^`]*)`", text)]
    for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL):
        spans += block.splitlines()
    return {head for span in spans if (head := head_of(span))}


def head_of(command: str) -> str | None:
    words = [word for word in command.split() if not word.startswith("-")]
    if not words or words[0] not in ("ddp-hpc", "make", "snakemake", "sbatch"):
        return None
    kept = 1 if words[0] in ("snakemake", "sbatch") else 2
    if words[1:2] and words[1] in WITH_PARTS:
        kept = 3
    return " ".join(word for word in words[:kept] if re.fullmatch("[a-z-]+", word))


RUN = {head_of(command) for command in HERE} | ELSEWHERE.keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_command_of_a_page_is_run_by_a_test(page):
    assert heads(page.read_text()) - RUN - {"ddp-hpc", "ddp-hpc list", "ddp-hpc bench"} == set()


def test_every_command_of_the_help_is_run_by_a_test():
    def helped(*command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=PROJECT).stdout

    ddp_hpc = str(Path(sys.executable).with_name("ddp-hpc"))
    verbs = re.findall(r"^    ([a-z]+)  ", helped(ddp_hpc, "--help"), re.MULTILINE)
    parts = re.findall(r"^    ([a-z]+)  ", helped(ddp_hpc, "bench", "--help"), re.MULTILINE)
    targets = re.findall(r"^  ([a-z-]+) ", helped("make"), re.MULTILINE)
    assert len(verbs) > 10
    assert len(parts) > 3
    assert len(targets) > 5
    verbs.remove("bench")  # its parts are
    named = {f"ddp-hpc {verb}" for verb in verbs} | {f"ddp-hpc bench {part}" for part in parts}
    assert (named | {f"make {target}" for target in targets}) - RUN == set()


@pytest.mark.parametrize("command", ELSEWHERE)
def test_what_is_run_elsewhere_is(command):
    place, words = ELSEWHERE[command]
    files = [PROJECT / place] if (PROJECT / place).is_file() else sorted((PROJECT / place).glob("*.py"))
    assert any(words in file.read_text() for file in files)


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Sandbox:
    """A project with a study of two runs, whose `make` finds the environment of these tests."""
    sandbox = Sandbox.make(tmp_path_factory.mktemp("documented") / "project")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(PROJECT / name, sandbox.root)
    (sandbox.root / ".venv").mkdir()
    (sandbox.root / "tests").mkdir()
    for entry in Path(sys.prefix).iterdir():
        (sandbox.root / ".venv" / entry.name).symlink_to(entry)
    for stamp in ("installed", "installed-dev"):  # newer than what they depend on
        (sandbox.root / ".venv" / stamp).unlink(missing_ok=True)
        (sandbox.root / ".venv" / stamp).touch()
    sandbox.study("mine", STUDY)
    sandbox.study("quickstart", STUDY)
    sandbox.edit("config/config.yaml", "- quickstart", "- mine")
    return sandbox


@pytest.mark.parametrize("command", HERE)
def test_a_documented_command_runs(project, command, monkeypatch):
    for name, value in MPI_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    runs = sorted(os.listdir(project.root / "results" / "runs")) if "{" in command else ()
    done = project.call(*shlex.split(command.format(*runs)))
    assert done.returncode == ANSWERS_NO.get(command, 0), done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert all(row in done.stdout for row in SAYS.get(head_of(command), ())), done.stdout


def test_a_model_that_was_kept_has_the_accuracy_of_its_record(project, monkeypatch):
    """It is loaded as docs/notebook.md says."""
    if not (project.root / "results" / "runs").is_dir():
        project.call("ddp-hpc", "run", "mine")
    monkeypatch.chdir(project.root)
    section = (PROJECT / "docs" / "notebook.md").read_text().split("\n## The trained model\n")[1]
    names = {"ddp_hpc": ddp_hpc, "run": sorted(os.listdir("results/runs"))[0]}
    exec(re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)[0], names)
    catalog.use_project(None)

    test = digits.build(Path()).test
    with torch.no_grad():
        right = names["model"](test.inputs).argmax(dim=1) == test.targets
    recorded = pd.read_parquet(f"results/runs/{names['run']}/run.parquet")["test_metric"][0]
    assert recorded == right.double().mean()
    assert 0 < recorded < 1
