"""Snakemake as a child of the driver: started, watched, ended."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from ddp_hpc.runs.project import Project
from ddp_hpc.system.process import die_with_parent, path_with_own_scripts
from ddp_hpc.workflow.driver_lock import DriverLock
from ddp_hpc.workflow.snakefile import DRIVER

GRACE_S = 40.0  # how long the workflow may take to cancel its jobs before it is killed
POLL_S = 0.5
_TAIL = 12
# what profiles/README.md says that every profile must keep; a copy may have lost a line
_ALWAYS = ("--rerun-triggers", "mtime", "--keep-going", "--nolock", "--rerun-incomplete", "--scheduler", "greedy")
# how a refusal begins: sbatch's, or that of the plugin, which asks beforehand whether an account is valid
_BEGUN = re.compile(rb"Error in rule train:\n    message: (?:SLURM sbatch|Job submission) failed")
_LONGEST = 100  # bytes of such a beginning, at least
# a profile that a user has for all workflows would choose another executor, retries, partitions; `-- --profile X` does
_OF_OTHER_WORKFLOWS = ("SNAKEMAKE_PROFILE", "SNAKEMAKE_SLURM_PARTITIONS")
_REFUSED = re.compile(
    rb"Error in rule train:\n    message: (?:SLURM sbatch failed\. The error message was '(?P<sbatch>.*?)'\.\n"
    rb"|Job submission failed with exception: (?P<plugin>.*?)For further error details)"
    rb".*?\n    output: results/runs/(?P<run>[^/\s]+)/run\.parquet",
    re.DOTALL,
)


class Shows(Protocol):
    """Shows how far things are."""

    def show(self) -> None:
        """Show it now, if it is time to."""

    def end(self) -> None:
        """Leave what was shown."""


class Signals:
    """Takes note of signals that ask to end, instead of ending. A context manager.

    With SIGHUP the terminal goes: what is still said to it is dropped, for the words would be an error.

    Attributes:
        asked: the signals that came, the first first.
    """

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __enter__(self) -> "Signals":
        self._terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]
        ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._previous = {number: signal.signal(number, self._note) for number in ending}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: Any) -> None:
        self.asked.append(number)
        if number == signal.SIGHUP and self._terminals:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for descriptor in self._terminals:
                os.dup2(nowhere, descriptor)
            os.close(nowhere)


class Engine:
    """Snakemake, as often as it has to be started; its words go to one log.

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
        more: Sequence[str],
        signals: Signals,
    ) -> None:
        self.project, self.lock, self.profile, self.more, self.signals = project, lock, profile, more, signals
        # what we say of `config` stands in place of all that the profile says of it
        config = dict(project.profile_config(profile)) | ({"launcher": launcher} if launcher else {})
        self.config = [*(f"{key}={value}" for key, value in config.items()), f"studies=[{name}]"]
        self.log = Path("logs") / "workflow" / f"{name}-{datetime.now():%Y%m%d-%H%M%S}.log"
        self._read = 0  # bytes of the log in which refusals have been looked for

    def start(
        self,
        target: str,
        progress: Shows,
        *config: str,
        remote: bool = False,
        over: Callable[[int], object] | None = None,
    ) -> int:
        """Run snakemake to a target and return its exit code; negative if a signal or `over` ended it.

        Args:
            target: a rule.
            progress: is shown meanwhile.
            config: `key=value`, for the Snakefile.
            remote: its jobs run elsewhere and outlive it: on a signal it is killed, so that it deletes and submits
                nothing more. Whoever calls then cancels the jobs, also those that it does not know of.
            over: is given its process and says whether there is no need to wait any longer, as Snakemake hangs or has
                not noticed.
        """
        command = [sys.executable, "-m", "snakemake", target, "--workflow-profile", self.profile, *_ALWAYS, *self.more]
        command += ["--config", *self.config, *config]
        file = self.project.root / self.log
        file.parent.mkdir(parents=True, exist_ok=True)
        ours = {name: value for name, value in os.environ.items() if name not in _OF_OTHER_WORKFLOWS}
        environment = ours | {"PATH": path_with_own_scripts(), DRIVER: str(os.getpid())}
        with open(file, "ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.project.root,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
                pass_fds=[] if self.lock.descriptor is None else [self.lock.descriptor],
                preexec_fn=_as_child,
            )
            return self._watch(process, progress, remote, over)

    def say(self, text: str) -> None:
        """Write a line into the workflow's log, too: it then tells the whole story."""
        (self.project.root / self.log).parent.mkdir(parents=True, exist_ok=True)
        with open(self.project.root / self.log, "a") as log:
            log.write(f"\n[{datetime.now():%a %b %d %H:%M:%S %Y}]\nddp-hpc: {text}\n")

    def refusals(self) -> dict[str, str]:
        """Return, by run, who has refused a job since this was last asked, and in what words: `sbatch: ...`."""
        if not (self.project.root / self.log).exists():  # nothing has been submitted yet
            return {}
        with open(self.project.root / self.log, "rb") as log:
            log.seek(self._read)
            text = log.read()
        found, end = {}, 0
        for match in _REFUSED.finditer(text):
            who = "sbatch" if match["sbatch"] is not None else "plugin"
            words = match[who].decode(errors="replace")
            found[match["run"].decode(errors="replace")] = f"{who}: {' '.join(words.split())}"
            end = match.end()
        begun = _BEGUN.search(text, end)  # its rest is still to be written, or that of its first line
        self._read += begun.start() if begun else max(end, len(text) - _LONGEST)
        return found

    def complaints(self) -> list[str]:
        """Return what the failed jobs other than trainings said last or, without any, the end of the workflow's log."""
        return self.said_beside() or [f"{self.log}:", *self._text().splitlines()[-_TAIL:]]

    def said_beside(self) -> list[str]:
        """Return what the failed jobs other than trainings said last: no data, no table."""
        lines = []
        for name in dict.fromkeys(re.findall(r"log: (\S+) \(check log", self._text())):
            file = self.project.root / name
            if not name.startswith("logs/train/") and file.exists():
                lines += [f"{name}:", *file.read_text(errors="replace").splitlines()[-_TAIL:]]
        return lines

    def _text(self) -> str:
        file = self.project.root / self.log
        return file.read_text(errors="replace") if file.exists() else ""

    def _watch(
        self, process: subprocess.Popen[bytes], progress: Shows, remote: bool, over: Callable[[int], object] | None
    ) -> int:
        """Wait for the workflow and show progress; on a signal let it cancel its local jobs, then kill it."""
        deadline, ended = None, False
        while process.poll() is None:
            try:
                process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                progress.show()
            if self.signals.asked and deadline is None:
                deadline = time.monotonic() + (0 if remote else GRACE_S)
                if not remote:
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
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a script's background job inherits it as ignored
