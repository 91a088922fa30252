"""Questions to Slurm. Each has a time limit; a query that fails is an answer, "unknown", and never an exception.

One `squeue` tells of all jobs and is kept for some seconds. A single job that squeue no longer lists is asked for with
`scontrol`, then with `sacct`. Nothing heavy is imported: a supervisor asks, too.
"""

import functools
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ddp_hpc.slurm.job_environment import several_clusters
from ddp_hpc.system.commands import Said, run
from ddp_hpc.system.deadlines import QUEUE_KEPT_S

TIMEOUT_S = 20.0  # of one question; Slurm's own clients give up after 10 s without a controller
KEPT_WITHOUT_ANSWER_S = 30.0  # a controller that is away is not asked all the time
ACCOUNTING_LEFT_ALONE_S = 300.0  # nor is accounting: there may be none

# the states after which a job does not run again; any other, also one that we do not know, is not the end
ENDED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"}
    | {"OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"}
)
WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)

_BEGINS, _SEPARATOR = "\x1e", "\x1f"  # a job, and its columns: a comment may have lines of its own
_COLUMNS = ["%A", "%T", "%D", "%r", "%j", "%Z", "%k"]
_COMMENT = re.compile(r"rule_train_wildcards_(\S+)")  # as the executor plugin writes it


@dataclass(frozen=True)
class Job:
    """A job as squeue lists it."""

    number: str
    state: str
    nodes: int
    reason: str  # why it waits, or "None"
    name: str
    folder: str  # in which it works
    comment: str

    @property
    def active(self) -> bool:
        """Whether it waits or runs; a state that is not known counts as such."""
        return self.state not in ENDED

    @property
    def waits(self) -> bool:
        """Whether it has not started."""
        return self.state in WAITING

    @property
    def run(self) -> str | None:
        """The run that it trains; None if it is none of ours."""
        found = _COMMENT.fullmatch(self.comment)
        return found[1] if found else None


@dataclass(frozen=True)
class Queue:
    """The user's jobs, those lately ended included."""

    jobs: tuple[Job, ...] = ()  # empty if squeue did not answer
    problem: str | None = None  # why it did not; None: it did
    _by_run: dict[tuple[str, str], list[Job]] = field(default_factory=dict, repr=False, compare=False)
    _by_number: dict[str, Job] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for one in self.jobs:
            self._by_number[one.number] = one
            if one.run:
                self._by_run.setdefault((os.path.realpath(one.folder), one.run), []).append(one)

    def of(self, project: str | os.PathLike[str], run_name: str) -> list[Job]:
        """Return the jobs that train a run in a project, the oldest first."""
        found = self._by_run.get((os.path.realpath(project), run_name), [])
        return sorted(found, key=lambda one: int(one.number))

    def job(self, number: str) -> Job | None:
        """Return a job by its number; None if it is not listed."""
        return self._by_number.get(number)


@dataclass(frozen=True)
class Record:
    """What Slurm tells of one job: of its end above all. What it does not tell is None."""

    number: str
    state: str  # one word
    by: str | None = None  # who cancelled it
    reason: str | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    nodes: int | None = None
    hosts: str | None = None
    limit: str | None = None  # of its time
    memory_bytes: int | None = None  # that it may use on a node
    peak_bytes: int | None = None  # of its largest task, where Slurm accounts for it
    log: str | None = None
    preempted_at: str | None = None  # when it was told to make room; it may then have left by itself


def queue(kept_s: float = QUEUE_KEPT_S) -> Queue:
    """Return the user's jobs, from an answer that is at most `kept_s` seconds old."""
    global _kept
    asked, answer = _kept
    good_for = kept_s if answer.problem is None else max(kept_s, KEPT_WITHOUT_ANSWER_S)
    if time.monotonic() - asked >= good_for:
        answer = _ask_for_all()
        _kept = (time.monotonic(), answer)
    return answer


def is_active(number: str) -> bool | None:
    """Return whether a job waits or runs; None if Slurm does not answer. A job that it does not know does not run."""
    listed, found = queue(), queue().job(number)
    if found:
        return found.active
    if listed.problem:
        return None
    told = record(number)
    return told is not None and told.state not in ENDED


def forget() -> None:
    """Forget what Slurm has said: the next question is asked anew."""
    global _kept, _accounting_away_until, _asked_cluster
    _kept = (float("-inf"), Queue())
    _ended.clear()
    _asked_cluster = None
    _accounting_away_until = float("-inf")
    is_here.cache_clear()


_kept: tuple[float, Queue] = (float("-inf"), Queue())


@functools.cache
def is_here() -> bool:
    """Return whether Slurm's client commands are installed."""
    return shutil.which("squeue") is not None


def knows(started: Mapping[str, object]) -> bool:
    """Return whether the job of an attempt is of the cluster that is asked here; another has its own numbers."""
    theirs = started.get("slurm_cluster")
    return is_here() and (theirs is None or _cluster() in (None, theirs))


def _cluster() -> str | None:
    """Return the name of the cluster that is asked; None if it is not told."""
    global _asked_cluster
    if _asked_cluster is None:
        said = _ask("scontrol", "show", "config")
        found = re.search(r"^ClusterName\s*=\s*(\S+)", said.out, re.MULTILINE)
        _asked_cluster = found[1] if found and said.code == 0 else None
    return _asked_cluster


_asked_cluster: str | None = None


def _ask_for_all() -> Queue:
    """Ask squeue. An answer without the names of its columns is none: it may be a failure that was not told."""
    said = _ask("squeue", "--me", "--states=all", f"--format={_BEGINS}{_SEPARATOR.join(_COLUMNS)}")
    if said.code != 0:
        return Queue(problem=f"squeue: {said.last_words}")
    _, *rows = said.out.split(_BEGINS)  # before the first a site may greet
    jobs_told = [[part.strip() for part in row.split(_SEPARATOR, len(_COLUMNS) - 1)] for row in rows]
    if not any(row[0] == "JOBID" and row[-1] == "COMMENT" for row in jobs_told):
        said_instead = said.out.strip()[-80:]
        return Queue(problem=f"squeue: strange answer: {said_instead!r}" if said_instead else "squeue: an empty answer")
    if len(jobs_told[-1]) != len(_COLUMNS):
        return Queue(problem=f"squeue: an answer that ends within a job: {said.out[-80:]!r}")
    jobs = []
    for row in jobs_told:
        if len(row) != len(_COLUMNS) or not row[0].isdigit():
            continue  # the names of the columns, or what somebody has put into the name of a job that is not ours
        number, state, nodes, reason, name, folder, comment = row
        first_line = comment.partition("\n")[0].strip()  # more would be a site's words below its last job
        jobs.append(Job(number, state, int(nodes) if nodes.isdigit() else 1, reason, name, folder, first_line))
    return Queue(tuple(jobs))


def _ask(*command: str) -> Said:
    """Run a command of Slurm's without the variables that change the formats of its answers, or whom it asks."""
    changing = ("SQUEUE_", "SACCT_", "SLURM_TIME_")
    ours = {name: text for name, text in os.environ.items() if not name.startswith(changing)}
    if several_clusters(ours):
        del ours["SLURM_CLUSTERS"]
    return run(list(command), TIMEOUT_S, ours)


def record(number: str) -> Record | None:
    """Return what Slurm tells of a job, from the controller and from accounting; None if neither knows it."""
    if number in _ended:
        return _ended[number]
    shown = _shown(number)
    accounted = _accounted(number) if shown is None or shown.state in ENDED else None
    told = shown or accounted
    if shown and accounted:
        told = Record(**{name: getattr(shown, name) or getattr(accounted, name) for name in vars(shown)})
    if told and told.state in ENDED:
        _ended[number] = told
    return told


_ended: dict[str, Record] = {}  # what has ended does not change


def _shown(number: str) -> Record | None:
    """Ask the controller, which forgets a job some minutes (MinJobAge) after its end."""
    said = _ask("scontrol", "show", "job", "--oneliner", number)
    facts = dict(re.findall(r"(\w[\w:/]*)=(.*?)(?=\s+[A-Z]\w*(?:[:/]\w+)*=|\s*$)", said.out.partition("\n")[0]))
    return _record(number, facts) if said.code == 0 and "JobState" in facts else None


def _accounted(number: str) -> Record | None:
    """Ask accounting, where there is any: it remembers, knows who cancelled a job and how much memory it took.

    Where it does not answer it is left alone for a while: one that hangs takes its time for each of many jobs.
    """
    global _accounting_away_until
    if time.monotonic() < _accounting_away_until:
        return None
    columns = "State,ExitCode,NNodes,MaxRSS,NodeList,Timelimit"
    said = _ask("sacct", "-j", number, "--parsable2", "--noheader", "--noconvert", f"--format={columns}")
    if said.code != 0:
        _accounting_away_until = time.monotonic() + ACCOUNTING_LEFT_ALONE_S
        return None
    names = ("JobState", "ExitCode", "NumNodes", "MaxRSS", "NodeList", "TimeLimit")
    rows = [line.split("|") for line in said.out.splitlines()]
    steps = [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]  # the job itself is first
    if not steps:
        return None
    peak_bytes = max(_bytes(step["MaxRSS"]) or 0 for step in steps)
    return replace(_record(number, steps[0]), peak_bytes=peak_bytes or None)


def _record(number: str, facts: Mapping[str, str]) -> Record:
    """Return what is told of a job, by the names that scontrol has for it."""
    told = {name: text for name, text in facts.items() if text not in ("", "None", "(null)", "None assigned")}
    state, _, by = facts["JobState"].partition(" by ")
    code, _, number_of_signal = facts.get("ExitCode", "").partition(":")
    nodes = _whole(facts.get("NumNodes"))
    memory = _bytes(dict(re.findall(r"(\w+)=([^,]+)", facts.get("TRES", ""))).get("mem"))
    return Record(
        number=number,
        state=state,
        by=by or None,
        reason=told.get("Reason"),
        exit_code=_whole(code),
        exit_signal=_whole(number_of_signal),
        nodes=nodes,
        hosts=told.get("NodeList"),
        limit=told.get("TimeLimit"),
        memory_bytes=memory and memory // (nodes or 1),
        log=told.get("StdOut"),
        preempted_at=told.get("PreemptTime"),
    )


_accounting_away_until = float("-inf")


def cancel(numbers: Sequence[str]) -> str | None:
    """Cancel jobs. Return what scancel complained of, None if nothing."""
    if not numbers:
        return None
    said = _ask("scancel", *numbers)
    return None if said.code == 0 else said.last_words


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _bytes(text: str | None) -> int | None:
    """Return e.g. `1.50G` as bytes; Slurm's units are powers of 1024, and a number without one is in bytes."""
    found = re.fullmatch(r"([\d.]+)([KMGTP]?)[cn]?", text or "")
    return int(float(found[1]) * 1024 ** " KMGTP".index(found[2] or " ")) if found else None
