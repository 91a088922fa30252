"""Expands a study's grid to specs: the product of the axes, with `zip`, `exclude` and `when`."""

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ddp_hpc.config import beaten, catalog, pairs
from ddp_hpc.config.errors import ConflictError, StudyError
from ddp_hpc.config.grid_checks import FILTERS, PARTS, Point, Problems, each_value, flow, left_out, wrong_keys
from ddp_hpc.config.matching import is_option, matches, option_value
from ddp_hpc.config.program import paths
from ddp_hpc.config.spec import COMPONENTS, SPEC_FIELDS, RunSpec
from ddp_hpc.config.study import GLOBAL_BATCH, Study, listed, read
from ddp_hpc.config.types import canonical_json
from ddp_hpc.config.yaml_file import Document

MOST_LISTED = 6  # numbers of samples in a note
# more are a slip, and would keep the planner busy for minutes
MOST_POINTS = 100_000  # of all grids, and runs
MOST_TRIED = 1_000_000  # values of patterns, over the points
TWO_REPEATS = (
    "two repeats have one degree of freedom: by themselves they say next to nothing of how runs differ (Student's "
    "factor is 12.7, of three 4.3), unless other points of the study do equal work; expected: 3 or more"
)


@dataclass(frozen=True)
class Expansion:
    """The specs of a study, in the order of its grids, and what is worth saying about them."""

    study: Study
    specs: tuple[RunSpec, ...]
    notes: tuple[str, ...]


def expand(file: Path) -> Expansion:
    """Return the specs that the study in `file` asks for, each once; raise StudyError with all that is wrong."""
    study, document, wrong = read(file)
    wrong += wrong_keys(study, document)
    if wrong:
        raise StudyError("\n".join([*wrong, *_wrong_values(study, document)]))
    asked: list[RunSpec] = []
    problems = Problems(document)
    notes: list[str] = []
    for number, point in _asked_points(study, document, notes):
        try:
            fields = _resolved(point)
            first = RunSpec.model_validate(fields)
            seeds = range(first.seed + 1, first.seed + study.looks[0])
            asked += [first, *(RunSpec.model_validate(fields | {"seed": seed}) for seed in seeds)]
        except ValidationError as error:
            problems.add(error, number, point)
    specs = tuple({spec.hash: spec for spec in asked}.values())
    wrong = problems.lines() or left_out(study, document)
    if not wrong and not specs:
        wrong = [f"{document.where(('grid',))}: grid: no point is left to run"]
    wrong = wrong or _wrong_programs(specs, document)
    if not wrong and study.pairs:
        wrong = [f"{document.where(('pairs',))}: pairs: {text}" for text in pairs.problems(study.pairs, specs)]
    if not wrong and study.rules.stop_when_beaten:
        where = document.where(("rules", "stop_when_beaten"))
        wrong = [f"{where}: stop_when_beaten: {text}" for text in beaten.problems(study, specs)]
    if wrong:
        raise StudyError("\n".join([*wrong, *notes]))
    if len(asked) > len(specs):
        twice = len(asked) - len(specs)
        is_given = "is given" if twice == 1 else "are given"
        notes.append(f"{twice} of {len(asked)} runs {is_given} more than once in the grid; each runs once")
    notes += [
        *_untold(specs, document),
        *_epochs(study, specs, document),
        *_short(study, specs, document),
        *_rounds(study, specs, document),
    ]
    _check_metric(study, specs, document)
    return Expansion(study, specs, (*notes, *_not_traced(study, specs, document)))


def _wrong_programs(specs: tuple[RunSpec, ...], document: Document) -> list[str]:
    """Return what is wrong with files of programs, and which programs tables would take for one."""
    where = document.where(("base", "program"), ("grid", "program"), ("grid",))
    found: dict[str, str] = {}  # by what tables call it: what it is
    wrong = []
    for program in {spec.program for spec in specs if spec.program}:
        try:
            for file in paths(program.files, catalog.project() or Path.cwd()):
                if file.suffix == ".py":
                    catalog.parsed(file)
        except ValueError as error:
            wrong.append(f"{where}: program: files: {error}")
        what = canonical_json(program.model_dump(mode="json", exclude={"parameters"}))
        if found.setdefault(program.called, what) != what:
            wrong.append(f"{where}: program: two differ and are both called {program.called!r}; give each a `name`")
    return list(dict.fromkeys(wrong))


def _wrong_values(study: Study, document: Document) -> list[str]:
    """Return which values of a study their fields cannot have, whatever else is wrong with it, a line each."""
    problems = Problems(document, whole=False)
    for number, grid in enumerate(study.grid):
        for point in each_value(study, grid):
            try:
                RunSpec.model_validate(_resolved(point))
            except ValidationError as error:
                problems.add(error, number, point)
    return problems.lines()


def _untold(specs: tuple[RunSpec, ...], document: Document) -> Iterator[str]:
    """Yield what differs between the runs of a program whose command does not have it."""
    told_by = {"batch_size": {"global_batch_size"}, "budget": {"samples_seen", "epochs", "steps", "seconds"}}
    where = document.where(("base", "program"), ("grid", "program"), ("grid",))
    for program in dict.fromkeys(spec.program for spec in specs if spec.program):
        runs = [spec for spec in specs if spec.program == program]
        for name in ("batch_size", "learning_rate", "budget", "seed"):
            values = {getattr(spec, name) for spec in runs}
            if len(values) > 1 and not ({name} | told_by.get(name, set())) & program.fields:
                yield (
                    f"{where}: program: {name} has {len(values)} values, and the command has no {{{name}}}: unless it "
                    "learns that otherwise, its runs differ in nothing"
                )


def _epochs(study: Study, specs: tuple[RunSpec, ...], document: Document) -> Iterator[str]:
    """Yield how many samples the epochs of a budget are, and where points see too different numbers to compete."""
    kinds: dict[tuple[Any, ...], dict[int, set[int]]] = {}  # by samples asked: global batches
    rivals: dict[str, set[int]] = {}
    for spec in specs:
        if spec.budget.epochs is not None and spec.samples_asked is not None:
            kind = (str(spec.budget), spec.epoch_samples, spec.samples_budgeted, str(spec.dataset or spec.program))
            kinds.setdefault(kind, {}).setdefault(spec.samples_asked, set()).add(spec.global_batch_size)
            shared = {name: value for name, value in spec.canonical.items() if name not in (*study.search, "seed")}
            rivals.setdefault(canonical_json(shared), set()).add(spec.samples_asked)
    where = f"{document.where(('budget',), ('base', 'budget'), ('grid',))}: budget"
    for (budget, epoch, budgeted, dataset), asked in kinds.items():
        rounded = [
            f"{samples} ({samples / budgeted - 1:+.2%}) at global batch {', '.join(map(str, sorted(batches)))}"
            for samples, batches in sorted(asked.items())
        ]
        listed_ = rounded if len(rounded) <= MOST_LISTED else [rounded[0], "...", rounded[-1]]
        yield f"{where}: {budget} of {epoch} samples ({dataset}) are {budgeted:.12g}; runs see {'; '.join(listed_)}"
    noise = study.rules.area_noise
    apart = [asked for asked in rivals.values() if max(asked) > (1 + noise) * min(asked)]
    if apart and isinstance(study.rules.winner_by, str):
        yield (
            f"{where}: in {len(apart)} of {len(rivals)} groups points see {min(apart[0])} to {max(apart[0])} samples, "
            f"further apart than area_noise, {noise:.2g}: they will have no winner; expected: more epochs, smaller "
            "batches, or samples_seen"
        )


def _short(study: Study, specs: tuple[RunSpec, ...], document: Document) -> Iterator[str]:
    """Yield which runs are too short for what the study asks of them."""
    where = f"{document.where(('budget',), ('base', 'budget'), ('grid',))}: budget"
    rules, steps = study.rules, [spec.steps_asked or math.inf for spec in specs]
    rises = [spec.learning_rate_warm_up_steps for spec in specs]
    told = {
        "take 1 step: a curve of one point has no loss area, so none of them can win; expected: 2 steps or more": [
            asked == 1 and rules.winner_by == "loss_area" for asked in steps
        ],
        f"take fewer steps than loss_window, {rules.loss_window}: none of them can reach loss_threshold": [
            rules.loss_threshold is not None and 1 < asked < rules.loss_window for asked in steps
        ],
        "end before learning_rate_warm_up_steps are over: the learning rate does not reach its full value": [
            1 < asked < rise for asked, rise in zip(steps, rises, strict=True)
        ],
        "have no evaluate_every_steps: when they come to the test metric of winner_by is known at their end only": [
            not isinstance(rules.winner_by, str) and spec.evaluate_every_steps is None for spec in specs
        ],
    }
    for what, short in told.items():
        if any(short):
            yield f"{where}: {sum(short)} of {len(specs)} runs {what}"
    yield from _below_any_loss(study, specs, document)


def _below_any_loss(study: Study, specs: tuple[RunSpec, ...], document: Document) -> Iterator[str]:
    """Yield that the loss threshold is below 0, if no model has a loss of its own, which may be."""
    threshold = study.rules.loss_threshold
    own = any(spec.program or catalog.defines("model", spec.model.name, "loss") for spec in specs)
    if threshold is not None and threshold < 0 and not own:
        where = document.where(("rules", "loss_threshold"))
        why = "but no loss is below 0: no run can win; expected: 0 or more"
        yield f"{where}: loss_threshold: given {threshold:g}, {why}"


def _rounds(study: Study, specs: tuple[RunSpec, ...], document: Document) -> Iterator[str]:
    """Yield what is to be known of repeats, and which rounds may follow the first ones; a StudyError where none can."""
    where, repeats, (first, *later) = document.where(("repeats",)), study.repeats, study.looks
    if isinstance(repeats, int):
        if repeats == 2:
            yield f"{where}: repeats: {TWO_REPEATS}"
        return
    if study.pairs or len({spec.seed for spec in specs}) > first:
        raise StudyError(f"{where}: repeats: given until, pairs or several seeds beside it; expected: a number")
    most = len(specs) // first * study.looks[-1] - len(specs)
    yield (
        f"{where}: repeats: every point has {first}; once all have ended, `run` adds rounds for winners and for points "
        f"that are neither told apart from theirs nor within {repeats.until} of it, up to "
        f"{', '.join(map(str, later)) or first} repeats: at most {most} runs more"
    )


def _not_traced(study: Study, specs: tuple[RunSpec, ...], document: Document) -> list[str]:
    """Return in words which runs cannot trace what the study asks for; raise StudyError where none can."""
    if study.trace is None:
        return []
    where, steps = document.where(("trace", "steps"), ("trace",)), study.trace.steps
    reasons = [reason for spec in specs if (reason := spec.why_not_traced(*steps))]
    if len(reasons) == len(specs):
        raise StudyError(f"{where}: trace: {reasons[0]}; expected: steps that a run has, of a synchronous exchange")
    return [f"{where}: trace: {len(reasons)} of {len(specs)} runs are not traced: {reasons[0]}"] if reasons else []


def _check_metric(study: Study, specs: tuple[RunSpec, ...], document: Document) -> None:
    """Raise a StudyError if some run has not the metric that is to decide, or two that have the same name."""
    where, metric = document.where(("rules", "metric"), ("rules",), ("base",)), study.rules.metric
    if metric is not None and any(spec.program for spec in specs):
        raise StudyError(
            f"{where}: metric: given {metric!r}, expected: none, as a program's test metric is what it records"
        )
    own = [spec for spec in specs if not spec.program]
    for model, dataset in dict.fromkeys((spec.model.name, spec.dataset.name) for spec in own):
        try:
            there = catalog.metrics_of(model, dataset)
        except catalog.CatalogError as error:
            raise StudyError(f"{where}: {error}") from None
        if metric is not None and metric not in there:
            raise StudyError(
                f"{where}: metric: given {metric!r}{catalog.did_you_mean(metric, list(there))}, expected: one of "
                f"METRICS in {catalog.path('model', model)} or {catalog.path('dataset', dataset)}: "
                f"{', '.join(there) or 'they have none'}"
            )


def _asked_points(study: Study, document: Document, notes: list[str]) -> list[tuple[int, Point]]:
    """Return the points that no filter leaves out, each with the number of its grid; patterns that fit none are noted.

    A study that would keep the planner busy for minutes is refused before that.
    """
    filters = [[(kind, one) for kind in FILTERS for one in listed(grid.get(kind, []))] for grid in study.grid]
    sizes = [math.prod(map(len, _axes(grid))) for grid in study.grid]
    wanted = [sum(len(listed(one)) for _, pattern in patterns for one in pattern.values()) for patterns in filters]
    _limit(document.where(("grid",)), "points", sum(sizes), MOST_POINTS, "take values out of its axes")
    tried = sum(map(operator.mul, sizes, wanted))
    fewer = "axes without these values instead of patterns"
    _limit(document.where(("grid",)), "points x values of exclude and when", tried, MOST_TRIED, fewer)
    found: list[tuple[int, Point]] = []
    for number, (grid, patterns) in enumerate(zip(study.grid, filters, strict=True)):
        fitted: set[int] = set()
        found += [(number, point) for point in _filtered(_points(study, grid), patterns, fitted)]
        idle = [pattern for place, pattern in enumerate(patterns) if place not in fitted]  # often a slip in a value
        notes += [
            f"{document.where(('grid', number, kind), ('grid', kind))}: {kind}: {flow(pattern)} fits no point"
            for kind, pattern in idle[:MOST_LISTED]
        ]
        notes += [f"... and {len(idle) - MOST_LISTED} more fit no point"] if len(idle) > MOST_LISTED else []
    _limit(
        document.where(("repeats",), ("grid",)),
        "runs",
        len(found) * study.looks[-1],
        MOST_POINTS,
        "fewer repeats or points",
    )
    return found


def _limit(where: str, what: str, count: int, most: int, remedy: str) -> None:
    if count > most:
        raise StudyError(f"{where}: grid: given {count:,} {what}, expected: at most {most:,}; {remedy}")


def _axes(grid: Mapping[str, Any]) -> list[list[Point]]:
    """Return the axes of a grid: each a list of what it sets, of which a point has one."""
    axes = [[{name: value} for value in listed(values)] for name, values in grid.items() if name not in PARTS]
    for group in listed(grid.get("zip", [])):
        columns = [[(name, value) for value in listed(values)] for name, values in group.items()]
        axes.append([dict(row) for row in zip(*columns, strict=True)])
    return axes


def _points(study: Study, grid: Mapping[str, Any]) -> Iterator[Point]:
    """Yield the points of one grid over the study's base."""
    budget = {"budget": study.budget.model_dump(exclude_none=True)} if study.budget else {}
    training = {name: value for name, value in study.rules if name in SPEC_FIELDS}
    shared = training | budget | study.base
    for cells in product(*_axes(grid)):
        yield shared | {name: value for cell in cells for name, value in cell.items()}


def _filtered(points: Iterable[Point], patterns: Sequence[tuple[str, Any]], fitted: set[int]) -> Iterator[Point]:
    """Yield the points that fit no `exclude`, and one `when` if there are any.

    The places of those `patterns` that fit a point, each with its kind, are added to `fitted`.
    """
    all_kinds = {kind for kind, _ in patterns}
    for point in points:
        fitting = {place for place, (_, pattern) in enumerate(patterns) if matches(pattern, partial(_value, point))}
        fitted |= fitting
        kinds = {patterns[place][0] for place in fitting}
        if kinds == all_kinds - {"exclude"}:
            yield point


def _value(point: Point, name: str) -> Any:
    """Return what `name` is at `point`: as given, else as it follows from other fields, else its default."""
    if name in point:
        whole = point[name]
        return whole.get("name") if name in COMPONENTS and isinstance(whole, Mapping) else whole
    if is_option(name):
        kind, _, option = name.partition(".")
        whole = point.get(kind)
        if kind == "program":
            return (whole.get("parameters") or {}).get(option) if isinstance(whole, Mapping) else None
        options = whole if isinstance(whole, Mapping) else {"name": whole}
        return option_value(kind, options.get("name"), options, option)
    try:
        if name == "batch_size" and GLOBAL_BATCH in point:
            return point[GLOBAL_BATCH] / point["world_size"]
        if name == GLOBAL_BATCH:
            return point["batch_size"] * point["world_size"]
    except (KeyError, TypeError, ZeroDivisionError):
        return None  # an invalid point: its spec says why
    return None if RunSpec.model_fields[name].is_required() else RunSpec.model_fields[name].default


def _resolved(point: Point) -> Point:
    """Return the fields of a spec: options are put into their choices, a global batch is shared out if that can be."""
    fields = {name: value for name, value in point.items() if not is_option(name) and name != GLOBAL_BATCH}
    for name, value in point.items():
        if is_option(name):
            choice, _, option = name.partition(".")
            whole = {"name": fields[choice]} if isinstance(fields.get(choice), str) else fields.get(choice)
            if isinstance(whole, Mapping) and choice == "program":
                fields[choice] = {**whole, "parameters": {**(whole.get("parameters") or {}), option: value}}
            elif isinstance(whole, Mapping):
                fields[choice] = {**whole, option: value}
    total, ranks = catalog.integral(point.get(GLOBAL_BATCH)), catalog.integral(fields.get("world_size"))
    shared = ranks if type(ranks) is int and ranks > 0 else 1  # the spec says what is wrong with world_size
    if total is None:
        return fields
    if "batch_size" in fields:
        why = f"{GLOBAL_BATCH}={total} and batch_size={fields['batch_size']}: give one of the two"
    elif type(total) is not int or total < 1:
        why = f"{GLOBAL_BATCH}: given {total!r}, expected: an integer greater than 0"
    elif total % shared:
        why = f"{GLOBAL_BATCH}={total} cannot be shared equally among world_size={ranks} ranks"
    else:
        return fields | {"batch_size": total // shared}
    return fields | {"batch_size": ConflictError(why, GLOBAL_BATCH)}  # told with all else that is wrong with the point
