"""A copy of the project, package included, that a test may edit and run in."""

import atexit
import compileall
import functools
import json
import os
import py_compile
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from factory import Result, write_records

from ddp_hpc.config import spec
from ddp_hpc.runs import records
from ddp_hpc.runs.study_runs import Planned

PROJECT = Path(__file__).parents[2]


@functools.cache
def _compiled_source() -> Path:
    """A copy of the source, compiled once so that not each process does it; an edited file no longer fits its hash."""
    folder = Path(tempfile.mkdtemp(prefix="ddp-hpc-source-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source = folder / "src"
    shutil.copytree(PROJECT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    compileall.compile_dir(source, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    return source


@dataclass(frozen=True)
class Sandbox:
    """A project of its own; the commands run with its copy of the package, not with the installed one.

    `through` stands before every command: what runs it elsewhere, e.g. on the login node of a cluster.
    """

    root: Path
    through: tuple[str, ...] = ()

    @classmethod
    def make(cls, root: Path, through: tuple[str, ...] = ()) -> "Sandbox":
        for folder in ("config", "workflow", "profiles"):
            shutil.copytree(PROJECT / folder, root / folder)
        shutil.copytree(_compiled_source(), root / "src")
        for study in (root / "config" / "studies").glob("*.yaml"):
            study.unlink()
        return cls(root, through)

    @property
    def package(self) -> Path:
        return self.root / "src" / "ddp_hpc"

    @property
    def environment(self) -> dict[str, str]:
        scripts = Path(sys.executable).parent
        return os.environ | {
            "PYTHONPATH": str(self.root / "src"),
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def study(self, name: str, text: str) -> None:
        (self.root / "config" / "studies" / f"{name}.yaml").write_text(f"name: {name}\n{text}")

    def start(self, *command: str, **keywords) -> subprocess.Popen:
        line = [*self.through, *command]
        return subprocess.Popen(line, cwd=self.root, env=self.environment, text=True, **keywords)

    def call(self, *command: str, timeout: float = 240) -> subprocess.CompletedProcess:
        line = [*self.through, *command]
        return subprocess.run(
            line, cwd=self.root, env=self.environment, text=True, capture_output=True, timeout=timeout, check=False
        )

    def plan(self, name: str, *more: str) -> list[dict]:
        done = self.call("ddp-hpc", "plan", name, "--json", *more)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["runs"]

    def to_train(self, name: str) -> set[str]:
        """The runs that `plan` would train."""
        return {item["run"] for item in self.plan(name) if item["action"] not in ("kept", "running", "queued")}

    def dry_run(self, name: str, *more: str) -> str:
        done = self.call("snakemake", "-n", *more, "--config", f"studies=[{name}]")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def snakemake_would_train(self, name: str) -> set[str]:
        """The runs that `snakemake -n` would train."""
        text = self.dry_run(name)
        return set(re.findall(r"rule train:.*?wildcards: run=(\S+)", text, flags=re.DOTALL))

    def status(self, name: str) -> dict[str, dict]:
        done = self.call("ddp-hpc", "status", name, "--json")
        assert done.returncode == 0, done.stderr
        return {row["run"]: row for row in json.loads(done.stdout)["runs"]}

    def finish(self, name: str) -> None:
        """Put a record, as a training leaves it, where every planned run has none."""
        for item in self.plan(name, "--write"):
            folder = self.root / "results" / "runs" / item["run"]
            if item["action"] != "kept":
                write_record(folder)

    def processes(self) -> dict[int, str]:
        """The processes that were started in this project and are still alive: process id and command."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                inside = Path(os.readlink(f"/proc/{pid}/cwd")).is_relative_to(self.root)
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if inside and command:  # a zombie has none
                found[int(pid)] = command
        return found

    @contextmanager
    def results_on_a_disk(self, megabytes: int) -> Iterator[Callable[[int | None], None]]:
        """Let the results lie on a small disk; what is given fills it but for so many kB; None makes room."""
        results = self.root / "results"
        results.mkdir(exist_ok=True)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", results], check=False)
        if mounted.returncode:
            pytest.skip("mounting a small disk needs root")
        filler = results / "filler"

        def leave(kilobytes: int | None) -> None:
            filler.unlink(missing_ok=True)
            if kilobytes is not None:
                filler.write_bytes(bytes(shutil.disk_usage(results).free - 1024 * kilobytes))

        try:
            yield leave
        finally:
            self.end_all()
            subprocess.run(["umount", "--lazy", results], check=True)

    def end_all(self) -> None:
        """End what a failed test left running."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.root / file
        text = path.read_text()
        assert old in text, f"{file} no longer holds {old!r}: adapt the test"
        path.write_text(text.replace(old, new, 1))

    def append(self, file: str, text: str) -> None:
        with open(self.root / file, "a") as handle:
            handle.write(text)


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait until `condition` holds. One that takes long to tell is asked less often: it takes cores, too."""
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if condition():
            return
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(max(0.1, 2 * (time.monotonic() - began)))


def write_record(folder: Path) -> None:
    """Write the records of a plausible finished run: enough for tables and figures, not a measurement."""
    planned = json.loads((folder / "spec.json").read_text())
    one = spec.load(planned["spec"])
    step_s = 0.01 * (1 + 1 / one.batch_size) / one.world_size**0.5
    times = tuple(step_s * (step + 1) for step in range(20))
    losses = tuple(2.3 * 0.9**step + 0.01 * one.learning_rate for step in range(20))
    asked = {"samples_asked": one.samples_asked, "samples_seen": one.samples_asked, "oversubscribed": False}
    tested = {"test_metric": 0.9, "test_metric_name": "accuracy", "learning_rate_scaled": one.learning_rate}
    run = Planned(planned["run"], one)
    write_records(folder, run, Result(t_s=times, loss=losses, columns=asked | tested), files=planned["files"])
    final = {
        "step": [20],
        "t_s": [times[-1]],
        "samples_seen": [one.samples_asked],
        "metric": [0.9],
        "loss": [losses[-1]],
    }
    records.write("evaluations", final, folder / "evaluations.parquet")


def half_written(file: Path) -> Path:
    """Leave what a process leaves that is killed as it writes a file, and return where that lies."""
    code = (
        "import os, sys; from pathlib import Path; from ddp_hpc.system.files import replaced\n"
        "with replaced(Path(sys.argv[1])) as half: half.touch(); print(half, flush=True); os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code, file], stdout=subprocess.PIPE, text=True, check=False)
    return Path(done.stdout.strip())
