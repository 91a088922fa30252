"""The Slurm jobs of a study, for its driver: find them, wait for them, notice lost ones, cancel them."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ddp_hpc.runs.project import Project
from ddp_hpc.runs.study_runs import Planned
from ddp_hpc.slurm import client
from ddp_hpc.system import deadlines
from ddp_hpc.system.terminal import counted, duration
from ddp_hpc.workflow.progress import Progress
from ddp_hpc.workflow.snakemake_process import POLL_S, Signals

QUESTIONS = ("sacct", "scontrol", "squeue")  # of the plugin about its jobs
PATIENCE = 3  # so many questions without an answer, and Slurm is taken to be away
SAY_AGAIN_S = 300.0


class Jobs:
    """The jobs that train planned runs in this project's folder, whoever has submitted them."""

    def __init__(self, project: Project, planned: Sequence[Planned], signals: Signals) -> None:
        self.signals = signals
        self._seen: list[client.Job] = []
        self._folder = os.path.realpath(project.root)
        self._runs = {one.run for one in planned}

    def active(self) -> list[client.Job]:
        """Return those that wait or run; none if Slurm does not answer.

        An answer of squeue that lacks a job which has not ended, as scontrol says, has been cut short.
        """
        listed = client.queue()
        ours = [job for job in listed.jobs if job.active and job.run in self._runs]
        ours = [job for job in ours if os.path.realpath(job.folder) == self._folder]
        if not listed.problem:
            lost = [job for job in self._seen if listed.job(job.number) is None]
            self._seen = ours = [*ours, *(job for job in lost if client.is_active(job.number))]
        return ours

    def wait_for_slurm(self) -> None:
        """Wait until Slurm answers, or a signal asks to end: without knowing the queue, nothing may be submitted."""
        said = None
        while (problem := client.queue().problem) and not self.signals.asked:
            if said is None or time.monotonic() - said > SAY_AGAIN_S:
                print(f"Slurm does not answer ({problem}): nothing is submitted until it does", file=sys.stderr)
                said = time.monotonic()
            time.sleep(POLL_S)

    def wait_for_end(self, progress: Progress) -> None:
        """Wait until no job is left, or a signal asks to end."""
        while (client.queue().problem or self.active()) and not self.signals.asked:
            progress.show()
            time.sleep(POLL_S)
        progress.end()

    def cancel(self) -> None:
        """Cancel all, say so, and wait until they have gone."""
        began, cancelled, unanswered = time.monotonic(), set[str](), 0
        while (waited := time.monotonic() - began) < deadlines.CANCELLED_S:
            client.forget()
            jobs, problem = self.active(), client.queue().problem
            unanswered = unanswered + 1 if problem else 0
            if unanswered == PATIENCE:
                print(f"{problem}: jobs may go on, and the same command finds them", file=sys.stderr)
                return
            if numbers := [job.number for job in jobs if job.number not in cancelled]:
                refusal, what = client.cancel(numbers), f"{counted(len(numbers), 'Slurm job')}: {', '.join(numbers)}"
                print(f"cannot cancel {what}: {refusal}" if refusal else f"cancelled {what}", file=sys.stderr)
                cancelled |= set() if refusal else set(numbers)
            if not jobs and not problem and waited > 2:  # one may just have been submitted
                return
            time.sleep(1)
        print(f"{counted(len(self.active()), 'Slurm job')} still on the way out", file=sys.stderr)


@dataclass
class Watch:
    """Says whether a running Snakemake has become pointless: all has ended, or it waits for jobs that are not there."""

    jobs: Jobs
    unended: Callable[[], int]  # how many runs of the round have not ended, as far as is known
    stuck: str | None = None  # what to tell about a Snakemake that hangs; None: it does not
    _next_look: float = 0.0
    _last_active: float = field(default_factory=time.monotonic)

    def __call__(self, pid: int) -> bool:
        """Return whether to end the Snakemake of process `pid`."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + deadlines.LOOK_S
        if client.queue().problem or self.jobs.active() or _works(pid):  # unknown is not none
            self._last_active = now
            return False
        idle_s = now - self._last_active
        if not self.unended() and idle_s > deadlines.QUIET_S:
            return True
        if idle_s < deadlines.STUCK_S:
            return False
        self.stuck = (
            f"the workflow waits, but for {duration(idle_s)} no job of this study was in the queue: it has lost track "
            "of them and is ended; what has no result is tried again"
        )
        return True


def _works(pid: int) -> bool:
    """Return whether a process has children that are no questions: it fetches a dataset, or sbatch is slow.

    A question about jobs takes long where accounting hangs, and is asked over and over; that is no work.
    """
    import psutil

    try:
        children = [child for child in psutil.Process(pid).children() if child.name() not in QUESTIONS]
        return any(time.time() - child.create_time() > deadlines.LOOK_S for child in children)
    except psutil.Error:
        return False
