"""Every planned run is a row: what has ended, what has failed and why, what is not there yet."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ddp_hpc.config.spec import RunSpec
from ddp_hpc.config.study import Study
from ddp_hpc.runs import identity
from ddp_hpc.runs.attempt import Store
from ddp_hpc.runs.state import state_of
from ddp_hpc.runs.statuses import FINISHED, in_words
from ddp_hpc.system.terminal import counted

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow.compute as pc


@dataclass(frozen=True)
class Planned:
    """A run that a study asks for."""

    run: str
    spec: RunSpec


@dataclass(frozen=True)
class StudyRuns:
    """The planned runs of a study, and where each stands."""

    study: Study
    store: Store
    planned: tuple[Planned, ...]
    notes: tuple[str, ...] = ()  # what is worth saying about the study's grid
    # runs that were stopped as beaten and are to go on, until they are beyond so many times the least area
    beyond: Mapping[str, float] = field(default_factory=dict, compare=False)
    # what tables share: by run, for `whole_curve`, and the last of `scaling_lines`, which reads all steps
    curves: dict[str, Any] = field(default_factory=dict, compare=False)
    lines: list[Any] = field(default_factory=list, compare=False)

    @property
    def lacking(self) -> list[Planned]:
        """The planned runs that have not ended as result or finding by now, or were stopped and are to go on."""
        stopped = [planned.run for planned in self.planned if self.store.run(planned.run).was_stopped]
        again: set[str] = set()
        if stopped:
            from ddp_hpc.runs.beaten import unsettled

            again = unsettled(self, stopped) | {*self.beyond} & {*stopped}
        return [one for one in self.planned if one.run in again or not self.store.finished(one.run)]

    def describe(self, run: str) -> str:
        """Return a planned run by the fields that vary in the study, e.g. `world_size 2, learning_rate 0.1`."""
        return ", ".join(f"{name} {value}" for name, value in self.points[run].items()) or run

    @cached_property
    def points(self) -> dict[str, dict[str, str]]:
        """By run: what varies as people read it; a choice stands with its options: `model mlp (widths 64-32)`."""
        found = {}
        for planned in self.planned:
            names = dict.fromkeys(name.removesuffix("_options") for name in self.varying[planned.run])
            values = {name: getattr(planned.spec, name) for name in names}
            found[planned.run] = {name: "null" if value is None else str(value) for name, value in values.items()}
        return found

    @cached_property
    def varying(self) -> dict[str, dict[str, Any]]:
        """By run: those fields, flat, that are not the same in all planned runs."""
        columns = {planned.run: planned.spec.columns() for planned in self.planned}
        values: dict[str, set[Any]] = {}
        for row in columns.values():
            for name, value in row.items():
                values.setdefault(name, set()).add(value)
        return {run: {name: row[name] for name in row if len(values[name]) > 1} for run, row in columns.items()}

    @cached_property
    def runs(self) -> "pd.DataFrame":
        """One row per planned run, in the order of the plan: the columns of `schema.RUN` and `attempts`.

        A run that has not ended as result or finding, or whose records are damaged, has its spec, its status and
        reason; all else is null. The test metric is the one that the rules name.
        """
        import pandas as pd
        import pyarrow as pa

        from ddp_hpc.runs import records

        done = [planned.run for planned in self.planned if self.store.finished(planned.run)]
        measured, problems = records.read_runs(self.store.file(run) for run in done)
        done = [run for run in done if self.store.file(run) not in problems]
        ended = set(done)
        others = [self._not_finished(planned) for planned in self.planned if planned.run not in ended]
        both = pa.concat_tables([measured, pa.Table.from_pylist(others, schema=measured.schema)]).combine_chunks()
        place = {run: number for number, run in enumerate([*done, *(row["run"] for row in others)])}
        table = both.take(pa.array([place[planned.run] for planned in self.planned], pa.int64()))
        mapping = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype(), pa.string(): pd.StringDtype()}
        frame: pd.DataFrame = table.to_pandas(types_mapper=mapping.get)
        if metric := self.study.rules.metric:
            _judge_by(frame, metric)
        frame["attempts"] = [len(self.store.run(planned.run).attempts) for planned in self.planned]
        return frame

    def _not_finished(self, planned: Planned) -> dict[str, Any]:
        state = state_of(self.store, planned.run)
        _, spec_hash, code_hash = identity.parts(planned.run)
        hashes = {"run": planned.run, "spec_hash": spec_hash, "code_hash": code_hash}
        return hashes | planned.spec.columns() | {"status": state.status, "reason": state.reason}

    def steps(
        self, run: str, columns: Sequence[str] | None = None, rows: "pc.Expression | None" = None
    ) -> "pd.DataFrame":
        """Return the steps of a finished run, all ranks, warmup included: the columns of `schema.STEPS`, or some.

        `rows` chooses some rows by the columns that are read: see `records.read`.
        """
        return self._frame("steps", run, columns, rows)

    def evaluations(self, run: str) -> "pd.DataFrame":
        """Return the evaluations of a finished run: the columns of `schema.EVALUATIONS`, `metric` as the rules say."""
        frame, metric = self._frame("evaluations", run), self.study.rules.metric
        if metric:
            values = [_own(text).get(metric) for text in frame["own_metrics"]]
            frame["metric"] = [float("nan") if value is None else float(value) for value in values]
        return frame

    def _frame(
        self, kind: str, run: str, columns: Sequence[str] | None = None, rows: "pc.Expression | None" = None
    ) -> "pd.DataFrame":
        from ddp_hpc.runs import records

        file = self.store.file(run, kind)
        frame: pd.DataFrame = records.read(kind, file, columns, rows).to_pandas(split_blocks=True, self_destruct=True)
        return frame

    def coverage(self) -> str:
        """Return e.g. `23 of 27 runs, 4 missing: 2 crashed, 2 not yet run`."""
        states = self.runs["status"]
        lacking = states[~states.isin(FINISHED)]
        text = f"{len(states) - len(lacking)} of {counted(len(states), 'run')}"
        if lacking.empty:
            return text
        counts = ", ".join(f"{count} {in_words(str(name))}" for name, count in lacking.value_counts().items())
        return f"{text}, {len(lacking)} missing: {counts}"


def _judge_by(frame: "pd.DataFrame", metric: str) -> None:
    """Put a metric of one's own in the place of the test metric; what a constant answer would have is not known."""
    import pandas as pd

    found = [_own(text).get(metric, {}) for text in frame["own_metrics"]]
    values = [float("nan") if one.get("value") is None else float(one["value"]) for one in found]
    names = [metric if one else pd.NA for one in found]
    frame["test_metric"], frame["chance_metric"] = values, float("nan")
    frame["test_metric_name"] = pd.Series(names, frame.index, frame["test_metric_name"].dtype)


def _own(text: Any) -> dict[str, Any]:
    """Return what a cell of `own_metrics` holds; nothing of one that is null."""
    return dict(json.loads(text)) if isinstance(text, str) else {}
