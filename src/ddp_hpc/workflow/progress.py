"""The progress of a study in the driver's line: runs that are done, running and waiting, and how far they are."""

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddp_hpc.config.spec import COMPONENTS
from ddp_hpc.runs.state import State, state_of, uses_slurm, why_queued
from ddp_hpc.runs.statuses import FAILED
from ddp_hpc.runs.study_runs import Planned, StudyRuns
from ddp_hpc.system.progress import ProgressLine
from ddp_hpc.system.terminal import counted, duration

LOOKING_COST = 100  # looking takes at most one part in so many of a core


@dataclass
class Making:
    """Counts the tables, figures and page that have been made since it was started."""

    outputs: Sequence[Path]  # their files
    began: float = field(default_factory=time.time)
    line: ProgressLine = field(default_factory=ProgressLine)
    made: int = 0

    def show(self) -> None:
        """Show how many have been made so far."""
        self.made = sum(file.exists() and file.stat().st_mtime > self.began for file in self.outputs)
        self.line.show(f"making tables, figures and page: {self.made} done, {duration(time.time() - self.began)}")

    def end(self) -> None:
        """Count for the last time, and leave the line."""
        self.show()
        self.line.end()


SHORT = {"world_size": "ranks", "batch_size": "batch", "learning_rate": "rate", "threads_per_rank": "threads"}
NO_WORDS = ("null", "True", "False")


def _short(fields: Mapping[str, str]) -> str:
    """Return the fields of a run on little space, e.g. `mlp (widths 8), ranks 2`: choices and words speak alone."""
    return ", ".join(
        value
        if name in COMPONENTS or (value.isidentifier() and value not in NO_WORDS)
        else f"{SHORT.get(name, name)} {value}"
        for name, value in fields.items()
    )


class TrainingProgress:
    """Counts the `missing` runs, those of a round: which have ended, run, and wait in a queue."""

    def __init__(self, study_runs: StudyRuns, missing: Sequence[Planned]) -> None:
        self.study_runs = study_runs
        states = {planned.run: state_of(study_runs.store, planned.run) for planned in missing}
        # by run that has not ended: how many attempts at it were over before the round
        self.waiting = {run: one.attempts - (one.status in ("running", "queued")) for run, one in states.items()}
        self.total = len(missing)
        self.failed = 0
        self.said: set[str] = set()  # what keeps other runs from being started
        self.began = self.next_look = time.monotonic()
        self.line = ProgressLine()

    def show(self) -> None:
        """Show where the study stands, if that is news and looking does not take a core from the trainings."""
        if time.monotonic() < self.next_look:
            return
        before_s = time.process_time()  # waiting for a slow squeue takes no core
        states = self._look()
        self.next_look = time.monotonic() + LOOKING_COST * (time.process_time() - before_s)
        done, elapsed = self.total - len(self.waiting), time.monotonic() - self.began
        worked = done + sum(map(_share, states.values()))
        running = [run for run, state in states.items() if state.status == "running"]
        queued = Counter(why_queued(state.reason) for state in states.values() if state.status == "queued")
        # if nothing runs, why most of them wait: somebody may have to help, e.g. JobHeldUser
        why = f" ({queued.most_common(1)[0][0]})" if queued and not running else ""
        parts = [
            f"{done - self.failed} of {counted(self.total, 'run')} trained",
            *([f"{self.failed} failed"] if self.failed else []),
            *([f"{len(running)} running"] if len(running) > 1 else []),
            *([f"{queued.total()} queued{why}"] if queued else []),
            duration(elapsed),
            *([f"about {duration(elapsed / worked * (self.total - worked))} left"] if done and self.waiting else []),
        ]
        for run in running[:1]:  # e.g. `ring, ranks 2, rate 0.1 (step 120 of 400, 12 s left)`
            point, far = _short(self.study_runs.points[run]), how_far(states[run].progress)
            now = f"{point} ({far})" if point and far else point or far
            parts[-1] += f"; now {now}" if now else ""
        self.line.show(", ".join(parts))

    def end(self) -> None:
        """Leave the line."""
        self.line.end()

    def _look(self) -> dict[str, State]:
        """Drop the runs that have ended since we last looked, and return the states of those that run or are queued."""
        found = {}
        store = self.study_runs.store
        for run, before in list(self.waiting.items()):
            if store.finished(run):
                del self.waiting[run]
                continue
            if len(store.run(run).attempts) == before and not uses_slurm(store):
                continue
            state = state_of(store, run)
            if state.status in FAILED and state.attempts > before:
                del self.waiting[run]
                self.failed += 1
                self._say_at_once(run, state)
            elif state.status in ("running", "queued"):
                found[run] = state
        return found

    def _say_at_once(self, run: str, state: State) -> None:
        """Say why a run has crashed, if others are not started for that."""
        attempts = self.study_runs.store.run(run).attempts
        fields = attempts[-1].ended.get("shared_by") if len(attempts) == state.attempts else None
        if fields and (key := str(fields)) not in self.said:
            self.said.add(key)
            self.line.end()
            others = f"runs with the same {' and '.join(fields)} are not started"
            print(f"{self.study_runs.describe(run)}: {state.reason}; {others}", file=sys.stderr, flush=True)


def _share(state: State) -> float:
    """Return which part of a run is done: many run side by side on a cluster, and none of them counts as nothing."""
    return min(1.0, float(state.progress.get("step", 0)) / (state.progress.get("steps_asked") or float("inf")))


def how_far(told: Mapping[str, Any]) -> str:
    """Return how far a running one is, by what it has told, e.g. `step 120 of 400, 12 s left`; empty: nothing yet."""
    if told.get("step") is None:
        return ""
    asked = f" of {told['steps_asked']}" if told.get("steps_asked") else ""
    return f"step {told['step']}{asked}, {duration(told.get('eta_s') or 0)} left"


Progress = Making | TrainingProgress
