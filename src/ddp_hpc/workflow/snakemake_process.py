"""Snakemake as a child process of the driver: starts, watches and ends it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from ddp_hpc.runs.project import Project
from ddp_hpc.system import deadlines
from ddp_hpc.system.files import user_cache
from ddp_hpc.system.process import die_with_parent, heeded, path_with_own_scripts
from ddp_hpc.workflow.driver_lock import DriverLock
from ddp_hpc.workflow.progress import Progress
from ddp_hpc.workflow.snakefile import DRIVER

POLL_S = 0.5
_TAIL = 12
_FULL_BYTES = 1_000_000  # with less left, what has failed has most likely failed for that
NO_MEMORY = "most likely the machine, the job or the container had no memory left; the same command goes on from here"
# what profiles/README.md says that every profile must keep; a copy may have lost a line
_ALWAYS = ("--rerun-triggers", "mtime", "--keep-going", "--nolock", "--rerun-incomplete", "--scheduler", "greedy")
# a profile that a user has for all workflows would choose another executor, retries, partitions; `-- --profile X` does
_OF_OTHER_WORKFLOWS = ("SNAKEMAKE_PROFILE", "SNAKEMAKE_SLURM_PARTITIONS")
# what the Slurm plugin says of a refused job: sbatch's words, or its own, as it asks before whether an account is valid
_REFUSAL = re.compile(
    r"(?:SLURM sbatch failed\. The error message was '(?P<sbatch>.*?)"
    r"|Job submission failed with exception: (?P<plugin>.*?))"
    r"(?:'\.\n    sbatch call:|For further error details|\Z)",
    re.DOTALL,
)


class Signals:
    """Takes note of signals that ask to end, instead of ending; one that is ignored stays so. A context manager.

    With SIGHUP the terminal goes: what is still said to it is dropped, for the words would be an error.
    """

    def __init__(self) -> None:
        self.asked: list[int] = []  # the signals that came, the first first

    def __enter__(self) -> "Signals":
        self._terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]
        ending = heeded(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._previous = {number: signal.signal(number, self._note) for number in ending}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: Any) -> None:
        self.asked.append(number)
        if number == signal.SIGHUP and self._terminals:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for descriptor in self._terminals:
                os.dup2(nowhere, descriptor)
            os.close(nowhere)


class Snakemake:
    """Snakemake, as often as it has to be started; its words go to one log, its events to a file beside it.

    Args:
        project: where it runs.
        name: of the study.
        lock: of the driver; the workflow holds it too, so that it is not free before that has gone.
        profile: the workflow profile, relative to the project.
        launcher: what starts the ranks, instead of the profile's.
        more: further arguments of snakemake.
        signals: what asks to end.
    """

    def __init__(
        self,
        project: Project,
        name: str,
        lock: DriverLock,
        profile: str,
        launcher: str | None,
        *,
        more: Sequence[str],
        signals: Signals,
    ) -> None:
        self.project, self.lock, self.profile, self.more, self.signals = project, lock, profile, more, signals
        # what we say of `config` stands in place of all that the profile says of it
        told = project.profile(profile).config.model_dump(exclude_unset=True)
        config = told | ({"launcher": launcher} if launcher else {})
        self.config = [*(f"{key}={value}" for key, value in config.items()), f"studies=[{name}]"]
        self.log = Path("logs") / "workflow" / f"{name}-{datetime.now():%Y%m%d-%H%M%S}.log"
        self.config.append(f"faults={self.log.with_suffix('.faults')}")  # where runs tell each other of them
        self.events = Events(project.root / self.log.with_suffix(".events"))
        (project.root / self.log).parent.mkdir(parents=True, exist_ok=True)

    def start(self, target: str, progress: Progress, config: str, over: Callable[[int], object] | None = None) -> int:
        """Run snakemake to a target and return its exit code; negative if a signal or `over` ended it.

        `config` is `key=value`, for the Snakefile. `over` is for jobs that run elsewhere: it says of Snakemake's
        process whether to wait no longer, as that hangs or has not noticed. Such jobs outlive Snakemake: on a signal it
        is killed, so that it deletes and submits nothing more, and whoever calls then cancels the jobs, also those that
        it does not know of.
        """
        command = [sys.executable, "-m", "snakemake", target, "--workflow-profile", self.profile, *_ALWAYS, *self.more]
        command += ["--logger", "ddp-hpc", "--logger-ddp-hpc-events", str(self.events.file)]
        command += ["--config", *self.config, config]
        ours = {name: value for name, value in os.environ.items() if name not in _OF_OTHER_WORKFLOWS}
        with open(self.project.root / self.log, "ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.project.root,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=ours | _cache(self.project.root) | {"PATH": path_with_own_scripts(), DRIVER: str(os.getpid())},
                start_new_session=True,
                pass_fds=[] if self.lock.descriptor is None else [self.lock.descriptor],
                preexec_fn=_as_child,
            )
            return self._watch(process, progress, over)

    def say(self, text: str) -> None:
        """Write a line into the workflow's log, too: it then tells the whole story."""
        with open(self.project.root / self.log, "a") as log:
            log.write(f"\n[{datetime.now():%a %b %d %H:%M:%S %Y}]\nddp-hpc: {text}\n")

    def complaints(self) -> list[str]:
        """Return what the failed jobs other than trainings said last or, without any, the end of the workflow's log."""
        said = self.said_beside() or [f"{self.log}:", *_end_of(self.project.root / self.log)]
        return said + _full_disks(self.project.root, self.project.root / "results")

    def said_beside(self) -> list[str]:
        """Return what the failed jobs other than trainings said last: no data, no table."""
        failed = [error for error in self.events.errors() if error["rule_name"] != "train"]
        logs = dict.fromkeys(name for error in failed for name in error["log"])
        return [line for name in logs for line in (f"{name}:", *_end_of(self.project.root / name), *self._killed(name))]

    def _killed(self, log: str) -> list[str]:
        """Return which signal has ended the last command that wrote to `log`: itself it can say nothing of that."""
        told = (self.project.root / self.log).read_text(errors="replace")
        ends = re.findall(rf"^Command '.*> {re.escape(log)} 2>&1' (?:returned .* (\d+)|died .*: (\d+)>)\.$", told, re.M)
        status, number = map(int, (one or "0" for one in ends[-1])) if ends else (0, 0)
        number = number or status - 128  # as shells tell it
        if number not in set(signal.Signals):
            return []
        cause = f": {NO_MEMORY}" if number == signal.SIGKILL else ""
        return [f"killed by {signal.Signals(number).name}{cause}"]

    def _watch(self, process: subprocess.Popen[bytes], progress: Progress, over: Callable[[int], object] | None) -> int:
        """Wait for the workflow and show progress; on a signal let it cancel its local jobs, then kill it."""
        deadline, ended = None, False
        while process.poll() is None:
            try:
                process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                progress.show()
            if self.signals.asked and deadline is None:
                deadline = time.monotonic() + (0 if over else deadlines.WORKFLOW_S)
                if not over:
                    os.killpg(process.pid, signal.SIGINT)  # also reaches the local trainings
            elif over and deadline is None and over(process.pid):
                deadline, ended = 0, True
            if deadline is not None and time.monotonic() > deadline:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        progress.end()
        return -1 if self.signals.asked or ended else process.returncode


def _as_child() -> None:
    die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # by it we end Snakemake; a script's background job ignores it


def _cache(root: Path) -> dict[str, str]:
    """Return where Snakemake keeps what it has compiled, if the home folder cannot be written."""
    cache = user_cache()
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        if os.access(cache, os.W_OK):
            return {}
    return {"XDG_CACHE_HOME": str(root / ".snakemake" / "cache")}


def _full_disks(*folders: Path) -> list[str]:
    """Return a line per disk that is full: then logs may be empty, too."""
    disks = {folder.stat().st_dev: (folder, shutil.disk_usage(folder).free) for folder in folders if folder.exists()}
    full = ((folder, free / 1e3) for folder, free in disks.values() if free < _FULL_BYTES)
    return [f"the disk of {folder} is full: {kilobytes:.0f} kB are left; make room" for folder, kilobytes in full]


def _end_of(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-_TAIL:] if log.exists() else []


class Events:
    """What Snakemake has told through its logger plugin, which writes `file`: failed jobs."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._errors: list[dict[str, Any]] = []
        self._read = 0  # bytes
        self._refused = 0  # errors in which refusals have been looked for

    def errors(self) -> list[dict[str, Any]]:
        """Return the jobs that have failed, with the keys of `snakemake_logger_plugin_ddp_hpc.KEPT`."""
        if self.file.exists():
            with open(self.file, "rb") as file:
                file.seek(self._read)
                lines, newline, _ = file.read().rpartition(b"\n")  # what follows is still being written
            self._read += len(lines + newline)
            for line in lines.splitlines():
                with suppress(ValueError):  # a full disk has cut it
                    self._errors.append(json.loads(line))
        return list(self._errors)

    def refusals(self) -> dict[str, str]:
        """Return, by run, who has refused a job since this was last asked, and in what words: `sbatch: ...`."""
        errors = self.errors()
        new, self._refused = errors[self._refused :], len(errors)
        said = {Path(error["output"][0]).parent.name: _REFUSAL.match(error["rule_msg"] or "") for error in new}
        words = {run: (one.lastgroup, one["sbatch"] or one["plugin"] or "") for run, one in said.items() if one}
        return {run: f"{who}: {' '.join(text.split())}" for run, (who, text) in words.items()}
