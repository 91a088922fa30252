"""`ddp-hpc plan`: which runs of a study are missing, why, and for about how long they will train."""

import json
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ddp_hpc.config import beaten, catalog
from ddp_hpc.config.settings import ProfileConfig
from ddp_hpc.config.spec import SPEC_FIELDS, RunSpec, shown
from ddp_hpc.config.types import canonical_json
from ddp_hpc.runs import beaten as rivalry
from ddp_hpc.runs import identity
from ddp_hpc.runs.attempt import PLAN, RunFolder, Store
from ddp_hpc.runs.state import State, state_of
from ddp_hpc.runs.statuses import FAILED
from ddp_hpc.runs.study_runs import Planned, StudyRuns
from ddp_hpc.system.files import leave_out
from ddp_hpc.system.terminal import counted, duration

MOST_NEIGHBOURS = 20
SHOWN = 3  # kinds of runs that a note names


@dataclass(frozen=True)
class Estimate:
    """Seconds that a run will take, from `of` runs like it."""

    low_s: float
    middle_s: float
    high_s: float
    of: int
    predicted: str | None = None  # from what; None: the times of the runs themselves, scaled


@dataclass(frozen=True)
class Item:
    """One planned run: `kept`, `new`, `changed`, `running`, `queued` or the status of a failure, and why.

    A new one differs from the nearest finished run in some fields: each with its value and that of the nearest run.
    """

    planned: Planned
    action: str
    reason: str
    estimate: Estimate | None = None
    differences: tuple[tuple[str, str, str], ...] = ()

    @property
    def will_run(self) -> bool:
        """Whether the next `ddp-hpc run` trains it."""
        return self.action not in ("kept", "running", "queued")


@dataclass(frozen=True)
class Finished:
    """A run in the store that has ended, as its `spec.json` and its journal tell."""

    status: str | None
    fields: tuple[str, ...]
    files: dict[str, str]
    wall_s: float | None
    train_s: float | None
    steps: int | None


def plan(study_runs: StudyRuns) -> list[Item]:
    """Return what will happen to every planned run, in the order of the study."""
    waiting = study_runs.lacking
    pairs = zip(waiting, _nearest(waiting, finished_runs(study_runs.store) if waiting else []), strict=True)
    items = {one.run: _item(one, state_of(study_runs.store, one.run), nearest) for one, nearest in pairs}
    return [items.get(planned.run) or Item(planned, "kept", "finished") for planned in study_runs.planned]


def with_next_round(study_runs: StudyRuns) -> StudyRuns:
    """Return the planned runs and, once all of them have ended, the repeats that their results ask for.

    Of runs that were stopped as beaten, those that may be in question after all are to go on, until they are no more.
    That is a function of the results alone. With `repeats: N` nothing follows.
    """
    repeats = study_runs.study.repeats
    if study_runs.study.rules.stop_when_beaten and not study_runs.lacking:
        from ddp_hpc.analysis.tables._winner_selection import may_be_in_question

        return replace(study_runs, beyond=dict(may_be_in_question(study_runs)))
    if isinstance(repeats, int) or study_runs.lacking:
        return study_runs
    from ddp_hpc.analysis.tables.winners import undecided

    specs, more = {planned.run: planned.spec for planned in study_runs.planned}, []
    for rivals in undecided(study_runs, repeats.difference):
        fewest = min(map(len, rivals))
        size = next((look for look in repeats.looks if look > fewest), fewest)
        for runs in rivals:
            first = min((specs[run] for run in runs), key=lambda spec: spec.seed)
            more += [first.repeat(number) for number in range(len(runs), size)]
    return replace(study_runs, planned=(*study_runs.planned, *(Planned(identity.run_id(spec), spec) for spec in more)))


def with_time_limit(study_runs: StudyRuns, items: Sequence[Item], settings: ProfileConfig) -> StudyRuns:
    """Return the planned runs with a note of those that will take longer than they may here, without a machine."""
    limit_min = study_runs.study.runtime_min or settings.runtime_min
    waiting = [item for item in items if item.will_run]
    long = [one.estimate.middle_s for one in waiting if one.estimate and one.estimate.middle_s > 60 * limit_min]
    if settings.machine or not long:
        return study_runs
    note = (
        f"{len(long)} of {len(waiting)} runs to train will probably take longer than their time limit of {limit_min} "
        f"min, up to {duration(max(long))}: they end as timeout, and the next `ddp-hpc run` goes on; set `runtime_min` "
        "in the study"
    )
    return replace(study_runs, notes=(*study_runs.notes, note))


def with_gpus(study_runs: StudyRuns, items: Sequence[Item], settings: ProfileConfig, gpus: int) -> StudyRuns:
    """Return the planned runs with a note of those for which there are too few `gpus` here, without a machine."""
    refused = [item.planned.spec for item in items if item.will_run and refused_beside(item.planned.spec, gpus)]
    if settings.machine or not refused:
        return study_runs
    named = sorted({f"{spec.exchange} on {counted(spec.world_size, 'rank')}" for spec in refused})
    others = " and more" if len(named) > SHOWN else ""
    note = (
        f"{len(refused)} runs would end as launch_failed before they train: a rank needs a GPU of its own, and an "
        f"exchange that works on its device, and here Linux shows {gpus or 'no'} GPU{'s' * (gpus != 1)}: "
        f"{', '.join(named[:SHOWN])}{others}; take other ranks or another `device`, or the `--profile` of a cluster"
    )
    return replace(study_runs, notes=(*study_runs.notes, note))


def refused_beside(spec: RunSpec, gpus: int) -> bool:
    """Return whether ranks of a node with so many GPUs refuse to train, as `training.placement` has it."""
    if spec.program:
        return False
    on_gpus, name = gpus > 0 and spec.device != "cpu", spec.exchange.name
    if (spec.device == "cuda" and not gpus) or ("cuda" if on_gpus else "cpu") not in catalog.devices(
        name, spec.exchange.options
    ):
        return True
    shared = spec.share_gpu and not catalog.constants("exchange", name).get("ONE_GPU_EACH")
    return on_gpus and spec.world_size > gpus and not shared


def prepare(study_runs: StudyRuns) -> None:
    """Write `spec.json` into the folder of every run that is not finished: what the supervisor starts from.

    One that says anything else than what is planned is written anew. The code that a run depends on is kept in
    `results/code/`, each file by its hash. What stands in the way is moved aside.
    """
    lacking, kept, rivals = study_runs.lacking, set[str](), rivalry.asked(study_runs)
    make_way(study_runs.store, lacking)
    for planned in lacking:
        folder = study_runs.store.run(planned.run)
        _, spec_hash, code_hash = identity.parts(planned.run)
        exchange = planned.spec.exchange
        content: dict[str, Any] = {
            "run": planned.run,
            "spec": planned.spec.canonical,
            "spec_hash": spec_hash,
            "code_hash": code_hash,
            "world_size": planned.spec.world_size,
            "cuda_aware_mpi": catalog.asked(exchange.name, "CUDA_AWARE", exchange.options),
            "files": identity.fingerprints(planned.spec),
        }
        asked = study_runs.study.trace
        if asked is not None and planned.spec.why_not_traced(*asked.steps) is None:
            content["trace"] = list(asked.steps)
        if study_runs.study.keep:
            content["keep"] = study_runs.study.keep
        beyond = study_runs.beyond.get(planned.run, beaten.beyond(study_runs.study))
        if planned.run in rivals and not folder.whole and beyond < math.inf:
            content["rivals"] = rivals[planned.run] | {"beyond": beyond}
        if folder.plan != content:
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.plan = content
        for name in identity.files(planned.spec):
            if (hashed := content["files"][name]) not in kept:
                study_runs.store.keep_code(hashed, identity.file_of(name))
                kept.add(hashed)


def weights_noted(study_runs: StudyRuns) -> StudyRuns:
    """Return `study_runs`, with a note if weights are to be kept of finished runs that have none: none is repeated."""
    folders = [study_runs.store.run(planned.run) for planned in study_runs.planned] if study_runs.study.keep else []
    without = [one.path.name for one in folders if not one.weights.exists() and one.finished and _ended_well(one)]
    if not without:
        return study_runs
    note = (
        f"keep: {len(without)} of {len(folders)} runs are finished and have no weights, which is no reason to repeat "
        f"them; `ddp-hpc train {without[0]} --again --keep weights` trains one again, with its launcher"
    )
    return replace(study_runs, notes=(*study_runs.notes, note))


def _ended_well(folder: RunFolder) -> bool:
    return all(attempt.ended.get("status", "ok") == "ok" for attempt in folder.attempts[-1:])


def ask_for_whole(study_runs: StudyRuns) -> None:
    """Note of all planned runs that stopped when they were beaten that they are to be trained to their end."""
    for folder in (study_runs.store.run(planned.run) for planned in study_runs.planned):
        if folder.was_stopped:
            folder.whole = {"since": "it was asked for"}


def make_way(store: Store, lacking: Sequence[Planned]) -> None:
    """Move aside what stands in the way of runs that are to be trained, damaged records too; not where one works."""
    for folder in (store.run(planned.run) for planned in lacking):
        if os.path.lexists(folder.path) and state_of(store, folder.path.name).status not in ("running", "queued"):
            folder.make_way()
            if folder.was_stopped:  # and is to go on, else it would not lack
                folder.go_on()


def finished_runs(store: Store) -> list[Finished]:
    """Return all finished runs in the store, whichever study asked for them."""
    found = []
    for run in store.finished_runs():
        planned = run.plan
        try:
            fields, files = fields_of(planned["spec"]), dict(planned["files"])
            hash(_names(fields))
        except (ValueError, TypeError, KeyError):  # it counts as finished, but explains nothing
            if planned:
                leave_out(run.path / PLAN, "expected: `spec` with a model and a dataset, and `files`")
            continue
        attempts = run.attempts
        ended = attempts[-1].ended if attempts else {}
        numbers = [ended.get(name) for name in ("wall_s", "train_s", "steps")]
        found.append(Finished(ended.get("status"), fields, files, *numbers))
    return found


def fields_of(canonical: dict[str, Any]) -> tuple[str, ...]:
    """Return the fields of a spec in the order of SPEC_FIELDS, each as JSON; empty where it is the default."""
    return tuple(canonical_json(canonical[name]) if name in canonical else "" for name in SPEC_FIELDS)


def _nearest(waiting: Sequence[Planned], finished: Sequence[Finished]) -> list[list[Finished]]:
    """Return for each waiting run the finished ones, of its model and dataset, that differ in the fewest fields.

    Of equally near ones those come first whose numbers are closest.
    """
    if not waiting or not finished:
        return [[] for _ in waiting]
    import numpy as np

    codes: dict[str, int] = {}

    def encoded(fields: tuple[str, ...]) -> list[int]:
        return [codes.setdefault(value, len(codes)) for value in fields]

    alike: dict[tuple[str, ...], list[Finished]] = {}
    for run in finished:
        alike.setdefault(_names(run.fields), []).append(run)
    tables = {
        names: (np.array([encoded(run.fields) for run in runs]), np.array([_logarithms(run.fields) for run in runs]))
        for names, runs in alike.items()
    }
    nearest: list[list[Finished]] = []
    for planned in waiting:
        fields = fields_of(planned.spec.canonical)
        names = _names(fields)
        order: list[int] = []
        if names in tables:
            old_codes, old_logarithms = tables[names]
            different = old_codes != np.array(encoded(fields))
            apart = np.abs(old_logarithms - np.array(_logarithms(fields)))  # orders of magnitude; NaN: no two numbers
            distance = np.where(different, np.nan_to_num(apart, nan=1.0), 0.0).sum(axis=1)
            count = different.sum(axis=1)
            order = [index for index in np.lexsort((distance, count))[:MOST_NEIGHBOURS] if count[index] == count.min()]
        nearest.append([alike[names][index] for index in order])
    return nearest


def _names(fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of model and dataset, without their options; of a program its first file."""
    if program := fields[SPEC_FIELDS.index("program")]:
        return ("program", json.loads(program)["files"][0])
    found = (json.loads(fields[SPEC_FIELDS.index(kind)]) for kind in ("model", "dataset"))
    return tuple(value if isinstance(value, str) else value["name"] for value in found)


def _logarithms(fields: tuple[str, ...]) -> list[float]:
    """Return the logarithm of each field that is a positive number, NaN for the others."""
    found = [math.nan] * len(fields)
    for place, text in enumerate(fields):
        with suppress(ValueError):  # no number, or none that has a logarithm
            found[place] = math.log(float(text))
    return found


def _item(planned: Planned, state: State, nearest: list[Finished]) -> Item:
    estimate = _estimate(planned.spec, nearest)
    if state.status in ("running", "queued"):
        return Item(planned, state.status, state.reason or "", estimate)
    if state.status in FAILED:
        times = f" ({state.attempts} attempts)" if state.attempts > 1 else ""
        return Item(planned, state.status, f"{state.reason or 'no reason is known'}{times}", estimate)
    if state.status == "beaten":
        return Item(planned, "new", goes_on(state), estimate)
    if state.reason:  # its records were removed, or are damaged
        return Item(planned, "new", state.reason, estimate)
    if not nearest:
        what = "program" if planned.spec.program else "model and dataset"
        return Item(planned, "new", f"no finished run with this {what}", estimate)
    fields = zip(SPEC_FIELDS, fields_of(planned.spec.canonical), nearest[0].fields, strict=True)
    differences = tuple(
        (name, _shown(name, ours), _shown(name, theirs)) for name, ours, theirs in fields if ours != theirs
    )
    if differences:
        reason = "; ".join(f"{name} {ours} (nearest run: {theirs})" for name, ours, theirs in differences)
        return Item(planned, "new", reason, estimate, differences)
    now, before = identity.fingerprints(planned.spec), nearest[0].files
    files = sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))
    how = ("is new" if name not in before else "is gone" if name not in now else "has changed" for name in files)
    return Item(planned, "changed", "; ".join(map(" ".join, zip(files, how, strict=True))), estimate)


def goes_on(state: State) -> str:
    """Return why a run that was stopped as beaten goes on."""
    return f"it was stopped, and is to go on: {state.reason}"


def _shown(name: str, value: str) -> str:
    found = json.loads(value) if value else RunSpec.model_fields[name].default
    if isinstance(found, dict) and "command" in found:
        return shown(f"`{found['command']}` of {', '.join(found['files'])}", found.get("parameters", {}))
    if isinstance(found, dict) and "name" in found:
        return shown(found.pop("name"), found)
    if isinstance(found, dict):
        return ", ".join(f"{number} {unit}" for unit, number in found.items())
    return "null" if found is None else str(found)


def _estimate(spec: RunSpec, nearest: Sequence[Finished]) -> Estimate | None:
    """Scale the training time of the nearest runs by the number of steps; start-up stays as it was."""
    times = []
    for run in nearest:
        if run.wall_s is None:
            continue
        if spec.budget.seconds is not None and run.train_s is not None:
            times.append(run.wall_s - run.train_s + spec.budget.seconds)
        elif spec.steps_asked and run.train_s is not None and run.steps:
            times.append(run.wall_s - run.train_s + run.train_s / run.steps * spec.steps_asked)
        else:
            times.append(run.wall_s)
    times.sort()
    return Estimate(times[0], times[len(times) // 2], times[-1], len(times)) if times else None
