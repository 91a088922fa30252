"""The columns of records: every file of a kind has the same ones in the same order, whatever the machine.

Unit and meaning of a column are in its metadata. Those of the run record that hold a spec are the fields of `RunSpec`.
"""

from collections.abc import Iterator
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import pyarrow as pa

from ddp_hpc.config.budget import Budget
from ddp_hpc.config.program import Program
from ddp_hpc.config.spec import COMPONENTS, Component, RunSpec
from ddp_hpc.config.types import Unit
from ddp_hpc.profiling.phase_names import PARTS, PHASES

# Raise it when a column changes its meaning: older records are then refused. A new column needs no other version.
SCHEMA_VERSION = 4

TEXT, INTEGER, FLOAT, BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_ARROW = {Component: TEXT, Program: TEXT, Budget: TEXT, str: TEXT, int: INTEGER, float: FLOAT, bool: BOOL}


def field(name: str, kind: pa.DataType, unit: str, meaning: str) -> pa.Field:
    """Return a column of a record, with its unit and its meaning."""
    return pa.field(name, kind, metadata={"unit": unit, "meaning": meaning})


def _spec_columns() -> Iterator[pa.Field]:
    """Yield the columns of `RunSpec.columns`."""
    for name, about in RunSpec.model_fields.items():
        unit = next((one.name for one in about.metadata if isinstance(one, Unit)), "")
        yield field(name, _ARROW[_python_type(about.annotation)], unit, about.description or "")
        if name in COMPONENTS:
            yield field(f"{name}_options", TEXT, "JSON", "its options that differ from their defaults")


def _python_type(annotation: Any) -> Any:
    """Return e.g. `int` of `Positive | None`, `str` of `Literal["sgd", "adam"]`."""
    inner = [one for one in get_args(annotation) if one is not NoneType]
    if get_origin(annotation) is Literal:
        return type(inner[0])
    return _python_type(inner[0]) if inner else annotation


_MEAN = "mean over the samples of the training, then over the GPUs"
_LINKS = {
    f"{link}_{way}_bytes_per_s": f"{words} over {link}"
    for link in ("pcie", "nvlink")
    for way, words in (("rx", "received"), ("tx", "sent"))
}

CONSUMPTION = [
    field("gpus", INTEGER, "GPUs", "in use, each counted once however many ranks share it"),
    field("energy_j", FLOAT, "J", "of all GPUs in the training windows: without start-up and evaluations"),
    field("energy_error_j", FLOAT, "J", "by how much energy_j may be off at most: a counter moves now and then"),
    field("energy_method", TEXT, "", "counter: the driver's; integrated power, where it has none"),
    field("energy_counter_j", FLOAT, "J", "by the counter"),
    field("energy_power_j", FLOAT, "J", "by power, integrated over time"),
    field("energy_per_sample_j", FLOAT, "J", "energy_j / samples_seen"),
    field("energy_idle_share", FLOAT, "", "of energy_j: what the GPUs would have drawn at rest"),
    field("power_mean_w", FLOAT, "W", "of one GPU, the mean over the training and the GPUs"),
    field("gpu_utilisation_mean", FLOAT, "", f"time in which any kernel ran, waiting ones included; {_MEAN}"),
    field("sm_clock_mean_mhz", FLOAT, "MHz", f"of the multiprocessors; {_MEAN}"),
    field("memory_clock_mean_mhz", FLOAT, "MHz", f"of the memory; {_MEAN}"),
    field("temperature_max_c", FLOAT, "C", "the highest of any GPU in the training"),
    field("throttled_share", FLOAT, "", f"samples with clocks held down by power or heat; {_MEAN}"),
    *(field(name, FLOAT, "B/s", f"{words} by one GPU; {_MEAN}") for name, words in _LINKS.items()),
    field("cpu_energy_j", FLOAT, "J", "of the processor packages of all nodes in the training, by RAPL, by whomever"),
    field("flop_per_step", FLOAT, "FLOP", "of one rank: products, convolutions, attention, forward and backward"),
    field("flop_per_s", FLOAT, "FLOP/s", "of all ranks: their work over the training time"),
    field("peak_flop_per_s", FLOAT, "FLOP/s", "of all GPUs in this arithmetic, by their data sheets"),
    field("mfu", FLOAT, "", "model FLOP utilisation: flop_per_s / peak_flop_per_s"),
]

_SERVING = ("gradients come in at a server; rank 0's in the run record", "their mean there", "weights go out from it")
_PARTS = {part: f"part of exchange_exposed_s: {what}" for part, what in zip(PARTS, _SERVING, strict=True)}

RUN = pa.schema(
    [
        field("run", TEXT, "", "identity: readable hint, spec hash, code hash"),
        field("spec_hash", TEXT, "", "hash of the canonical spec"),
        field("code_hash", TEXT, "", "hash of the code that this spec uses"),
        *_spec_columns(),
        field("status", TEXT, "", "ok, diverged, oom_gpu or beaten"),
        field("reason", TEXT, "", "why, where the status is not ok"),
        field("parameters", INTEGER, "", "trainable parameters of the model"),
        field("learning_rate_scaled", FLOAT, "", "the learning rate that was used"),
        field("samples_asked", INTEGER, "samples", "budget, over all ranks; null where it is in seconds"),
        field("samples_seen", INTEGER, "samples", "steps x batch size x ranks"),
        field("steps", INTEGER, "steps", "counted steps, without warmup"),
        field("warm_up_steps", INTEGER, "steps", "steps before time zero; in no rate"),
        field("wall_s", FLOAT, "s", "from the first launch to the end of training"),
        field("startup_s", FLOAT, "s", "from the first launch to time zero"),
        field("import_s", FLOAT, "s", "part of startup_s: imports, slowest rank"),
        field("compile_s", FLOAT, "s", "part of startup_s: forward and backward pass compiled; null: they were not"),
        field("warm_up_s", FLOAT, "s", "part of startup_s: steps on a state that is restored"),
        field("evaluation_s", FLOAT, "s", "spent on evaluations; in no rate"),
        field("checkpoint_s", FLOAT, "s", "spent on checkpoints; in no rate"),
        field("resumes", INTEGER, "", "how often training went on from a checkpoint"),
        field("lost_s", FLOAT, "s", "from checkpoints to where training went on: steps taken twice, waiting, starts"),
        field("train_s", FLOAT, "s", "time zero to the slowest rank's last step, less evaluation, checkpoints, lost_s"),
        field("samples_per_s", FLOAT, "samples/s", "samples_seen / train_s"),
        field("step_s", FLOAT, "s", "median time between the ends of two steps, slowest rank"),
        *(field(phase, FLOAT, "s", "median over steps of the mean over ranks") for phase in PHASES),
        field("forward_backward_s", FLOAT, "s", "median; where forward and backward are fused"),
        field("wait_s", FLOAT, "s", "median; part of exchange_exposed_s: waiting for the slowest rank"),
        field("move_s", FLOAT, "s", "median; part of exchange_exposed_s: the exchange itself"),
        field("exchange_busy_s", FLOAT, "s", "median; exchange including what overlaps the backward pass"),
        *(field(part, FLOAT, "s", f"median; {meaning}") for part, meaning in _PARTS.items()),
        field("staleness", FLOAT, "updates", "mean; of any rank, between a gradient's weights and its use"),
        field("staleness_max", FLOAT, "updates", "the largest of any gradient; both since training went on"),
        field("first_loss", FLOAT, "", "loss of step 1"),
        field("min_loss", FLOAT, "", "least loss of any step"),
        field("final_loss", FLOAT, "", "loss of the last step"),
        field(
            "loss_area_loss_s", FLOAT, "loss x s", "trapezoid of the loss over time; of a beaten run as far as it went"
        ),
        field("test_metric", FLOAT, "", "on the test set, at the end"),
        field("test_metric_name", TEXT, "", "accuracy (higher is better) or error (lower is better), or one's own"),
        field(
            "chance_metric", FLOAT, "", "test metric of the best constant answer: nothing was learnt from the inputs"
        ),
        field("own_metrics", TEXT, "JSON", "by name the value at the end, and which is better: metrics of own files"),
        field("peak_memory_bytes", INTEGER, "B", "largest over the ranks; host RSS, or device memory on a GPU"),
        *CONSUMPTION,
        field("device_used", TEXT, "", "cpu or cuda"),
        field("threads_used", INTEGER, "threads", "per rank"),
        field("cores", INTEGER, "cores", "usable on the busiest node"),
        field("hosts", INTEGER, "", "nodes"),
        field("core_wait_share", FLOAT, "", "of the time of the steps: a thread was ready and had no core; worst rank"),
        field("others_core_share", FLOAT, "", "share of the ranks' cores that other processes used; worst host"),
        field("throttled_by_quota_share", FLOAT, "", "of a CPU quota's periods: used up before their end; worst rank"),
        field("other_trainings", INTEGER, "", "of ddp-hpc on a node of this run, as it began or ended; busiest node"),
        field("oversubscribed", BOOL, "", "more ranks x threads than cores on a node: its times mean nothing"),
        field(
            "placement_verified",
            BOOL,
            "",
            "the ranks sat as `placement` asks; false: kept out of comparisons; null: not asked, or not to be told",
        ),
        field("ended_at", TEXT, "ISO 8601, UTC", "when the record was written"),
    ]
)

STEPS = pa.schema(
    [
        field("step", pa.int32(), "", "counted from 1; warmup steps are 0, -1, ..."),
        field("rank", pa.int32(), "", "MPI rank"),
        field("t_s", FLOAT, "s", "time zero to the slowest rank's end of the step; null in warmup"),
        field("loss", FLOAT, "", "sample-weighted mean over all ranks; null in warmup"),
        field("rank_loss", FLOAT, "", "mean over this rank's samples"),
        field("rank_t_s", FLOAT, "s", "time zero to this rank's end of the step"),
        field("step_s", FLOAT, "s", "this rank's step: the sum of its phases"),
        *(field(phase, FLOAT, "s", "phase of this rank's step; null: could not be told apart") for phase in PHASES),
        field("forward_backward_s", FLOAT, "s", "where forward and backward are fused"),
        field("wait_s", FLOAT, "s", "part of exchange_exposed_s: until the slowest rank arrived"),
        field("move_s", FLOAT, "s", "part of exchange_exposed_s: the rest of it"),
        field("exchange_busy_s", FLOAT, "s", "exchange including what overlaps the backward pass"),
        *(field(part, FLOAT, "s", meaning) for part, meaning in _PARTS.items()),
        field("warm_up", BOOL, "", "before time zero; in no rate"),
        field("sampled", BOOL, "", "its phases were measured, where those of most steps are fused"),
        field(
            "part_gradient_norm2",
            FLOAT,
            "",
            "squared norm of the gradient of a part of the global batch, a rank's or, of one rank, a half; mean over "
            "the parts; null where it was not sampled",
        ),
        field("gradient_norm2", FLOAT, "", "squared norm of the mean of these gradients; of both: before the step"),
    ]
)

EVALUATIONS = pa.schema(
    [
        field("step", pa.int32(), "", "after this step"),
        field("t_s", FLOAT, "s", "training time at that step; evaluation itself is not in it"),
        field("samples_seen", INTEGER, "samples", "over all ranks"),
        field("metric", FLOAT, "", "on the whole test set"),
        field("loss", FLOAT, "", "on the whole test set"),
        field("own_metrics", TEXT, "JSON", "by name the value on the whole test set: metrics of own files"),
    ]
)

TRACE = pa.schema(
    [
        field("step", pa.int32(), "", "that was traced, counted from 1"),
        field("rank", pa.int32(), "", "MPI rank"),
        field("begin_s", FLOAT, "s", "when it began, since the tracing did, on rank 0's clock"),
        field("step_s", FLOAT, "s", "the traced step, which is slower than others"),
        field("exchange_s", FLOAT, "s", "union of the intervals of the exchange; null if none was recognised"),
        field("compute_s", FLOAT, "s", "union of the intervals of operators or, on a GPU, of kernels"),
        field("exposed_s", FLOAT, "s", "union of the intervals of the exchange, less those of compute_s"),
        field("clock_offset_s", FLOAT, "s", "by how much this rank's clock was ahead of rank 0's"),
        field("clock_error_s", FLOAT, "s", "half of the fastest round trip: the most that may be wrong with that"),
    ]
)

GPU = pa.schema(
    [
        field("t_s", FLOAT, "s", "time zero to the sample, pauses included; negative before"),
        field("host", TEXT, "", "where it was sampled"),
        field("uuid", TEXT, "", "of the GPU, or of the MIG slice"),
        field("trained_s", FLOAT, "s", "training time then, as t_s of steps; null before time zero and after the end"),
        field("energy_j", FLOAT, "J", "of the training so far, by the counter, else by integrated power"),
        field("energy_counter_j", FLOAT, "J", "counter of the driver, since it was loaded"),
        field("power_w", FLOAT, "W", "now, where the GPU says that; else the mean of the last second"),
        field("utilisation", FLOAT, "", "share of the last 1/6 to 1 s in which any kernel ran, waiting ones included"),
        field("memory_used_bytes", FLOAT, "B", "of the GPU, by whomever"),
        field("sm_clock_mhz", FLOAT, "MHz", "of the multiprocessors"),
        field("memory_clock_mhz", FLOAT, "MHz", "of the memory"),
        field("temperature_c", FLOAT, "C", "of the chip"),
        field("throttle_reasons", FLOAT, "", "NVML's bits that say why clocks are not higher"),
        *(field(name, FLOAT, "B/s", f"{words} by the GPU, since the sample before") for name, words in _LINKS.items()),
    ]
)

METERED = [column.name for column in CONSUMPTION]  # columns of the run record that meters fill
SCHEMAS = {"run": RUN, "steps": STEPS, "evaluations": EVALUATIONS, "gpu": GPU, "trace": TRACE}
