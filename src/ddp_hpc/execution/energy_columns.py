"""What a run consumed, and what it did with it: energy, utilisation and work of its GPUs, from their samples.

What is metered counts within the training windows: from time zero to the last step, without the pauses in which the
model was evaluated. A GPU counts once, however many ranks share it, and on however many hosts it is seen.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
OVER_TRAINING = {  # columns, and the counters whose samples they sum up
    "gpu_utilisation_mean": "utilisation",
    "sm_clock_mean_mhz": "sm_clock_mhz",
    "memory_clock_mean_mhz": "memory_clock_mhz",
    "temperature_max_c": "temperature_c",
    "throttled_share": "throttle_reasons",
    **{name: name for name in COUNTERS if name.endswith("_bytes_per_s")},
}
OF_ENERGY = ("energy_j", "energy_error_j", "energy_method", "energy_per_sample_j", "power_mean_w", "energy_idle_share")
NO_BOUND = "no bound is known of integrated power, nor where the counter was not read at both ends of the training"
Columns = dict[str, Any]
Known = tuple[Any, str]  # a value and, where it is None, why


@dataclass(frozen=True)
class _Gpu:
    """A GPU's samples on its node's clock, and the windows that count."""

    series: GpuSamples
    host: str
    windows: list[energy.Window]

    @cached_property
    def t_s(self) -> NDArray[np.float64]:
        return np.array(self.series.t_ns, dtype=np.int64) / 1e9

    def values(self, counter: str) -> NDArray[np.float64]:
        return np.array(self.series.values[counter], dtype=np.float64)

    def _joules(self, way: Callable[..., energy.Joules], counter: str) -> energy.Joules:
        """Return the energy, with its reason where it is not known."""
        found = way(self.t_s, self.values(counter), self.windows)
        why = self.series.reasons.get(counter) or "; ".join(filter(None, (found.reason, self.series.ended)))
        return found if found.total_j is not None else replace(found, reason=why)

    @cached_property
    def by_counter(self) -> energy.Joules:
        return self._joules(energy.by_counter, "energy_counter_j")

    @cached_property
    def by_power(self) -> energy.Joules:
        return self._joules(energy.by_power, "power_w")

    @property
    def joules(self) -> energy.Joules:
        return self.by_power if self.by_counter.total_j is None else self.by_counter


def windows_of(parts: Sequence[RankPart], ranks: Sequence[int], steps: int) -> list[energy.Window]:
    """Return when the ranks of a node trained, in seconds of its monotonic clock: first begin to last end.

    Empty if some of the `steps` that count were taken by an earlier process: of a resumed run only the rest is metered.
    """
    end = WARM_UP_STEPS + steps
    found: list[list[energy.Window]] = []
    for timings in (parts[rank].timings for rank in ranks):
        ends = np.concatenate([[0.0], np.cumsum(timings.phases_s[:end].sum(axis=1))])
        starts = [(int(step), ns / 1e9) for step, ns in timings.starts if WARM_UP_STEPS <= step < end]
        if not starts or starts[0][0] != WARM_UP_STEPS:
            return []
        lasts = [*(step for step, _ in starts[1:]), len(ends) - 1]
        found.append(
            [(begin, begin + float(ends[last] - ends[step])) for (step, begin), last in zip(starts, lasts, strict=True)]
        )
    together = zip(*found, strict=False)  # asynchronous ranks may not pause as often
    return [(min(begin for begin, _ in one), max(end for _, end in one)) for one in together]


def columns(parts: Sequence[RankPart], spec: RunSpec, run: Mapping[str, Any]) -> tuple[Columns, Columns, Columns]:
    """Return what was metered: columns of the run record, the columns of the gpu record, and why columns are null.

    Of the run record so far, `run`, it takes `steps`, `samples_seen` and `samples_per_s`.
    """
    devices: dict[str, _Gpu] = {}
    unseen: list[str] = []
    cpus: dict[str, energy.Joules] = {}  # by host, or rather by kernel: containers may share one
    for part in parts:
        if samples := part.metered.samples:
            windows = windows_of(parts, part.metered.ranks, int(run["steps"]))
            for series in samples.devices:
                devices.setdefault(series.asked, _Gpu(series, part.placement.host, windows))
            unseen += [samples.reason] if samples.reason else []
            cpus.setdefault(samples.boot, _cpu_joules(samples, windows))
    gpus = list(devices.values())
    used = {part.facts["gpu"]["uuid"] for part in parts if part.facts.get("gpu")}
    found: dict[str, Known] = {"gpus": (len(used), "")}
    if gpus:
        found |= _energy(gpus, run["samples_seen"])
        found |= {name: _over_training(gpus, counter) for name, counter in OVER_TRAINING.items()}
    else:
        no_gpu = "; ".join(dict.fromkeys(unseen)) or "no GPU is used"
        found |= dict.fromkeys((*OF_ENERGY, "energy_counter_j", "energy_power_j", *OVER_TRAINING), (None, no_gpu))
    found["cpu_energy_j"] = _sum(cpus.values()) if cpus else (None, "nothing was metered")
    found |= _work(parts, spec, float(run["samples_per_s"]), len(used))
    reasons = {name: why for name, (value, why) in found.items() if value is None}
    return {name: value for name, (value, _) in found.items()}, _samples(gpus), reasons


def _cpu_joules(samples: NodeSamples, windows: Sequence[energy.Window]) -> energy.Joules:
    t_s = np.array(samples.cpu_t_ns, dtype=np.int64) / 1e9
    found = energy.by_counter(t_s, np.array(samples.cpu_joules, dtype=np.float64), windows)
    if samples.cpu_reason:
        return replace(found, total_j=None, reason=samples.cpu_reason)
    return replace(found, reason=f"RAPL: {found.reason}")


def _sum(parts: Iterable[energy.Joules]) -> Known:
    """Return the sum of all; None, and why, if one is not known."""
    known, lacking = [], set()
    for part in parts:
        if part.total_j is None:
            lacking.add(part.reason)
        else:
            known.append(part.total_j)
    return (None, "; ".join(sorted(lacking))) if lacking else (sum(known), "")


def _energy(gpus: list[_Gpu], samples_seen: int) -> dict[str, Known]:
    """Return the energy of all GPUs, and what follows from it."""
    counter, power = _sum(gpu.by_counter for gpu in gpus), _sum(gpu.by_power for gpu in gpus)
    energy_j, _ = _sum(gpu.joules for gpu in gpus)
    row = {"energy_counter_j": counter, "energy_power_j": power}
    if energy_j is None:
        return row | dict.fromkeys(OF_ENERGY, (None, f"counter: {counter[1]}; power: {power[1]}"))
    methods = {"counter" if gpu.by_counter.total_j is not None else "integrated power" for gpu in gpus}
    durations = [sum(end - begin for begin, end in gpu.windows) for gpu in gpus]
    rest_w = [energy.at_rest_w(gpu.values("power_w"), gpu.values("utilisation")) for gpu in gpus]
    idle_j = [watts * seconds for watts, seconds in zip(rest_w, durations, strict=True) if watts is not None]
    idle_share = min(1.0, sum(idle_j) / energy_j) if len(idle_j) == len(gpus) else None
    return row | {
        "energy_j": (energy_j, ""),
        "energy_error_j": _error([gpu.joules for gpu in gpus]),
        "energy_method": (methods.pop() if len(methods) == 1 else "counter, of some GPUs integrated power", ""),
        "energy_per_sample_j": (energy_j / samples_seen, ""),
        "power_mean_w": (energy_j / sum(durations), ""),
        "energy_idle_share": (idle_share, "no sample of power at rest: none without a kernel"),
    }


def _error(parts: Sequence[energy.Joules]) -> Known:
    """Return by how much the sum of all may be off at most; None, and why, where one's error has no bound."""
    errors = [part.error_j for part in parts if part.error_j is not None]
    return (sum(errors), "") if len(errors) == len(parts) else (None, NO_BOUND)


def _over_training(gpus: list[_Gpu], counter: str) -> Known:
    """Return a counter over the samples of the training: the mean of the GPUs' means; of temperatures the largest; of
    reasons for slower clocks the share of samples in which there was one."""
    found = []
    for gpu in gpus:
        values = gpu.values(counter)
        values = values[energy.inside(gpu.t_s, gpu.windows) & np.isfinite(values)]
        if not len(values):
            return None, gpu.series.reasons.get(counter) or gpu.series.ended or "no sample fell into the training"
        if counter == "throttle_reasons":
            values = (values.astype(np.int64) & SLOWED) != 0
        found.append(float(values.max() if counter == "temperature_c" else values.mean()))
    return max(found) if counter == "temperature_c" else sum(found) / len(found), ""


def _work(parts: Sequence[RankPart], spec: RunSpec, samples_per_s: float, gpus: int) -> dict[str, Known]:
    """Return how much was computed, against what the GPUs could."""
    flop, no_flop, gpu = parts[0].metered.flop_per_sample, parts[0].metered.no_flop, parts[0].facts.get("gpu")
    peak = peak_flop_per_s(gpu["name"], spec.precision, spec.dtype) if gpu else None
    no_peak = f"the peak of {gpu['name']} is not in profiling/peaks.py" if gpu else "no GPU is used"
    all_peak = peak * gpus if peak else None
    flop_per_s = None if flop is None else flop * samples_per_s
    return {
        "flop_per_step": (None if flop is None else flop * spec.batch_size, no_flop),
        "flop_per_s": (flop_per_s, no_flop),
        "peak_flop_per_s": (all_peak, no_peak),
        "mfu": (flop_per_s / all_peak if flop_per_s is not None and all_peak else None, no_flop if peak else no_peak),
    }


def _samples(gpus: list[_Gpu]) -> Columns:
    """Return the columns of the gpu record: every sample of every GPU."""
    tables = []
    for gpu in gpus:
        t_s = gpu.t_s
        zero_s, end_s = (gpu.windows[0][0], gpu.windows[-1][1]) if gpu.windows else (0.0, -np.inf)
        tables.append(
            {
                "t_s": t_s - zero_s,
                "host": [gpu.host] * len(t_s),
                "uuid": [gpu.series.uuid] * len(t_s),
                "trained_s": np.where((t_s < zero_s) | (t_s > end_s), np.nan, energy.elapsed(t_s, gpu.windows)),
                "energy_j": gpu.joules.rise_j,
                **{name: gpu.values(name) for name in COUNTERS},
            }
        )
    return {name: np.concatenate([table[name] for table in tables]) for name in (tables[0] if tables else ())}
