"""Rows and lines of text that `list`, `plan` and the other planning verbs print."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from ddp_hpc.config import catalog
from ddp_hpc.config.spec import SPEC_FIELDS
from ddp_hpc.config.study import StudyError
from ddp_hpc.runs.project import Project
from ddp_hpc.runs.statuses import FAILED, in_words
from ddp_hpc.runs.study_runs import StudyRuns
from ddp_hpc.slurm.packing import Packing
from ddp_hpc.slurm.resources import Request
from ddp_hpc.system.terminal import counted, duration, rank_time
from ddp_hpc.workflow.plan import Item

MOST_LINES, MOST_VALUES = 40, 6
KINDS = {f"{kind}s": kind for kind in catalog.KINDS}


def rows(find: Callable[[], Project], what: str | None, as_json: bool) -> list[dict[str, Any]]:
    """Return the rows of `ddp-hpc list`: the choices of a kind, also outside a project; studies; or points."""
    if what in KINDS:
        with suppress(StudyError):  # outside a project these are the package's
            find()
        return [_choice(KINDS[what], name, as_json) for name in catalog.names(KINDS[what])]
    project = find()
    if what is None:
        return [_study(project, name) for name in project.studies]
    if what in project.studies or what.endswith(".yaml"):
        study_runs = project.study_runs(what)
        fields: Mapping[str, Mapping[str, Any]] = study_runs.varying if as_json else study_runs.points
        return [{**fields[run], "run": run} for run in fields]
    known = [*project.studies, *KINDS]
    raise ValueError(f"nothing is called {what!r}{catalog.did_you_mean(what, known)}; expected: {', '.join(known)}")


def _study(project: Project, name: str) -> dict[str, Any]:
    """Return a study, its runs and how many are finished; or what is wrong with it."""
    try:
        study_runs = project.study_runs(name)
    except (StudyError, catalog.CatalogError) as error:
        return {"study": name, "runs": None, "finished": None, "description": f"WRONG: {error}".split("\n")[0]}
    finished = sum(project.store.finished(planned.run) for planned in study_runs.planned)
    description = study_runs.study.description
    return {"study": name, "runs": len(study_runs.planned), "finished": finished, "description": description}


def _choice(kind: str, name: str, as_json: bool) -> dict[str, Any]:
    """Return a choice, its options, and its first line of documentation; or what is wrong with it."""
    try:
        options = catalog.options(kind, name).values()
        what = catalog.summary(kind, name)
    except catalog.CatalogError as error:
        return {kind: name, "options": None, "what": f"WRONG: {error}"}
    if as_json:
        values = [{"name": one.name, "allowed": one.allowed, "default": one.plain_default} for one in options]
        return {kind: name, "options": values, "what": what}
    defaults = [one.default if isinstance(one.default, str) else json.dumps(one.default) for one in options]
    words = [f"{one.name}: {one.allowed} (default: {text})" for one, text in zip(options, defaults, strict=True)]
    return {kind: name, "options": ", ".join(words) or None, "what": what}


def plan_values(
    study_runs: StudyRuns, items: Sequence[Item], asked: Mapping[str, Request], found: Sequence[Packing] = ()
) -> dict[str, Any]:
    """Return the plan as plain values: study, notes, counts, hours, ways, and every run with what it asks for."""
    waiting, known, seconds = _cost(items)
    hours = {f"{name.removesuffix('_s')}_h": value / 3600 if known else None for name, value in seconds.items()}
    return {
        "study": study_runs.study.name,
        "notes": list(study_runs.notes),
        "counts": Counter(item.action for item in items),
        "to_train": waiting,
        "hours": {"of_runs": known} | hours,
        "ways": [asdict(one) | {"better": one.better} for one in found],
        "runs": [
            {
                "run": item.planned.run,
                "action": item.action,
                "reason": item.reason,
                "estimate_s": item.estimate and item.estimate.middle_s,
                "estimate_low_s": item.estimate and item.estimate.low_s,
                "estimate_high_s": item.estimate and item.estimate.high_s,
                "estimate_from": item.estimate and (item.estimate.predicted or _like_it(item.estimate.of)),
                "spec": item.planned.spec.canonical,
                "request": (one := asked.get(item.planned.run)) and asdict(one),
            }
            for item in items
        ],
    }


def plan_lines(study_runs: StudyRuns, items: Sequence[Item], everything: bool) -> list[str]:
    """Return the plan as lines: the counts, why (each reason once, or each run), how long, notes on the grid."""
    counts = Counter(item.action for item in items)
    waiting = [f"{counts[action]} {action}" for action in ("new", "changed") if counts[action]]
    listed = [
        *([f"{counts['kept']} finished"] if counts["kept"] else []),
        *([f"{counts['new'] + counts['changed']} {in_words('missing')} ({', '.join(waiting)})"] if waiting else []),
        *(f"{counts[action]} {action}" for action in (*FAILED, "running", "queued") if counts[action]),
    ]
    lines = [f"{study_runs.study.name}: {counted(len(items), 'run')}: {', '.join(listed)}"]
    if everything:
        for item in items:
            run, point = item.planned.run, study_runs.describe(item.planned.run)
            lines.append(f"  {item.action:8} {run if point == run else f'{run} ({point})'}  {item.reason}")
    else:
        lines += _by_reason(study_runs, [item for item in items if item.action != "kept"])
    return [*lines, *_how_long(items), *(f"note: {note}" for note in study_runs.notes)]


def asked_lines(asked: Mapping[str, Request], what: str = "job") -> list[str]:
    """Return what the runs ask a cluster for: a line per kind of job or step, and the most that they can cost."""
    if not asked:
        return []
    kinds = Counter(asked.values())
    node_hours = sum(count * one.nodes * one.runtime_min / 60 for one, count in kinds.items())
    return [
        *(f"  {counted(count, what)}: {_asks(one)}" for one, count in list(kinds.items())[:MOST_LINES]),
        *([f"  ... and {len(kinds) - MOST_LINES} more kinds: --json"] if len(kinds) > MOST_LINES else []),
        f"at most {node_hours:,.1f} node-hours, if all ran to their time limits",
    ]


def _asks(one: Request) -> str:
    where = f"{counted(one.nodes, 'node')} of {one.partition}{', exclusive' if one.exclusive else ''}"
    gpus = f", {counted(one.gpus, 'GPU')}" if one.gpus else ""
    cores = f"{counted(one.cores_per_rank, 'core')} each"
    return f"{where}, {counted(one.tasks, 'rank')}{gpus}, {cores}, {one.mem_mb} MB of a node, {one.runtime_min} min"


def _by_reason(study_runs: StudyRuns, items: Sequence[Item]) -> list[str]:
    """Return a line per reason: how many runs have it, and one of them; for new runs, a line per field that differs."""
    groups: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        groups.setdefault((item.action, "" if item.differences else item.reason), []).append(item)
    lines = []
    for (action, reason), group in list(groups.items())[:MOST_LINES]:
        first, *others = _by_field(group) or [reason]
        example = f"{'e.g. ' if len(group) > 1 else ''}{study_runs.describe(group[0].planned.run)}"
        lines.append(f"  {len(group)} {action}: {first}; {example}")
        lines += [f"      {other}" for other in others]
    if len(groups) > MOST_LINES:
        lines.append(f"  ... and {len(groups) - MOST_LINES} more reasons: --all or --json")
    return lines


def _by_field(items: Sequence[Item]) -> list[str]:
    """Return in what new runs differ from the nearest finished ones: each field with its values on both sides."""
    fields: dict[str, list[tuple[str, str]]] = {}
    for item in items:
        for name, ours, theirs in item.differences:
            fields.setdefault(name, []).append((ours, theirs))
    alike = all(len(pairs) == len(items) for pairs in fields.values())
    lines = [
        f"{name} {_few(ours)} (nearest run: {_few(theirs)}){'' if alike else f' in {len(pairs)}'}"
        for name, pairs in sorted(fields.items(), key=lambda field: SPEC_FIELDS.index(field[0]))
        for ours, theirs in [zip(*pairs, strict=True)]
    ]
    return ["; ".join(lines)] if alike and lines else lines


def _few(values: Sequence[str]) -> str:
    """Return values, each once, the first of many."""
    once = list(dict.fromkeys(values))
    return ", ".join([*once[:MOST_VALUES], *([f"... ({len(once)} values)"] if len(once) > MOST_VALUES else [])])


def _cost(items: Sequence[Item]) -> tuple[int, int, dict[str, float]]:
    """Return the number of runs to train, of how many their seconds are known, and these in sum, also times ranks."""
    waiting = [item for item in items if item.will_run]
    known = [(item.estimate, item.planned.spec.world_size) for item in waiting if item.estimate]
    seconds = {name: sum(getattr(one, name) for one, _ in known) for name in ("low_s", "middle_s", "high_s")}
    return len(waiting), len(known), seconds | {"ranks_s": sum(one.middle_s * ranks for one, ranks in known)}


def _how_long(items: Sequence[Item]) -> list[str]:
    waiting, known, seconds = _cost(items)
    if not waiting:
        return ["nothing is to be trained"]
    to_train = f"{counted(waiting, 'run')} to train"
    if not known:
        return [f"{to_train}; how long is not known: no run like them has finished"]
    low, middle, high = (duration(seconds[name]) for name in ("low_s", "middle_s", "high_s"))
    spread = "" if low == high else f" ({low} to {high})"
    more = f"; not counted: {waiting - known} like which none has finished" if waiting > known else ""
    said = f"{to_train}: about {middle} one after the other{spread}, {rank_time(seconds['ranks_s'])}{more}"
    sources = Counter(item.estimate.predicted for item in items if item.will_run and item.estimate)
    return [said, *(f"  {counted(count, 'run')} {basis}" for basis, count in sources.items() if basis)]


def _like_it(runs: int) -> str:
    return f"{counted(runs, 'run')} like it, scaled by steps"
