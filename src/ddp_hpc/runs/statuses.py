"""The statuses of planned runs, with their kinds, exit codes, and whether they are retried."""

# status: (kind, exit code of the job, retried within one invocation)
STATUSES = {
    "ok": ("result", 0, False),
    "diverged": ("finding", 0, False),
    "oom_gpu": ("finding", 0, False),
    "beaten": ("finding", 0, False),  # of a study with `stop_when_beaten`: it could not win any more
    "oom_host": ("failure", 1, True),
    "timeout": ("failure", 1, True),
    "preempted": ("failure", 1, True),
    "node_fail": ("failure", 1, True),
    "launch_failed": ("failure", 1, True),
    "crashed": ("failure", 1, False),
    "cancelled": ("failure", 1, False),
    "rejected": ("failure", 1, False),
    "missing": ("not yet", None, None),
    "queued": ("not yet", None, None),
    "running": ("not yet", None, None),
}
FINISHED = frozenset(status for status, (kind, _, _) in STATUSES.items() if kind in ("result", "finding"))
FAILED = frozenset(status for status, (kind, _, _) in STATUSES.items() if kind == "failure")
PEER_FAILURE = "peer_failure"  # in the report of a rank that has lost another; no run ends so


def in_words(status: str) -> str:
    """Return a status as people read it: what is `missing` is not lost, it was never run."""
    return "not yet run" if status == "missing" else status
