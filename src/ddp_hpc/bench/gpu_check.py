"""`ddp-hpc bench gpu`: whether all is right and fast on the GPUs of this machine, in under nine minutes.

Each part, a function of `gpu_parts` or `gpu_runs`, is a process of its own with a time limit: one that crashes or hangs
is told, and the next one begins. What a part finds it writes at once, as lines of check.jsonl; SUMMARY.md is written
anew after each part. On a CPU all parts run in small sizes, which shows that they run; goals of GPUs are not judged.
"""

import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from ddp_hpc.bench.timing import Row, say
from ddp_hpc.execution.mpi_environment import of_launcher
from ddp_hpc.system.files import text_of
from ddp_hpc.system.process import die_with_parent, path_with_own_scripts

FINDINGS, SUMMARY = "check.jsonl", "SUMMARY.md"
LAST_LINES = 3  # of what a part that failed has said
LEAST_S = 5.0  # with less time left a part is not begun
END_S = 5.0  # that a part has for its end when it is asked to
RIGHT, WRONG, UNTOLD, CPU_ONLY = "reached", "missed", "not told apart", "not judged on a CPU"


@dataclass(frozen=True)
class Asked:
    """What a part is told: where to write, and on what to compute."""

    folder: Path
    device: str  # `cuda` or `cpu`, where everything is small
    launcher: str  # that starts ranks, without -n
    gpus: int = 0  # of this machine

    @property
    def small(self) -> bool:
        """Whether sizes are such that a CPU is soon through."""
        return self.device == "cpu"


class Findings:
    """What one part finds, a line of check.jsonl each, written at once."""

    def __init__(self, asked: Asked, part: str) -> None:
        self._file, self._part, self._judges = asked.folder / FINDINGS, part, not asked.small

    def line(self, **facts: Any) -> None:
        """Add a line as it is; what is not finite is null."""
        facts = {name: _known(value) for name, value in facts.items()}
        with self._file.open("a") as file:
            print(json.dumps({"part": self._part} | facts), file=file, flush=True)

    def note(self, what: str, measured: Any, unit: str = "", **more: Any) -> None:
        """Tell a number or a fact for which there is no goal."""
        self.line(what=what, measured=measured, unit=unit, **more)

    def check(self, what: str, right: bool, **more: Any) -> None:
        """Tell whether something is as it must be, on any device."""
        self.line(what=what, measured=right, verdict=RIGHT if right else WRONG, **more)

    def judge(self, what: str, middle: float, low: float, high: float, *, unit: str, goal: str, **more: Any) -> None:
        """Tell a number with its interval, and what becomes of a `goal` such as `at least 30` or `at most 2`."""
        word, limit = goal.split()[1], float(goal.split()[2])
        sure, lost = (low >= limit, high < limit) if word == "least" else (high <= limit, low > limit)
        verdict = RIGHT if sure else WRONG if lost else UNTOLD
        verdict = verdict if self._judges else CPU_ONLY
        self.line(what=what, measured=middle, low=low, high=high, unit=unit, goal=goal, verdict=verdict, **more)


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and not isfinite(value) else value


@dataclass(frozen=True)
class Part:
    """A function of a module, that is given `Asked` and `Findings`, and the seconds that it may take."""

    name: str
    limit_s: float
    module: str = "ddp_hpc.bench.gpu_parts"
    gpus: int = 1  # that it needs, where the device is a GPU


RUNS = "ddp_hpc.bench.gpu_runs"
PARTS = (  # the most worth first
    Part("machine", 40),
    Part("right", 90),
    Part("usual_loop", 90),
    Part("tuned_loop", 70),
    Part("one_rank_of_nccl", 40),
    Part("nccl_ends", 60, RUNS, gpus=2),
    Part("several_gpus", 90, RUNS, gpus=2),
    Part("whole_run", 60, RUNS),
    Part("resumed", 40),
    Part("clocks", 40),
    Part("shared_gpu", 70, RUNS),
    Part("images", 60),
    Part("language_model", 60),
    Part("out_of_memory", 40, RUNS),
    Part("realign", 40),
)


def chosen(names: Sequence[str] | None) -> list[Part]:
    """Return the parts of these names, the machine's before them; None: all.

    Raises:
        ValueError: there is no such part.
    """
    known = [part.name for part in PARTS]
    if wrong := [name for name in names or () if name not in known]:
        raise ValueError(f"--only: given {', '.join(wrong)}; expected: {', '.join(known)}")
    return [part for part in PARTS if part is PARTS[0] or names is None or part.name in names]


def check(asked: Asked, seconds: float, parts: Sequence[Part] = PARTS) -> list[Row]:
    """Run the parts one after another, as long as there is time; return all findings.

    Raises:
        ValueError: a GPU is asked for, and there is none.
    """
    ends = time.monotonic() + seconds
    asked.folder.mkdir(parents=True, exist_ok=True)
    file = asked.folder / FINDINGS
    file.write_text("")
    gpus = 0
    for part in parts:
        tell, left = Findings(asked, part.name), ends - time.monotonic()
        if left < LEAST_S:
            tell.line(ended="not begun: the time was up")
        elif asked.device == "cuda" and gpus < part.gpus and part is not parts[0]:
            tell.line(ended=f"not begun: it needs {part.gpus} GPUs, here are {gpus}")
        else:
            say(f"{part.name}, at most {min(part.limit_s, left):.0f} s")
            began = time.monotonic()
            how = _run(part, Asked(asked.folder, asked.device, asked.launcher, gpus), min(part.limit_s, left))
            tell.line(ended=how, seconds=round(time.monotonic() - began, 1))
        rows = findings(file)
        gpus = next((row["measured"] for row in rows if row.get("what") == "GPUs"), gpus)
        (asked.folder / SUMMARY).write_text(summary(rows, asked.device))
        if asked.device == "cuda" and part.name == "machine" and not gpus:
            raise ValueError(f"--device: given cuda, but torch finds no GPU here ({_last_words(asked, part)})")
    return findings(file)


def _run(part: Part, asked: Asked, limit_s: float) -> str:
    """Run a part to its end, or to its limit; return how it ended."""
    context = multiprocessing.get_context("forkserver")  # which imports torch once, for all parts
    context.set_forkserver_preload(["torch"])
    process = context.Process(target=_be, args=(part, asked), daemon=False)
    process.start()
    assert process.pid is not None, "it was started"
    process.join(limit_s)
    if process.exitcode is None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):  # it leads a group, but not from its first moment
                os.killpg(process.pid, number)
            process.join(END_S)
            if process.exitcode is not None:
                break
        return f"killed after {limit_s:.0f} s: {_last_words(asked, part)}"
    if process.exitcode == 0:
        return "ok"
    died = f"signal {-process.exitcode}" if process.exitcode < 0 else f"exit code {process.exitcode}"
    return f"crashed, {died}: {_last_words(asked, part)}"


def _be(part: Part, asked: Asked) -> None:
    """Be the process of a part."""
    os.setsid()
    die_with_parent(signal.SIGTERM)
    log = (asked.folder / f"{part.name}.log").open("w", buffering=1)
    for number in (1, 2):
        os.dup2(log.fileno(), number)
    sys.stdout = sys.stderr = log
    os.environ["PATH"] = path_with_own_scripts()  # an MPI that came with us is found
    if part.module != RUNS:  # it is a rank, without a launcher
        os.environ.update(of_launcher(1))
    work = getattr(importlib.import_module(part.module), part.name)
    work(asked, Findings(asked, part.name))
    if MPI := getattr(sys.modules.get("mpi4py"), "MPI", None):  # noqa: N806
        MPI.Finalize()  # a process that was forked does not do that by itself


def _last_words(asked: Asked, part: Part) -> str:
    lines = [line.strip() for line in text_of(asked.folder / f"{part.name}.log").splitlines() if line.strip()]
    return " | ".join(lines[-LAST_LINES:])[-500:] or "it said nothing"


def findings(file: Path) -> list[Row]:
    """Return the lines of a check; one that was cut off does not count."""
    rows: list[Row] = []
    for line in text_of(file).splitlines():
        with suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def failed(rows: Sequence[Row]) -> bool:
    """Return whether something is not as it must be, or a part did not come to its end; missed goals do not count."""
    wrong = any(row.get("verdict") == WRONG and "goal" not in row for row in rows)
    return wrong or any(str(row.get("ended", "")).startswith(("killed", "crashed")) for row in rows)


def summary(rows: Sequence[Row], device: str) -> str:
    """Return SUMMARY.md: a line per finding, then how each part ended."""
    note = "" if device == "cuda" else "\nOn a CPU, in small sizes: it shows that all parts run, and no speed.\n"
    return f"# GPU check\n{note}\n" + "\n".join([*_told(rows), "", "## Parts", "", *_ended(rows), ""])


def _told(rows: Sequence[Row]) -> Iterator[str]:
    yield "| part | what | goal | measured | interval (95 %) | verdict |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        if "what" in row:
            interval = f"{_text(row['low'])} to {_text(row['high'])}" if row.get("low") is not None else ""
            note = f" ({row['note']})" if row.get("note") else ""
            measured = f"{_text(row['measured'])} {row.get('unit', '')}".strip()
            cells = (row["part"], row["what"] + note, row.get("goal", ""), measured, interval, row.get("verdict", ""))
            yield "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"


def _ended(rows: Sequence[Row]) -> Iterator[str]:
    yield "| part | ended | seconds |"
    yield "|---|---|---|"
    for row in rows:
        if "ended" in row:
            yield f"| {row['part']} | {row['ended'].replace('|', '/')} | {row.get('seconds', '')} |"


def _text(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
