"""Schemes of distributed training: who computes, who moves what, how much, and how fast that is at which intensity.

The three columns in words are those of a lecture, with the words of each exchange's file. Arithmetic intensity is the
work of a rank's step over the bytes of the parameters, which are what has to be exchanged: FLOP per byte.

Source: S. Balaban, Distributed Training: A Gentle Introduction, Lambda.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from math import isnan, nan
from typing import Any

import pandas as pd

from ddp_hpc import perfmodel
from ddp_hpc.analysis.columns import rows_of, split, with_standing
from ddp_hpc.analysis.intervals import over_runs
from ddp_hpc.analysis.tables import exchanges
from ddp_hpc.analysis.tables._frame import columns, known, typed
from ddp_hpc.analysis.tables._groups import Row, spread
from ddp_hpc.config import catalog
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.runs.study_runs import StudyRuns

CAPTION = "Schemes: who computes and who moves what, and how fast that is; medians over the rounds."
LEFT_OUT = columns(
    "step_low_ms step_high_ms weak_efficiency_low weak_efficiency_high times_as_fast_low times_as_fast_high",
    "bus_gb_per_s_low bus_gb_per_s_high link_share_low link_share_high slow_steps_share others_slow_steps_share",
)

MOVING, EXPOSED = "the moving part", "the whole exposed exchange, so at least"
ITEM_BYTES = {"float32": 4, "float64": 8}
_WORDS = ("scheme", "computes", "moves_gradients", "moves_model", "gpu_data_path")
_OF_EXCHANGES = columns(  # times in ms here
    "runs samples_per_s weak_efficiency weak_efficiency_low weak_efficiency_high",
    "times_as_fast times_as_fast_low times_as_fast_high slow_steps_share others_slow_steps_share reference",
    "interval_from oversubscribed reason",
)
_TIMES = ("step", "step_low", "step_high")
_COLUMNS = columns(
    *_WORDS,
    "runs parameter_bytes flop_per_parameter_byte sent_bytes sent_by_others_bytes exchange_exposed_ms bus_gb_per_s",
    "bus_gb_per_s_low bus_gb_per_s_high bandwidth_of link_share link_share_low link_share_high",
    "step_ms step_low_ms step_high_ms",
    *_OF_EXCHANGES[1:],
)


def build(study_runs: StudyRuns) -> pd.DataFrame:
    """Return one row per exchange, with its options, of each intensity (model, batch size) and number of ranks.

    Times, rates and ratios are those of the table `exchanges`. `flop_per_parameter_byte`: what a rank computes in a
    step, forward and backward, over the bytes of the parameters. `sent_bytes`: what the busiest rank, e.g. a server,
    sends in a step, `sent_by_others_bytes` one that does not serve, by `perfmodel`; null where it has no formula.
    `bus_gb_per_s`: the bus bandwidth of the moving part of the exchange, as nccl-tests define it, 1 GB = 1e9 B; null
    where steps go on beside it. Where waiting is not known, as of NCCL on GPUs, it is that of the whole exposed
    exchange: at least so much, so its interval ends at the link's peak (`bandwidth_of` says which). `link_share`: it
    over the study's `rules: link_gb_per_s`, where ranks sit on several nodes: their links are then what the slowest
    part goes through.
    """
    frame = exchanges.build(study_runs)
    axes = [name for name in SPEC_COLUMNS if name in frame]
    link = study_runs.study.rules.link_gb_per_s
    groups = split(with_standing(study_runs.runs), axes)
    rows = (
        key | _row(one, group[group["status"] == "ok"], link)
        for one, (key, group) in zip(rows_of(frame), groups, strict=True)
    )
    return typed(rows, [*axes, *_COLUMNS])


def _row(one: Mapping[str, Any], ended: pd.DataFrame, link_gb_per_s: float | None) -> Row:
    constants = catalog.constants("exchange", one["exchange"])
    row = {name: constants.get(name.upper()) for name in _WORDS}
    if catalog.asked(one["exchange"], "CUDA_AWARE", json.loads(one["exchange_options"])):
        row["gpu_data_path"] = "direct"
    row |= {name: one[name] for name in _OF_EXCHANGES} | {f"{name}_ms": one[f"{name}_us"] / 1e3 for name in _TIMES}
    if ended.empty:
        return row
    if constants.get("MAX_WORLD_SIZE") == 1:
        row["reason"] = None  # the baseline is compared with nothing
    run = rows_of(ended[:1])[0]
    size = int(run["parameters"]) * ITEM_BYTES[run["dtype"]]
    row |= {
        "parameter_bytes": size,
        "flop_per_parameter_byte": float(ended["flop_per_step"].median()) / size,
        "exchange_exposed_ms": 1e3 * float(ended["exchange_exposed_s"].median()),
    }
    link = link_gb_per_s if run["hosts"] > 1 else None
    return row | _bandwidth(constants, ended, size, link) | _sent(run, size)


def _bandwidth(constants: Mapping[str, Any], ended: pd.DataFrame, size: int, link_gb_per_s: float | None) -> Row:
    """Return the bus bandwidth of an exchange that nothing goes on beside; nothing of others, and of one rank."""
    if not constants["SYNCHRONOUS"] or constants["OVERLAPS"]:
        return {}
    moved, ranks = ended["move_s"].notna().any(), int(ended["world_size"].iloc[0])
    times = [one for one in known(ended["move_s" if moved else "exchange_exposed_s"]) if one > 0]
    found = [bandwidth / 1e9 for one in times if (bandwidth := perfmodel.bus_bandwidth(size, one, ranks)) is not None]
    if not found:
        return {}
    bus = over_runs(found)
    if not moved:
        high = nan if link_gb_per_s is None or not bus.known else max(bus.high, link_gb_per_s)
        bus = replace(bus, high=high, low=nan if isnan(high) else bus.low)
    row = spread("bus_gb_per_s", "", bus) | {"bandwidth_of": MOVING if moved else EXPOSED}
    return row | (spread("link_share", "", bus.each(lambda value: value / link_gb_per_s)) if link_gb_per_s else {})


def _sent(run: Mapping[str, Any], size: int) -> Row:
    """Return what ranks send in a step; nothing where gradients are compressed, or the exchange has no model."""
    exchange, given = str(run["exchange"]), json.loads(run["exchange_options"])
    model = catalog.cost_model(exchange, given)
    if model is None or catalog.asked(exchange, "COMPRESSES", given):
        return {}
    formula, options = model
    cost = perfmodel.cost(formula, size, int(run["world_size"]), hosts=int(run["hosts"]), **options)
    return {"sent_bytes": cost.sent, "sent_by_others_bytes": cost.sent_by_others}
