"""Slurm's client commands, made up: scripts on a PATH of their own that print what a test wants to hear."""

import os
from collections.abc import Mapping
from pathlib import Path

BEGINS, SEPARATOR = "\x1e", "\x1f"
HEADER = BEGINS + SEPARATOR.join(["JOBID", "STATE", "NODES", "REASON", "NAME", "WORK_DIR", "COMMENT"])


def line(number: int, state: str, run: str = "one", folder: object = "/project", reason: str = "None") -> str:
    """A job as squeue prints it in our format."""
    return BEGINS + SEPARATOR.join(
        [str(number), state, "1", reason, f"ddp_{number}", str(folder), f"rule_train_wildcards_{run}"]
    )


def shown(number: int, state: str, more: str = "") -> str:
    """A job as `scontrol show job --oneliner` prints it."""
    return (
        f"JobId={number} JobName=ddp UserId=me(1) JobState={state} Reason=None Dependency=(null) Restarts=0 "
        f"RunTime=00:01:00 TimeLimit=00:01:00 NodeList=node1 NumNodes=1 TRES=cpu=1,mem=1000M,node=1,billing=1 "
        f"Command=(null) WorkDir=/project with space Comment=rule_train_wildcards_one {more}"
    )


def install(folder: Path, monkeypatch, commands: Mapping[str, str]) -> None:
    """Put only these commands on the PATH: name and shell text. Before that squeue prints the names of its columns."""
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    for name, body in commands.items():
        head = f"printf '%s\\n' '{HEADER}'\n" if name == "squeue" else ""
        (folder / name).write_text(f"#!/bin/sh\n{head}{body}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin-without-slurm")


def says(text: str, code: int = 0) -> str:
    """Shell text that prints `text`, whatever the arguments."""
    return f"while IFS= read -r said; do printf '%s\\n' \"$said\"; done <<'END'\n{text}\nEND\nexit {code}"
