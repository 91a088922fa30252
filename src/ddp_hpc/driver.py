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
from ddp_hpc._process import die_with_parent, path_with_own_scripts
from ddp_hpc.durations import duration
from ddp_hpc.ledger import Ledger
from ddp_hpc.lock import DriverLock
from ddp_hpc.printing import counted
from ddp_hpc.progress import Making, Progress
from ddp_hpc.project import Project
from ddp_hpc.states import State, state_of
from ddp_hpc.statuses import FINISHED, in_words
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
    for note in ledger.notes:
        print(f"note: {note}", file=sys.stderr)
    targets = StudyTargets(project, ledger, settled=False)
    trained = 0
    if targets.missing:
        plan.prepare(ledger)
        of_all = f"{len(targets.missing)} of {counted(len(ledger.planned), 'run')}"
        print(f"{ledger.study.name}: {of_all} to train", flush=True)
        trained = workflow.start("trained", Progress(ledger, targets.missing))
    making = Making([project.root / output for output in targets.outputs], project.root / workflow.log)
    published = workflow.start("all", making, "settled=1") if trained >= 0 else trained
    states = {planned.run: state_of(ledger.store, planned.run) for planned in ledger.planned}
    nothing = not targets.missing and not published and not making.made
    print(f"{ledger.study.name}: {_summary(states, nothing)}, in {duration(time.monotonic() - began)}")
    lacking = {run: state for run, state in states.items() if state.status not in FINISHED}
    for line in _failures(ledger, lacking):
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


def _summary(states: dict[str, State], nothing: bool) -> str:
    counts = Counter(state.status for state in states.values())
    findings = [f"{counts[status]} {status}" for status in FINISHED - {"ok"} if counts[status]]
    done = f"{sum(counts[status] for status in FINISHED)} of {counted(len(states), 'run')} finished"
    also = f" ({', '.join(sorted(findings))}: a finding, not a failure)" if findings else ""
    return f"nothing to do: {done}{also}; tables, figures and page are up to date" if nothing else f"{done}{also}"


def _failures(ledger: Ledger, lacking: dict[str, State]) -> list[str]:
    """Return a line per status and reason: how many runs have it, one of them and its log."""
    groups: dict[tuple[str, str | None], list[str]] = {}
    for run, state in lacking.items():
        groups.setdefault((state.status, state.reason), []).append(run)
    lines = []
    for (status, reason), runs in groups.items():
        if status == "missing" and not reason:
            lines.append(f"  {len(runs)} {in_words(status)}")
            continue
        example = f"{'e.g. ' if len(runs) > 1 else ''}{ledger.describe(runs[0])}, logs/train/{runs[0]}.log"
        lines.append(f"  {len(runs)} {in_words(status)}: {reason or 'no reason is known'} ({example})")
    most = 20
    more = [f"  ... and {len(lines) - most} more: `ddp-hpc status {ledger.study.name}`"] if len(lines) > most else []
    return [*lines[:most], *more]


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
        # what we say of `config` stands in place of all that the profile says of it
        config = dict(project.profile_config(profile)) | ({"launcher": launcher} if launcher else {})
        self.config = [*(f"{key}={value}" for key, value in config.items()), f"studies=[{name}]"]
        self.log = Path("logs") / "workflow" / f"{name}-{datetime.now():%Y%m%d-%H%M%S}.log"

    def start(self, target: str, progress: Making | Progress, *config: str) -> int:
        """Run snakemake to a target and return its exit code; negative if a signal ended it."""
        command = [sys.executable, "-m", "snakemake", target, "--workflow-profile", self.profile, *self.more]
        command += ["--config", *self.config, *config]
        file = self.project.root / self.log
        file.parent.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"PATH": path_with_own_scripts(), DRIVER: str(os.getpid())}
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


def _watch(process: subprocess.Popen[bytes], progress: Making | Progress) -> int:
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
                progress.show()
            if asked and deadline is None:
                deadline = time.monotonic() + GRACE_S
                os.killpg(process.pid, signal.SIGINT)  # also reaches the local trainings
            if deadline is not None and time.monotonic() > deadline:
                process.kill()
        progress.end()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return -1 if asked else process.returncode
