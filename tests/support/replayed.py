"""Recorded runs once more, in the order and by the rule of `stop_when_beaten`, as if the workflow trained them.

`python tests/support/replayed.py PACK.zip` says for each seed of a pack how many runs stop, how many of them go on
after all, which share of the steps that saves, and whether winners and what cannot be told from them stay the same.
"""

import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from factory import Result, study_file, write
from ruamel.yaml import YAML

from ddp_hpc.analysis.tables import _winner_selection, winners
from ddp_hpc.config import beaten
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.execution.rivals import Rivals
from ddp_hpc.runs import records
from ddp_hpc.runs.project import Project
from ddp_hpc.runs.study_runs import Planned, StudyRuns
from ddp_hpc.workflow import driver, plan
from ddp_hpc.workflow.targets import StudyTargets

FOUND = ["winner", "cannot_be_told_from", "loss_area_loss_s", "eligible_points"]
OF_THE_MACHINE = ("oversubscribed", "cores", "hosts", "device_used", "placement_verified", "threads_used")
AT_ITS_END = ("test_metric", "test_metric_name")
Recorded = Callable[[RunSpec], Result]


class Rounds:
    """Trains in the place of the workflow, in its order: a run stops when it is beaten, if its plan says by whom."""

    def __init__(self, study_runs: StudyRuns, train: Recorded, trained: list[tuple[RunSpec, Result]]) -> None:
        self.study_runs, self.of, self.trained = study_runs, train, trained

    def train(self, missing: list[Planned]) -> int:
        order = [run.run for run in StudyTargets(None, self.study_runs, False).in_rounds]
        for run in sorted(missing, key=lambda run: order.index(run.run)):
            result = self.of(run.spec)
            asked = self.study_runs.store.run(run.run).plan.get("rivals")
            if asked and (limit := Rivals(self.study_runs.store, asked).limit("cpu")):
                result = stopped(result, limit)
            write(self.study_runs, run, result)
            self.trained.append((run.spec, result))
        return 0


def stopped(result: Result, limit: tuple[float, float, str]) -> Result:
    """Return a run up to the first agreement, each tenth step, after its area has passed the limit."""
    _, beyond, run = limit
    t_s, loss = np.array([0.0, *result.t_s]), np.array([result.loss[0], *result.loss])
    areas = np.cumsum(np.diff(t_s) * (loss[1:] + loss[:-1]) / 2)
    past = np.flatnonzero(areas > beyond)
    step = int(past[0]) // 10 * 10 + 10 if len(past) else len(result.loss)
    if step >= len(result.loss):
        return result
    columns = {name: value for name, value in result.columns.items() if name not in AT_ITS_END}
    return replace(
        result, status="beaten", reason=f"by {run}", t_s=result.t_s[:step], loss=result.loss[:step], columns=columns
    )


def made(folder: Path, train: Recorded, **study: Any) -> tuple[StudyRuns, list[tuple[RunSpec, Result]]]:
    """Return a study that was run to its end, and what was trained for it, in this order."""
    study_file(folder, **study)
    trained: list[tuple[RunSpec, Result]] = []
    rounds = lambda study_runs: Rounds(study_runs, train, trained)
    name = study.get("name", "made_up")
    study_runs, code = driver._train(plan.with_next_round(Project(folder).study_runs(name)), rounds, shared=False)
    assert code == 0
    return study_runs, trained


def found(study_runs: StudyRuns) -> pd.DataFrame:
    """Return by group who won, and what cannot be told from it."""
    return winners.build(study_runs)[["world_size", *FOUND[:3]]]


@dataclass(frozen=True)
class Replay:
    """What the rule did with the runs of a study that were recorded whole."""

    runs: int
    stopped: int
    went_on: int  # of those, as they may be taken for the winner after all
    whole: int  # of those, to their end
    rounds: int
    same: bool  # winners, and what cannot be told from them
    saved: float  # share of the steps of whole runs
    oracle: float  # the same, of one that knows winner and noise and stops each run as soon as it is told apart


def replayed(pack: Path, seed: int, folder: Path) -> Replay:
    """Return what the rule does with the runs of one seed of a pack, unpacked at `pack`."""
    study = YAML(typ="safe").load(pack / "study.yaml")
    study = {name: study[name] for name in ("base", "grid", "budget", "rules")}
    study = {name: study[name] for name in study if study[name] is not None} | {"name": "made_up", "repeats": 1}
    study["base"] |= {"seed": seed}
    files = {file.parent.name.rsplit("-", 2)[1]: file.parent for file in pack.glob("runs/*/run.parquet")}
    known: dict[str, Result] = {}

    def train(spec: RunSpec) -> Result:
        if spec.hash not in known:
            known[spec.hash] = recorded(files[spec.hash])
        return known[spec.hash]

    every, whole = made(folder / "whole", train, **study)
    study["rules"] |= {"stop_when_beaten": True}
    after, trained = made(folder / "beaten", train, **study)
    took = {spec.hash: [len(result.loss) for one, result in trained if one == spec] for spec, _ in trained}
    stops = {spec.hash for spec, result in trained if result.status == "beaten"}
    left = int((after.runs["status"] == "beaten").sum())
    steps = sum(len(result.loss) for _, result in whole)
    return Replay(
        runs=len(whole),
        stopped=len(stops),
        went_on=sum(len(took[one]) > 1 for one in stops),
        whole=len(stops) - left,
        rounds=max(map(len, took.values())),
        same=found(after).equals(found(every)),
        saved=1 - sum(map(max, took.values())) / steps,
        oracle=1 - oracle(every, train) / steps,
    )


def oracle(every: StudyRuns, train: Recorded) -> int:
    """Return the steps of one that knows all: runs that are told apart stop where they are, or where they diverge."""
    candidates, groups, search, time = _winner_selection.ranked_points(every)
    rivals, total = beaten.rivals(every.study, [run.spec for run in every.planned]), 0
    specs = {run.run: run.spec for run in every.planned}
    for key, group in _winner_selection.split(candidates, groups):
        ranked, limit = _winner_selection._ranked(group, _winner_selection.AREA, search), np.inf
        if ranked:
            noise = _winner_selection._noise_of_areas(time.at(_winner_selection.kind_of(key)), len(group) - 1)
            least = ranked[0][_winner_selection.AREA]
            limit = least * np.exp(max(noise, np.log1p(every.study.rules.area_noise)))
        for run in (run for runs in group["runs"] for run in runs):
            result, spec = train(specs[run]), specs[run]
            total += len((stopped(result, (0.0, limit, "")) if rivals[spec.hash] else result).loss)
    return total


def recorded(folder: Path) -> Result:
    """Return a run as its records have it."""
    row = records.read_run(folder / "run.parquet").to_pylist()[0]
    steps = records.read("steps", folder / "steps.parquet", ("step", "rank", "t_s", "loss", "warm_up")).to_pandas()
    steps = steps[(steps["rank"] == 0) & ~steps["warm_up"]].sort_values("step")
    columns = {name: row[name] for name in (*OF_THE_MACHINE, *AT_ITS_END)}
    return Result(row["status"], row["reason"], tuple(steps["t_s"]), tuple(steps["loss"]), columns)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            zipfile.ZipFile(name).extractall(folder)
            (root,) = (one for one in Path(folder).iterdir())
            seeds = sorted({int(file.name.split("-s")[-1].split("-")[0]) for file in root.glob("runs/*")})
            for seed in seeds:
                print(Path(name).stem, f"seed {seed}:", replayed(root, seed, Path(folder) / f"replay-{seed}"))
