"""The runs of a study as lines along which a model of a step can be fitted: one law each, over several world sizes."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, nan
from typing import Any

import pandas as pd

from ddp_hpc.analysis.columns import DISTURBED, ordered, rows_of, split, varying, with_standing
from ddp_hpc.analysis.prediction.measured import Place, Run, reduced, relative_error
from ddp_hpc.analysis.prediction.step_model import BETWEEN, WITHIN, ExchangeModel, Model
from ddp_hpc.analysis.prediction.trust import Doubt, HeldOut, doubt, held_out
from ddp_hpc.analysis.tables._groups import Row, not_complete
from ddp_hpc.analysis.tables._steps import rank_steps, step_times
from ddp_hpc.config import catalog
from ddp_hpc.config.comparability import EXCHANGE, RANKS, SAME_WORK
from ddp_hpc.config.study import GLOBAL_BATCH, Study
from ddp_hpc.perfmodel import Link
from ddp_hpc.runs.study_runs import StudyRuns

Measured = list[tuple[Row, Run]]
BYTES = {"float32": 4, "float64": 8}
_COLUMNS = ("exchange_exposed_s", "move_s", "exchange_busy_s")
_OF_A_LINE = RANKS | SAME_WORK | {"batch_size"}  # in these the runs of a line may differ


@dataclass(frozen=True)
class Price:
    """What a node costs."""

    per_node_hour: float
    currency: str | None = None


@dataclass(frozen=True)
class Elsewhere:
    """What is known beside the runs: of the machine for which a step is predicted."""

    links: Mapping[int, Link] = field(default_factory=dict)  # `WITHIN` a node, `BETWEEN` nodes
    link: Link | None = None  # of all ranks or, where several nodes are asked for, between them
    ranks_per_node: int | None = None
    price: Price | None = None
    exchange: tuple[str, Mapping[str, Any]] | None = None  # instead of those that were measured, with its options
    batches: tuple[int, ...] = ()  # instead of those that were measured: per rank or in all, as `batch_key` means


@dataclass(frozen=True)
class Line:
    """Runs that differ in ranks, and of strong scaling in the batch per rank, which is a share of the global one."""

    key: Mapping[str, Any]  # what sets it apart, with the exchange
    kind: str  # weak: the batch per rank stays; strong: the global one
    batch: int  # that stays
    planned: tuple[Row, ...]
    good: tuple[Row, ...]  # that have ended well, undisturbed, with a core for every thread
    model: Model | None
    elsewhere: Elsewhere
    reason: str | None = None  # why there is no model

    def batch_at(self, world_size: int) -> float:
        """Return the batch of a rank."""
        return self.batch if self.kind == "weak" else self.batch / world_size

    @cached_property
    def measured(self) -> dict[int, list[Row]]:
        """The good runs on this line, by world size."""
        found: dict[int, list[Row]] = {}
        for row in self.good:
            if row["batch_size"] == self.batch_at(row["world_size"]):
                found.setdefault(int(row["world_size"]), []).append(row)
        return dict(sorted(found.items()))

    @property
    def counts(self) -> list[int]:
        """The world sizes that were measured on this line or, of a batch that was not, with this exchange."""
        return sorted(self.measured or {int(row["world_size"]) for row in self.good})

    @cached_property
    def held_out(self) -> HeldOut:
        """How far the model is off at the largest world size, fitted to the others."""
        assert self.model
        exchange, shared = self.model.exchange, self.model.shares_memory
        return held_out(lambda runs: Model(runs, exchange, shared), self.model.runs)

    def place(self, world_size: int) -> Place | Doubt:
        """Return on how many nodes so many ranks are: as the measured ones, as far as that is known."""
        batch = self.batch_at(world_size)
        if batch != int(batch):
            return Doubt(f"a global batch of {self.batch} is no multiple of {world_size} ranks")
        if not self.good:
            return Doubt(self.reason or "no run tells")
        if world_size in self.measured:
            return place_of(self.measured[world_size][0])
        per_node = self._ranks_per_node(world_size)
        if per_node is None:
            return Doubt("how many GPUs a node has is not known: give --ranks-per-node or --profile")
        return Place(world_size=world_size, batch_size=batch, nodes=ceil(world_size / per_node))

    def _ranks_per_node(self, world_size: int) -> int | None:
        if self.elsewhere.ranks_per_node:
            return self.elsewhere.ranks_per_node
        widest = max(self.good, key=lambda row: ((row["hosts"] or 1) > 1, row["world_size"]))
        if (widest["hosts"] or 1) > 1:
            return ceil(int(widest["world_size"]) / int(widest["hosts"]))
        if widest["device_used"] == "cuda":
            return None if world_size > int(widest["world_size"]) else world_size
        cores, threads = widest["cores"] or 1, widest["threads_used"] or 1
        return max(1, int(cores // threads))

    def doubt(self, world_size: int) -> Doubt | None:
        """Return why nothing is predicted at this world size; None if it is."""
        if self.model is None:
            return Doubt(self.reason or "")
        place = self.place(world_size)
        return place if isinstance(place, Doubt) else doubt(self.model, place)


def place_of(row: Mapping[str, Any]) -> Place:
    """Return where a run took its steps."""
    return Place(world_size=int(row["world_size"]), batch_size=float(row["batch_size"]), nodes=int(row["hosts"] or 1))


def axes_of(study_runs: StudyRuns, lines: Iterable[Line]) -> list[str]:
    """Return the columns that tell lines apart: the exchange, and what else varies in the study."""
    return ordered({*varying(study_runs.runs), "exchange"} & {name for line in lines for name in line.key})


def scaling_lines(study_runs: StudyRuns, elsewhere: Elsewhere | None = None) -> list[Line]:
    """Return the lines of a study: of each exchange and whatever else varies those over the ranks, weak, then strong.

    They are kept for the table that follows: `prediction` and `cost` read the same steps.
    """
    asked = elsewhere or Elsewhere()
    if not (study_runs.lines and study_runs.lines[0] == asked):
        study_runs.lines[:] = asked, list(_lines(study_runs, asked))
    lines: list[Line] = study_runs.lines[1]
    return lines


def _lines(study_runs: StudyRuns, elsewhere: Elsewhere) -> Iterator[Line]:
    runs = with_standing(study_runs.runs)
    runs["global_batch_size"] = runs["world_size"] * runs["batch_size"]
    columns = ordered(set(varying(runs)) - _OF_A_LINE - EXCHANGE)
    for key, alike in split(runs, columns) if columns else [({}, runs)]:
        exchanging = alike[alike["exchange"] != "none"]
        alone = alike[(alike["exchange"] == "none") & (alike["world_size"] == 1)]
        options = ["exchange", *(["exchange_options"] if "exchange_options" in varying(exchanging) else [])]
        for own, rows in split(exchanging, options):
            together = pd.concat([alone, rows])
            yield from _of_exchange(study_runs, {**key, **own}, together, elsewhere)


def _of_exchange(
    study_runs: StudyRuns, key: Mapping[str, Any], runs: pd.DataFrame, elsewhere: Elsewhere
) -> Iterator[Line]:
    planned = rows_of(runs)
    good, reason = usable(planned)
    exchange, measured = _exchange(planned[-1], planned, elsewhere), Measured()
    if isinstance(exchange, ExchangeModel):
        for row in good:
            run = measured_run(study_runs, row, exchange.overlaps)
            if isinstance(run, Run):
                measured.append((row, run))
            else:
                reason = reason or run
    else:
        reason = reason or exchange
    asked = batch_key(study_runs.study)
    for kind, name, batch in [(*asked, batch) for batch in elsewhere.batches] or _batches(planned):
        own = [(row, run) for row, run in measured if row[name] == batch]
        model = None
        if isinstance(exchange, ExchangeModel) and any(run.place.world_size > 1 for _, run in measured):
            model = _best_model(exchange, own, measured)
            other = _of_name(*elsewhere.exchange, exchange.size) if elsewhere.exchange else exchange
            model, reason = (None, other) if isinstance(other, str) else (model.instead(other), reason)
        yield Line(
            key=key,
            kind=kind,
            batch=batch,
            planned=tuple(row for row in planned if row[name] == batch) or tuple(planned),
            good=tuple(row for row, _ in measured),
            model=model,
            elsewhere=elsewhere,
            reason=None if model else reason or not_complete(planned),
        )


def batch_key(study: Study) -> tuple[str, str]:
    """Return which scaling a study means and the key by which: its global batch stays if it names that anywhere."""
    parts = [study.base, *study.grid]
    named = {name for part in parts for name in (*part, *part.get("zip", ()))}
    return ("strong", GLOBAL_BATCH) if GLOBAL_BATCH in named else ("weak", "batch_size")


def _batches(planned: Sequence[Row]) -> list[tuple[str, str, int]]:
    """Return along which lines a model is of use: those on which several world sizes are planned; else any one."""
    found = []
    for kind, name in (("weak", "batch_size"), ("strong", "global_batch_size")):
        for batch in sorted({int(row[name]) for row in planned}):
            if len({row["world_size"] for row in planned if row[name] == batch}) > 1:
                found.append((kind, name, batch))
    return found or [("weak", "batch_size", int(planned[-1]["batch_size"]))]


def _best_model(exchange: ExchangeModel, own: Measured, every: Measured) -> Model:
    """Return the model of the runs of a line if they tell of the exchange what all do, else of all with this exchange.

    The time of work is not quite linear in the batch, so that nearer ones say more.
    """
    shared = all(row["device_used"] == "cpu" for row, _ in every)
    whole, mine = (Model([run for _, run in some], exchange, shared) for some in (every, own))
    several = any(run.place.world_size > 1 for _, run in own)
    return mine if several and mine.tells_exchange.rank == whole.tells_exchange.rank else whole


def usable(rows: Sequence[Row]) -> tuple[list[Row], str | None]:
    """Return the runs whose times can be trusted, and why the others cannot."""
    ended = [row for row in rows if row["status"] == "ok" and row["steps"] and (row["train_s"] or 0) > 0]
    quiet = [row for row in ended if not (row["slow_steps_share"] or 0) > DISTURBED]
    good = [row for row in quiet if not row["oversubscribed"]]
    if any(row["world_size"] > 1 for row in good):
        return good, None
    if any(row["world_size"] > 1 for row in quiet):
        return good, "its runs have more ranks x threads than cores: repeat them with fewer, or on more cores"
    if any(row["world_size"] > 1 for row in ended):
        return good, "its runs were disturbed: slow steps took a third of their time; repeat them on a quiet machine"
    return good, not_complete([row for row in rows if row["world_size"] > 1] or rows)


def measured_run(study_runs: StudyRuns, row: Row, overlaps: bool) -> Run | str:
    """Return what the model needs of a run, or why that is not known."""
    mean_step_s = float(row["train_s"] / row["steps"])
    if row["exchange"] == "none":
        error = relative_error(step_times(study_runs, row["run"]))
        return Run(place=place_of(row), work_s=mean_step_s, errors=(error, nan, nan))
    return reduced(place_of(row), rank_steps(study_runs, row["run"], _COLUMNS), mean_step_s, overlaps)


def _of_name(name: str, options: Mapping[str, Any], size: float) -> ExchangeModel | str:
    """Return an exchange of so many bytes as the model needs it, or why it has no model."""
    flags, model = catalog.constants("exchange", name), catalog.cost_model(name, options)
    if not flags["SYNCHRONOUS"]:
        return f"with {name} each rank takes its steps by itself: the model is of steps that all take together"
    if model is None:
        return f"exchange/{name}.py names no COST, a formula of what it sends"
    return ExchangeModel(formula=model[0], size=size, options=model[1], overlaps=bool(flags.get("OVERLAPS")))


def _exchange(row: Row, rows: Sequence[Row], elsewhere: Elsewhere) -> ExchangeModel | str:
    """Return the exchange of a line as the model needs it, or why it has no model."""
    parameters = next((one["parameters"] for one in rows if one["parameters"]), None)
    size = float(parameters or 0) * BYTES[row["dtype"]]
    found = _of_name(str(row["exchange"]), json.loads(row["exchange_options"] or "{}"), size)
    if isinstance(found, str):
        return found
    if parameters is None:
        return "no run has ended well"
    for where, link in elsewhere.links.items():
        found = found.given(where, link)
    if elsewhere.link:
        several = elsewhere.ranks_per_node or max((one["hosts"] or 1 for one in rows), default=1) > 1
        for where in (BETWEEN,) if several else (WITHIN, BETWEEN):
            found = found.given(where, elsewhere.link)
    return found
