"""The stand-in for NVML, and what it says in a training of two seconds by its own clock."""

import importlib.util
from pathlib import Path

import numpy as np

from ddp_hpc.config import spec
from ddp_hpc.execution import energy_columns
from ddp_hpc.execution.node_meter import Metered
from ddp_hpc.execution.rank_series import RankPart
from ddp_hpc.profiling import nvml, telemetry_process
from ddp_hpc.profiling.phase_names import PARTS, PHASES
from ddp_hpc.profiling.telemetry import GpuSamples, NodeSamples
from ddp_hpc.profiling.timers import Timings
from ddp_hpc.training.placement import Placement
from ddp_hpc.training.result import WARM_UP_STEPS

STAND_INS = Path(__file__).parent / "stand_ins"
ZERO_S, STEP_S, PAUSE_S = 1.0, 0.25, 0.5  # of the training: 4 steps, a pause, 4 steps
WINDOWS = [(1.0, 2.0), (2.5, 3.5)]
FIELDS = {
    "model": "mlp",
    "dataset": "digits",
    "exchange": "ring",
    "batch_size": 10,
    "learning_rate": 0.1,
    "budget": {"steps": 8},
}


def stand_in(mode=""):
    """Return a fresh stand-in of the module pynvml, with a clock of its own."""
    found = importlib.util.spec_from_file_location("stand_in", STAND_INS / "pynvml.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    module.mode = mode
    return module


def sample(monkeypatch, mode, uuids, every_s=0.1, until_s=4.0) -> list[GpuSamples]:
    """Read devices by the stand-in's clock, which is the sampler's too."""
    fake, now = stand_in(mode), [0.0]
    fake.clock = lambda: now[0]
    monkeypatch.setattr(nvml.time, "perf_counter_ns", lambda: round(1e9 * now[0]))
    devices = [(nvml.Device(fake, uuid), []) for uuid in dict.fromkeys(uuids)]
    for tick in range(round(until_s / every_s) + 1):
        now[0] = tick * every_s
        for device, rows in devices:
            if values := device.read():
                rows.append((round(1e9 * now[0]), values))
    return [telemetry_process.samples_of(device, rows, "") for device, rows in devices]


def ranks(uuids, samples: NodeSamples, name="Tesla T4", **metered) -> list[RankPart]:
    """Return ranks of one node which use these GPUs, and whose first has the samples."""
    steps = WARM_UP_STEPS + 8
    phases_s = np.zeros((steps, len(PHASES)))
    phases_s[:, 0] = STEP_S
    starts = [(0, 0), (WARM_UP_STEPS, round(1e9 * ZERO_S)), (WARM_UP_STEPS + 4, round(2.5e9))]
    return [
        RankPart(
            losses=np.ones(steps),
            timings=Timings(
                phases_s=phases_s,
                parts_s=np.zeros((steps, len(PARTS))),
                overlapped_s=np.zeros(steps),
                arrived_ns=np.zeros(steps, dtype=np.int64),
                fused=np.zeros(steps, dtype=bool),
                starts=np.array(starts),
            ),
            placement=Placement(
                rank=rank,
                world_size=len(uuids),
                host="a",
                local_rank=rank,
                hosts=1,
                blocks=(len(uuids),),
                core_set=(0,),
                threads=1,
                cores=8,
                oversubscribed=False,
                verified=None,
            ),
            peak_memory_bytes=1,
            startup={},
            facts={"gpu": {"uuid": uuid, "name": name}},
            metrics={},
            metered=Metered(samples=None if rank else samples, ranks=tuple(range(len(uuids))), **metered),
        )
        for rank, uuid in enumerate(uuids)
    ]


def consumed(parts, **fields):
    """Return the columns of the run, of its samples, and the reasons of nulls."""
    one = spec.load(FIELDS | {"world_size": len(parts)} | fields)
    seen = 8 * one.global_batch_size
    return energy_columns.columns(
        parts, one, {"steps": 8, "warm_up_steps": 3, "samples_seen": seen, "samples_per_s": seen / 2.0}
    )
