"""The warnings of a report about its runs, and which runs have no result."""

from collections.abc import Iterator, Mapping

import pandas as pd

from ddp_hpc.analysis.columns import (
    CROWDED,
    DISTURBED,
    MISPLACED,
    crowded,
    rows_of,
    search_columns,
    show,
    slow_steps_share,
    standing,
    told,
    told_apart_by,
)
from ddp_hpc.analysis.report.provenance import Provenance
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.runs.statuses import FINISHED
from ddp_hpc.runs.study_runs import StudyRuns
from ddp_hpc.system.terminal import counted

_CHANGES_TIMES = ("software.", "hosts", "processors", "GPUs", "gradient_path", "source.")

TOO_GOOD = 1.1  # parallel efficiency


def flags(study_runs: StudyRuns, tables: Mapping[str, pd.DataFrame], provenance: Provenance) -> list[str]:
    """Return the warnings, a sentence each."""
    attempts = int((study_runs.runs["attempts"] > 1).sum())
    not_made = [name for name in study_runs.study.table_names if name not in tables]
    again = f"`ddp-hpc table {study_runs.study.name} {' '.join(not_made)}` makes them, or says why not."
    return [
        *([f"Tables that the study asks for are not there: {', '.join(not_made)}; {again}"] if not_made else []),
        *_bad_times(study_runs.runs),
        *(_unsteady(tables["runs"]) if "runs" in tables else []),
        *(_too_good(tables["scaling"]) if "scaling" in tables else []),
        *_mixed(provenance),
        *([f"{counted(attempts, 'run')} took more than one attempt."] if attempts else []),
        *(_of_winners(study_runs, tables["winners"]) if "winners" in tables else []),
    ]


def _bad_times(runs: pd.DataFrame) -> Iterator[str]:
    all_runs = counted(len(runs), "run")
    oversubscribed = runs["oversubscribed"].fillna(False).astype(bool)
    if count := int(oversubscribed.sum()):
        yield (
            f"{count} of {all_runs} had more threads than cores (oversubscribed): times of such runs are not "
            "meaningful, they cannot win, and figures mark them."
        )
    if count := int((standing(runs) == MISPLACED).sum()):
        yield (
            f"The ranks of {count} of {all_runs} did not sit as the study asks (placement_verified in the table "
            "of runs): such runs are kept out of all comparisons."
        )
    with_cores = runs[~oversubscribed]
    if count := int((slow_steps_share(with_cores) > DISTURBED).sum()):
        yield (
            f"In {count} of {all_runs} more than a third of the training time went to steps slower than the "
            "median step (slow_steps_share in the table of runs): something else used the cores. Times and areas of "
            "such runs are not reliable; run them again on a quiet machine, or with repeats."
        )
    slowed = with_cores[crowded(with_cores)]
    if len(slowed):
        yield (
            f"In {len(slowed)} of {all_runs} threads were ready and had no core in over {100 * CROWDED:.0f} % of the "
            f"time, and others used up to {100 * slowed['others_core_share'].max():.0f} % of their cores "
            "(core_wait_share and others_core_share in the table of runs). This may slow down all steps evenly, so "
            "that none stands out: run again on a quiet machine."
        )
    beside = runs["other_trainings"].astype("float64")
    if count := int((beside > 0).sum()):
        yield (
            f"On a node of {count} of {all_runs} other trainings of ddp-hpc ran, too, up to {beside.max():.0f} "
            "(other_trainings in the table of runs): they may have disturbed the times. Ask Slurm for whole nodes "
            "(`--exclusive`), or run again when the machine is free."
        )
    throttled = runs["throttled_by_quota_share"].astype("float64")
    if count := int((throttled > CROWDED).sum()):
        yield (
            f"In {count} of {all_runs} the ranks used up the CPU quota of their control group in up to "
            f"{100 * throttled.max():.0f} % of its periods (throttled_by_quota_share in the table of runs) and then "
            "stood still: ask for as many cores as ranks x threads, or use fewer ranks."
        )


def _unsteady(runs: pd.DataFrame) -> Iterator[str]:
    all_runs = counted(len(runs), "run")
    drifting = runs[runs["drifting"].astype("boolean").fillna(False).astype(bool)]
    if len(drifting):
        largest = float(drifting["drift_percent"].abs().max())
        yield (
            f"In {len(drifting)} of {all_runs} the steps drift, by up to {largest:.0f} % from first to last "
            "(drifting in the table of runs): the machine or its clocks changed during the run. Medians of such a "
            "run mix different states."
        )
    slow = runs["slow_ranks"].dropna()
    if len(slow):
        yield (
            f"In {len(slow)} of {all_runs} some ranks work slower than the others by 10 % or more, e.g. "
            f"{slow.iloc[0]} (slow_ranks in the table of runs): all others wait for them."
        )


def _too_good(scaling: pd.DataFrame) -> Iterator[str]:
    fit = scaling[~scaling["oversubscribed"].fillna(False).astype(bool)]
    if count := int((fit["efficiency"] > TOO_GOOD).sum()):
        yield (
            f"The parallel efficiency is above {TOO_GOOD} in {count} of {counted(len(scaling), 'row')} of the scaling "
            "table: the baseline was disturbed, or a rank's share fits a faster memory."
        )


def _mixed(provenance: Provenance) -> Iterator[str]:
    for name, values in provenance.differing.items():
        if name.startswith(_CHANGES_TIMES) and name != "source.dirty":
            others = provenance.runs - sum(count for _, count in values)
            said = "; ".join(f"{text} in {counted(count, 'run')}" for text, count in values)
            said += f"; not known in {counted(others, 'run')}" if others else ""
            yield f"Runs of different {name} stand side by side: {said}. Their times may differ for it."
    if provenance.warnings:
        first, runs = provenance.warnings[0]
        others = len(provenance.warnings) - 1
        yield (
            f"Ranks gave warnings: in {runs} of {counted(provenance.runs, 'run')} {first!r}"
            + (f", and {counted(others, 'other')} (provenance.warnings of the run records)." if others else ".")
        )
    if dirty := dict((provenance.common | provenance.differing).get("source.dirty", [])).get("True"):
        yield f"Code with uncommitted changes made {dirty} of {counted(provenance.runs, 'run')}."


def _of_winners(study_runs: StudyRuns, winners: pd.DataFrame) -> Iterator[str]:
    """Say where none may win, and where another may be as good, or a better one lie beyond what was tried."""
    won = winners[winners["winner_runs"].notna()]
    groups, groups_won = counted(len(winners), "group"), counted(len(won), "group")
    if doubtful := int((won["cannot_be_told_from_count"] > 0).sum()):
        yield (
            f"In {doubtful} of {groups_won} the winner cannot be distinguished from other points; "
            "the table of winners lists them."
        )
    if "doubt" in won and (lucky := won["doubt"].dropna().tolist()):
        yield (
            f"In {len(lucky)} of {groups_won} the winner may have won by luck, for lack of budget or on other "
            f"processors (doubt in the table of winners), e.g. {lucky[0]}."
        )
    if none := len(winners) - len(won):
        yield f"In {none} of {groups} no run may win; the table of winners says why."
    for name in (name for name in search_columns(study_runs.study) if name in ("batch_size", "learning_rate")):
        tried = sorted(study_runs.runs[name].dropna().unique())
        for value, words in ((tried[0], "least"), (tried[-1], "largest")) if len(tried) > 2 else ():
            if count := int((winners[name] == value).sum()):
                yield (
                    f"In {count} of {groups} the winner has the {words} {name} tried, {show(value)}: "
                    "a better one may lie beyond."
                )


def lacking(runs: pd.DataFrame) -> list[dict[str, str]]:
    """Return the planned runs that have no result: `run` in words, `status` and `reason`."""
    differ = told_apart_by(runs, SPEC_COLUMNS) or ["world_size"]
    return [
        {
            "run": ", ".join(f"{name} {told(row, name)}" for name in differ),
            "status": "not yet run" if row["status"] == "missing" else str(row["status"]).replace("_", " "),
            "reason": "" if pd.isna(row["reason"]) else str(row["reason"]),
        }
        for row in rows_of(runs[~runs["status"].isin(FINISHED)])
    ]
