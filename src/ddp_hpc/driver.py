"""`ddp-hpc run`: train what is missing, then make tables, figures and page from what there is."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ddp_hpc import plan
from ddp_hpc._process import die_with_parent
from ddp_hpc.ledger import Ledger, State, state_of
from ddp_hpc.lock import DriverLock
from ddp_hpc.progress import Progress
from ddp_hpc.project import Project
from ddp_hpc.statuses import FINISHED
from ddp_hpc.targets import StudyTargets
from ddp_hpc.workflow import DRIVER

GRACE_S = 40.0  # how long the workflow may take to cancel its jobs before it is killed
_POLL_S = 0.5
_TAIL = 12


class DriverAliveError(RuntimeError):
    """Another driver is alive."""


def run(
    project: Project,
    name: str,
    profile: str = "profiles/default",
    launcher: str | None = None,
    more: Sequence[str] = (),
) -> int:
    """Run a study to its page and return the exit code: 0 if every planned run ended as result or finding.

    Args:
        project: where the study is.
        name: of the study.
        profile: the workflow profile, relative to the project.
        launcher: what starts the ranks, instead of the profile's.
        more: further arguments of snakemake.

    Raises:
        StudyError: the study is wrong; nothing was started.
        DriverAliveError: another driver is alive in this project.
    """
    ledger = project.ledger(name)
    lock = DriverLock(project.root)
    if not lock.take():
        raise DriverAliveError(lock.refusal())
    try:
        return _run(project, ledger, _Workflow(project, ledger.study.name, lock, profile, launcher, more))
    finally:
        lock.release()


def _run(project: Project, ledger: Ledger, workflow: "_Workflow") -> int:
    began = time.monotonic()
    missing = StudyTargets(project, ledger, settled=False).missing
    trained = 0
    if missing:
        plan.prepare(ledger)
        print(f"{ledger.study.name}: {len(missing)} of {len(ledger.planned)} runs to train", flush=True)
        trained = workflow.start("trained", Progress(ledger, missing))
    published = workflow.start("all", None, "settled=1") if trained >= 0 else trained
    return _report(project, ledger, trained, published, workflow, time.monotonic() - began)


def _report(
    project: Project, ledger: Ledger, trained: int, published: int, workflow: "_Workflow", seconds: float
) -> int:
    states = {planned.run: state_of(ledger.store, planned.run) for planned in ledger.planned}
    lacking = {run: state for run, state in states.items() if state.status not in FINISHED}
    findings = Counter(state.status for state in states.values() if state.status in FINISHED and state.status != "ok")
    done = f"{len(states) - len(lacking)} of {len(states)} runs"
    also = "".join(f", {count} {status}" for status, count in findings.items())
    print(f"{ledger.study.name}: {done}{also}, in {seconds:.0f} s")
    for line in _failures(lacking):
        print(line, file=sys.stderr)
    if trained < 0 or published < 0:
        print("ended by a signal; the same command goes on from here", file=sys.stderr)
        return 130
    if published or (trained and not lacking):
        print("\n".join(["the workflow failed", *workflow.complaints()]), file=sys.stderr)
    page = project.study_folder(ledger.study.name) / "report" / "index.html"
    if page.exists() and not published:
        print(f"page: {page}")
    return 1 if lacking or published else 0


def _failures(lacking: dict[str, State]) -> list[str]:
    lines = [f"  {state.status:13} {run}: {state.reason or 'see logs/train'}" for run, state in lacking.items()]
    most = 20
    return (
        lines if len(lines) <= most else [*lines[:most], f"  ... and {len(lines) - most} more: `ddp-hpc status STUDY`"]
    )


class _Workflow:
    """Snakemake, as often as it has to be started; its words go to one log."""

    def __init__(
        self,
        project: Project,
        name: str,
        lock: DriverLock,
        profile: str,
        launcher: str | None,
        more: Sequence[str],
    ) -> None:
        self.project, self.lock, self.profile, self.more = project, lock, profile, more
        self.config = [f"studies=[{name}]", *([f"launcher={launcher}"] if launcher else [])]
        self.log = Path("logs") / "workflow" / f"{name}-{datetime.now():%Y%m%d-%H%M%S}.log"

    def start(self, target: str, progress: Progress | None, *config: str) -> int:
        """Run snakemake to a target and return its exit code; negative if a signal ended it."""
        command = [sys.executable, "-m", "snakemake", target, "--workflow-profile", self.profile, *self.more]
        command += ["--config", *self.config, *config]
        file = self.project.root / self.log
        file.parent.mkdir(parents=True, exist_ok=True)
        # the scripts of our own environment first: ddp-hpc, and an MPI that came with it
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        environment = os.environ | {"PATH": path, DRIVER: str(os.getpid())}
        with open(file, "ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.project.root,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
                # the workflow holds the lock too: if we are killed it is not free before the workflow has gone
                pass_fds=[] if self.lock.descriptor is None else [self.lock.descriptor],
                preexec_fn=_as_child,
            )
            return _watch(process, progress)

    def complaints(self) -> list[str]:
        """Return what the failed jobs other than trainings said last or, without any, the end of the workflow's log."""
        text = (self.project.root / self.log).read_text(errors="replace")
        logs = dict.fromkeys(re.findall(r"log: (\S+) \(check log", text))
        lines = []
        for name in logs:
            file = self.project.root / name
            if not name.startswith("logs/train/") and file.exists():
                lines += [f"{name}:", *file.read_text(errors="replace").splitlines()[-_TAIL:]]
        return lines or [f"{self.log}:", *text.splitlines()[-_TAIL:]]


def _as_child() -> None:
    die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a script's background job inherits it as ignored


def _watch(process: subprocess.Popen[bytes], progress: Progress | None) -> int:
    """Wait for the workflow and show progress; on a signal let it cancel its jobs, then kill it."""
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        asked.append(number)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, ask) for number in signals}
    try:
        deadline = None
        while process.poll() is None:
            try:
                process.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                if progress:
                    progress.show()
            if asked and deadline is None:
                deadline = time.monotonic() + GRACE_S
                os.killpg(process.pid, signal.SIGINT)  # also reaches the local trainings
            if deadline is not None and time.monotonic() > deadline:
                process.kill()
        if progress:
            progress.end()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return -1 if asked else process.returncode
