"""Trains a study in rounds: retries failed runs as the machine file says, and starts no run twice."""

import json
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ddp_hpc.runs.ending import Ending
from ddp_hpc.runs.state import keep_end, keep_slurm_ends, mark_slurm, record_is_late, state_of
from ddp_hpc.runs.statuses import FAILED, in_words
from ddp_hpc.runs.study_runs import Planned, StudyRuns
from ddp_hpc.slurm import job_end
from ddp_hpc.system import deadlines
from ddp_hpc.system.files import replaced
from ddp_hpc.system.terminal import counted, duration
from ddp_hpc.workflow.progress import TrainingProgress
from ddp_hpc.workflow.slurm_jobs import Jobs, Watch
from ddp_hpc.workflow.snakemake_process import POLL_S, Signals, Snakemake

PAUSING = ("node_fail", "launch_failed")  # what a second job may meet, too, if it starts at once
MOST_STUCK = 3  # rounds that Snakemake may spoil by hanging

# words of a refusal: the user, or Slurm, may have no more jobs queued
_FULL = re.compile("submit ?limit|MaxSubmit|MaxJobCount|temporarily unable to accept job", re.IGNORECASE)


@dataclass
class RetryRounds:
    """Trains the runs that a study lacks."""

    study_runs: StudyRuns
    snakemake: Snakemake  # to be started once a round
    jobs: Jobs | None  # of the study, where Slurm runs them; None: they run here
    retries: Mapping[str, int]  # by status, how often a run that failed so is tried again
    signals: Signals  # what asks to end
    pause_s: float = 0.0  # how long to wait before a run is tried again that failed with its node or its launch
    failures: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)  # by run and status
    stuck: int = field(default=0, init=False)  # rounds that Snakemake has spoilt by hanging
    full: set[str] = field(default_factory=set, init=False)  # runs of this round for which the queue had no room

    def train(self, missing: Sequence[Planned]) -> int:
        """Train, round after round, and return the last exit code of Snakemake; negative if a signal asked to end."""
        waiting, code, number = list(missing), 0, 0
        if self.jobs:
            mark_slurm(self.study_runs.store)
            self.jobs.wait_for_slurm()
            keep_slurm_ends(self.study_runs.store, [planned.run for planned in waiting])
        while waiting and not self.signals.asked:
            number += 1
            code = self._round(waiting, number)
            if self.signals.asked:
                break
            waiting = self._again(waiting)
        if signal.SIGHUP in self.signals.asked and self.jobs:
            self.snakemake.say("the terminal went away: jobs go on, and the same command finds them")
        elif self.signals.asked and self.jobs:
            self.jobs.cancel()
            keep_slurm_ends(self.study_runs.store, [planned.run for planned in missing])
        return -1 if self.signals.asked else code

    def _round(self, waiting: Sequence[Planned], number: int) -> int:
        """Train once what waits; jobs of an earlier driver are left alone, and waited for."""
        progress = TrainingProgress(self.study_runs, waiting)
        if not self.jobs:
            return self.snakemake.start("trained", progress, self._only(waiting, number))
        self.jobs.wait_for_slurm()
        theirs = {job.run: job for job in self.jobs.active()}
        ours = [planned for planned in waiting if planned.run not in theirs]
        if theirs:
            numbers = ", ".join(job.number for job in theirs.values())
            print(f"{counted(len(theirs), 'run')} already in the queue or running: Slurm jobs {numbers}", flush=True)
        code = 0
        if ours and not self.signals.asked:
            watch = Watch(self.jobs, lambda: len(progress.waiting))

            def over(pid: int) -> bool:
                self._keep_refusals(ours)  # at once: others may run for days
                return watch(pid)

            self.full.clear()
            code = self.snakemake.start("trained", progress, self._only(ours, number), over)
            if watch.stuck:
                self.stuck += 1
                self.snakemake.say(watch.stuck)
                print(watch.stuck, file=sys.stderr)
            elif code < 0 and not self.signals.asked:
                self.snakemake.say("all runs of this round have ended; the workflow had not noticed yet, and is ended")
        self.jobs.wait_for_end(progress)
        store = self.study_runs.store  # records that were written on a node may not be seen here yet
        self._wait(deadlines.LATE_S, lambda: any(record_is_late(store, planned.run) for planned in waiting))
        return code

    def _wait(self, seconds: float, needed: Callable[[], bool] = lambda: True) -> None:
        """Wait while it is needed, at most so long, and until a signal asks to end."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.signals.asked and needed():
            time.sleep(POLL_S)

    def _only(self, runs: Sequence[Planned], number: int) -> str:
        """Write which runs a round trains, and return what tells the Snakefile."""
        file = self.snakemake.log.with_suffix(f".round-{number}.json")
        with replaced(self.snakemake.project.root / file) as temporary:
            temporary.write_text(json.dumps([planned.run for planned in runs], indent=1))
        return f"only={file}"

    def _again(self, waiting: Sequence[Planned]) -> list[Planned]:
        """Return the runs that are to be tried once more, and say so."""
        lacking = [planned for planned in waiting if not self.study_runs.store.finished(planned.run)]
        if self.jobs:
            self._keep_refusals(lacking)
            keep_slurm_ends(self.study_runs.store, [planned.run for planned in lacking])
        room = len(self.full) < len(waiting)  # in the queue: the other jobs of this round have left it
        again, why = [], Counter[str]()
        for planned in lacking:
            status = state_of(self.study_runs.store, planned.run).status
            self.failures[planned.run, status] += 1
            lost = status == "missing" and 0 < self.stuck < MOST_STUCK
            refused = room and planned.run in self.full
            retried = status in FAILED and self.failures[planned.run, status] <= self.retries.get(status, 0)
            if lost or refused or retried:
                again.append(planned)
                why[status] += 1
        if again:
            counts = ", ".join(f"{count} {in_words(status)}" for status, count in why.items())
            pause_s = self.pause_s if any(status in PAUSING for status in why) else 0.0
            later = f", in {duration(pause_s)}" if pause_s else ""
            print(f"{counted(len(again), 'run')} to try again{later}: {counts}", flush=True)
            self._wait(pause_s)
        return again

    def _keep_refusals(self, waiting: Sequence[Planned]) -> None:
        """Write down, as attempts, what sbatch has refused since the last time; note where the queue was full."""
        refused = self.snakemake.events.refusals()
        for planned in waiting:
            if words := refused.get(planned.run):
                keep_end(self.study_runs.store, planned.run, Ending(*job_end.refused(words)))
                self.full |= {planned.run} if _FULL.search(words) else set()
