"""What a run consumed, and what it did with it: energy, utilisation and work of its GPUs, from their samples.

What is metered counts within the training windows: from time zero to the last step, without the pauses in which the
model was evaluated. A GPU counts once, however many ranks share it, and on however many hosts it is seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddp_hpc.config.spec import RunSpec
from ddp_hpc.execution.rank_series import RankPart
from ddp_hpc.profiling import energy
from ddp_hpc.profiling.nvml import COUNTERS
from ddp_hpc.profiling.peaks import peak_flop_per_s
from ddp_hpc.profiling.telemetry import GpuSamples, NodeSamples
from ddp_hpc.training.result import WARM_UP_STEPS

SLOWED = 0x04 | 0x08 | 0x20 | 0x40 | 0x80  # power cap, hardware slowdown, heat (software, hardware), power brake
MEANS = {
    "gpu_utilisation_mean": "utilisation",
    "sm_clock_mean_mhz": "sm_clock_mhz",
    "memory_clock_mean_mhz": "memory_clock_mhz",
    "pcie_rx_bytes_per_s": "pcie_rx_bytes_per_s",
    "pcie_tx_bytes_per_s": "pcie_tx_bytes_per_s",
    "nvlink_rx_bytes_per_s": "nvlink_rx_bytes_per_s",
    "nvlink_tx_bytes_per_s": "nvlink_tx_bytes_per_s",
}
Reasons = dict[str, str]
Columns = dict[str, Any]


@dataclass(frozen=True)
class _Gpu:
    """A GPU's samples on its node's clock, and the windows that count."""

    series: GpuSamples
    host: str
    windows: list[energy.Window]
    zero_s: float

    @property
    def t_s(self) -> NDArray[np.float64]:
        return np.array(self.series.t_ns, dtype=np.int64) / 1e9

    def values(self, counter: str) -> NDArray[np.float64]:
        return np.array(self.series.values[counter], dtype=np.float64)


def windows_of(parts: Sequence[RankPart], ranks: Sequence[int], steps: int) -> list[energy.Window]:
    """Return when the ranks of a node trained, in seconds of its monotonic clock: first begin to last end.

    Empty if some steps that count were taken by an earlier process: of a resumed run only the rest is metered.

    Args:
        parts: by rank.
        ranks: of the node.
        steps: that count.
    """
    end = WARM_UP_STEPS + steps
    found: list[list[energy.Window]] = []
    for rank in ranks:
        part, own = parts[rank], []
        ends = np.concatenate([[0.0], np.cumsum(part.timings.phases_s[:end].sum(axis=1))])
        starts = [(int(step), ns / 1e9) for step, ns in part.timings.starts if WARM_UP_STEPS <= step < end]
        for place, (step, begin) in enumerate(starts):
            last = starts[place + 1][0] if place + 1 < len(starts) else len(ends) - 1
            own.append((begin, begin + float(ends[last] - ends[step])))
        if not starts or starts[0][0] != WARM_UP_STEPS:
            return []
        found.append(own)
    together = zip(*found, strict=False)  # asynchronous ranks may not pause as often
    return [(min(begin for begin, _ in one), max(end for _, end in one)) for one in together]


def columns(parts: Sequence[RankPart], spec: RunSpec, run: Mapping[str, Any]) -> tuple[Columns, Columns, Reasons]:
    """Return what was metered: columns of the run record, the columns of the gpu record, and why columns are null.

    Args:
        parts: by rank.
        spec: what was trained.
        run: the run record so far: `steps`, `samples_seen`, `samples_per_s`.
    """
    nodes = [(part, part.metered.samples) for part in parts if part.metered.samples]
    gpus: dict[str, _Gpu] = {}
    unseen: list[str] = []
    cpu: dict[str, float | None] = {}  # by host, or rather by kernel: containers may share one
    no_cpu = ""
    for part, samples in nodes:
        windows = windows_of(parts, part.metered.ranks, int(run["steps"]))
        zero_s = windows[0][0] if windows else 0.0
        for series in samples.devices:
            gpus.setdefault(series.asked, _Gpu(series, part.placement.host, windows, zero_s))
        unseen += [samples.reason] if samples.reason else []
        joules, why = _cpu_joules(samples, windows)
        cpu.setdefault(samples.boot, joules)
        no_cpu = no_cpu or why
    used = {part.facts["gpu"]["uuid"] for part in parts if part.facts.get("gpu")}
    values, reasons = _of_gpus(list(gpus.values()), used, unseen)
    if values["energy_j"] is not None:
        values["energy_per_sample_j"] = values["energy_j"] / run["samples_seen"]
    known = [joules for joules in cpu.values() if joules is not None]
    values["cpu_energy_j"] = sum(known) if known and len(known) == len(cpu) else None
    if values["cpu_energy_j"] is None:
        reasons["cpu_energy_j"] = no_cpu or "nothing was metered"
    work, why_not = _work(parts, spec, float(run["samples_per_s"]), len(used))
    return values | work, _samples(list(gpus.values())), reasons | why_not


def _cpu_joules(samples: NodeSamples, windows: Sequence[energy.Window]) -> tuple[float | None, str]:
    if samples.cpu_reason:
        return None, samples.cpu_reason
    t_s = np.array(samples.cpu_t_ns, dtype=np.int64) / 1e9
    found = energy.by_counter(t_s, np.array(samples.cpu_joules, dtype=np.float64), windows)
    return found.total_j, f"RAPL: {found.reason}" if found.reason else ""


def _joules(gpu: _Gpu) -> tuple[energy.Joules, energy.Joules]:
    """Return the energy of a GPU by its counter and by its power, each with its reason where it is not known."""
    ways = []
    for counter, way in (("energy_counter_j", energy.by_counter), ("power_w", energy.by_power)):
        found = way(gpu.t_s, gpu.values(counter), gpu.windows)
        why = gpu.series.reasons.get(counter) or "; ".join(filter(None, (found.reason, gpu.series.ended)))
        ways.append(found if found.total_j is not None else replace(found, reason=why))
    return ways[0], ways[1]


def _of_gpus(gpus: list[_Gpu], used: set[str], unseen: list[str]) -> tuple[Columns, Reasons]:
    """Return the columns of the run record that come from the GPUs' samples, and why some are null."""
    names = ["energy_j", "energy_method", "energy_counter_j", "energy_power_j", "energy_per_sample_j", "power_mean_w"]
    names += ["energy_idle_share", *MEANS, "temperature_max_c", "throttled_share"]
    row: Columns = dict.fromkeys(names) | {"gpus": len(used)}
    if not gpus:
        return row, dict.fromkeys(names, "; ".join(dict.fromkeys(unseen)) or "no GPU is used")
    reasons: Reasons = {}
    ways = [_joules(gpu) for gpu in gpus]
    row["energy_counter_j"], why_counter = _sum(gpus, [counter for counter, _ in ways])
    row["energy_power_j"], why_power = _sum(gpus, [power for _, power in ways])
    best = [counter if counter.total_j is not None else power for counter, power in ways]
    row["energy_j"], _ = _sum(gpus, best)
    reasons |= {"energy_counter_j": why_counter, "energy_power_j": why_power}
    if row["energy_j"] is None:
        why = f"counter: {why_counter}; power: {why_power}"
        reasons |= dict.fromkeys(("energy_j", "energy_method", "energy_per_sample_j", "power_mean_w"), why)
        reasons["energy_idle_share"] = why
    else:
        kinds = {"counter" if counter.total_j is not None else "integrated power" for counter, _ in ways}
        row["energy_method"] = kinds.pop() if len(kinds) == 1 else "counter, of some GPUs integrated power"
        durations = [sum(end - begin for begin, end in gpu.windows) for gpu in gpus]
        row["power_mean_w"] = row["energy_j"] / sum(durations)
        rest = [energy.at_rest_w(gpu.values("power_w"), gpu.values("utilisation")) for gpu in gpus]
        if None in rest:
            reasons["energy_idle_share"] = "no sample of power at rest: none without a kernel"
        else:
            idle_j = sum(watts * seconds for watts, seconds in zip(rest, durations, strict=True) if watts is not None)
            row["energy_idle_share"] = min(1.0, idle_j / row["energy_j"])
    others = {"temperature_max_c": "temperature_c", "throttled_share": "throttle_reasons"}
    for name, counter in (MEANS | others).items():
        row[name], reasons[name] = _over_training(gpus, counter)
    return row, {name: why for name, why in reasons.items() if row[name] is None}


def _sum(gpus: list[_Gpu], parts: list[energy.Joules]) -> tuple[float | None, str]:
    """Return the sum over the GPUs; None, and why, if it is not known of all."""
    known = [part.total_j for part in parts if part.total_j is not None]
    lacking = {part.reason for part in parts if part.total_j is None}
    return (sum(known), "") if not lacking else (None, "; ".join(sorted(lacking)))


def _over_training(gpus: list[_Gpu], counter: str) -> tuple[float | None, str]:
    """Return a counter over the samples of the training: the mean of the GPUs' means; of temperatures the largest; of
    reasons for slower clocks the share of samples in which there was one."""
    found = []
    for gpu in gpus:
        values = gpu.values(counter)
        values = values[energy.inside(gpu.t_s, gpu.windows) & np.isfinite(values)]
        if not len(values):
            why = gpu.series.reasons.get(counter) or gpu.series.ended or "no sample fell into the training"
            return None, why
        if counter == "temperature_c":
            found.append(float(values.max()))
        elif counter == "throttle_reasons":
            found.append(float(((values.astype(np.int64) & SLOWED) != 0).mean()))
        else:
            found.append(float(values.mean()))
    return max(found) if counter == "temperature_c" else sum(found) / len(found), ""


def _work(parts: Sequence[RankPart], spec: RunSpec, samples_per_s: float, gpus: int) -> tuple[Columns, Reasons]:
    """Return how much was computed, against what the GPUs could, and why that is not known."""
    metered = parts[0].metered
    names = ("flop_per_step", "flop_per_s", "peak_flop_per_s", "mfu")
    row: Columns = dict.fromkeys(names)
    gpu = parts[0].facts.get("gpu")
    peak = peak_flop_per_s(gpu["name"], spec.precision, spec.dtype) if gpu else None
    row["peak_flop_per_s"] = peak * gpus if peak else None
    no_peak = f"the peak of {gpu['name']} is not in profiling/peaks.py" if gpu else "no GPU is used"
    reasons: Reasons = {} if peak else dict.fromkeys(("peak_flop_per_s", "mfu"), no_peak)
    if metered.flop_per_sample is None:
        return row, dict.fromkeys(("flop_per_step", "flop_per_s", "mfu"), metered.no_flop) | reasons
    row["flop_per_step"] = metered.flop_per_sample * spec.batch_size
    row["flop_per_s"] = metered.flop_per_sample * samples_per_s
    row["mfu"] = row["flop_per_s"] / row["peak_flop_per_s"] if peak else None
    return row, reasons


def _samples(gpus: list[_Gpu]) -> Columns:
    """Return the columns of the gpu record: every sample of every GPU."""
    tables = []
    for gpu in gpus:
        counter, power = _joules(gpu)
        t_s = gpu.t_s
        outside = (t_s < gpu.zero_s) | (t_s > gpu.windows[-1][1] if gpu.windows else True)
        trained_s = np.where(outside, np.nan, energy.elapsed(t_s, gpu.windows))
        tables.append(
            {
                "t_s": t_s - gpu.zero_s,
                "host": [gpu.host] * len(t_s),
                "uuid": [gpu.series.uuid] * len(t_s),
                "trained_s": trained_s,
                "energy_j": (counter if counter.total_j is not None else power).rise_j,
                **{name: gpu.values(name) for name in COUNTERS},
            }
        )
    return {name: np.concatenate([table[name] for table in tables]) for name in (tables[0] if tables else ())}
