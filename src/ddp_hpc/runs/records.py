"""What a run leaves behind: the Parquet schemas, the statuses, and how both are read and written.

Every file of a kind has the same columns in the same order, whatever the machine: what could not be measured is
null, never 0, and the reason stands in the provenance. Unit and meaning of a column are in its field metadata.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ddp_hpc.profiling.phases import PARTS, PHASES
from ddp_hpc.runs.meter_columns import CONSUMPTION, GPU
from ddp_hpc.runs.meter_columns import field as _field
from ddp_hpc.system.files import replaced

SCHEMA_VERSION = 4


class RecordError(ValueError):
    """A record that cannot be read, or is of another schema version."""


_TEXT, _INT, _FLOAT, _BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()


_SPEC_FIELDS = [
    _field("model", _TEXT, "", "file in models/"),
    _field("model_options", _TEXT, "JSON", "its options that differ from their defaults"),
    _field("dataset", _TEXT, "", "file in data/"),
    _field("dataset_options", _TEXT, "JSON", "its options that differ from their defaults"),
    _field("exchange", _TEXT, "", "file in exchange/"),
    _field("exchange_options", _TEXT, "JSON", "its options that differ from their defaults"),
    _field("world_size", _INT, "ranks", "ranks that train together"),
    _field("batch_size", _INT, "samples", "per rank and step"),
    _field("learning_rate", _FLOAT, "", "at the base batch, before scaling"),
    _field("budget", _TEXT, "", "what was asked for"),
    _field("optimizer", _TEXT, "", "update rule"),
    _field("momentum", _FLOAT, "", "momentum of sgd"),
    _field("weight_decay", _FLOAT, "", "L2 penalty, not in the reported loss"),
    _field("seed", _INT, "", "of weights and sample order"),
    _field("sampling", _TEXT, "", "global or partitioned"),
    _field("dtype", _TEXT, "", "of weights and gradients"),
    _field("learning_rate_scaling", _TEXT, "", "none, linear or sqrt in k = global batch / base batch"),
    _field("base_batch_size", _INT, "samples", "global batch at which k = 1"),
    _field("learning_rate_warm_up_steps", _INT, "steps", "linear rise of the learning rate"),
    _field("evaluate_every_steps", _INT, "steps", "null: evaluated at the end only"),
    _field("device", _TEXT, "", "as asked; null: whatever there is"),
    _field("threads_per_rank", _INT, "threads", "as asked; null: cores / ranks of the node"),
    _field("precision", _TEXT, "", "arithmetic of float32 products: full, tf32 or bfloat16"),
    _field("data_placement", _TEXT, "", "where the dataset lies: device or host"),
    _field("compile", _BOOL, "", "forward and backward pass were compiled"),
    _field("capture", _TEXT, "", "as asked; what was captured is in the provenance"),
    _field("share_gpu", _BOOL, "", "ranks were allowed to share GPUs"),
    _field("placement", _TEXT, "", "as asked: packed or spread; null: as it came"),
    _field("ranks_per_node", _INT, "ranks", "as asked, where they are spread"),
    _field("partition", _TEXT, "", "as asked, of the cluster; null: its default"),
]

_PARTS = dict(
    zip(
        PARTS,
        (
            "part of exchange_exposed_s: gradients come in at a server; rank 0's in the run record",
            "part of exchange_exposed_s: their mean at a server",
            "part of exchange_exposed_s: weights go out from a server",
        ),
        strict=True,
    )
)

RUN = pa.schema(
    [
        _field("run", _TEXT, "", "identity: readable hint, spec hash, code hash"),
        _field("spec_hash", _TEXT, "", "hash of the canonical spec"),
        _field("code_hash", _TEXT, "", "hash of the code that this spec uses"),
        *_SPEC_FIELDS,
        _field("status", _TEXT, "", "ok, diverged or oom_gpu"),
        _field("reason", _TEXT, "", "why, where the status is not ok"),
        _field("parameters", _INT, "", "trainable parameters of the model"),
        _field("learning_rate_scaled", _FLOAT, "", "the learning rate that was used"),
        _field("samples_asked", _INT, "samples", "budget, over all ranks; null where it is in seconds"),
        _field("samples_seen", _INT, "samples", "steps x batch size x ranks"),
        _field("steps", _INT, "steps", "counted steps, without warm-up"),
        _field("warm_up_steps", _INT, "steps", "steps before time zero; in no rate"),
        _field("wall_s", _FLOAT, "s", "from the first launch to the end of training"),
        _field("startup_s", _FLOAT, "s", "from the first launch to time zero"),
        _field("import_s", _FLOAT, "s", "part of startup_s: imports, slowest rank"),
        _field("compile_s", _FLOAT, "s", "part of startup_s: forward and backward pass compiled; null: they were not"),
        _field("warm_up_s", _FLOAT, "s", "part of startup_s: steps on a state that is restored"),
        _field("evaluation_s", _FLOAT, "s", "spent on evaluations; in no rate"),
        _field("checkpoint_s", _FLOAT, "s", "spent on checkpoints; in no rate"),
        _field("resumes", _INT, "", "how often training went on from a checkpoint"),
        _field("lost_s", _FLOAT, "s", "from checkpoints to where training went on: steps taken twice, waiting, starts"),
        _field(
            "train_s",
            _FLOAT,
            "s",
            "time zero to the slowest rank's last step, without evaluations, checkpoints and what was lost",
        ),
        _field("samples_per_s", _FLOAT, "samples/s", "samples_seen / train_s"),
        _field("step_s", _FLOAT, "s", "median time between the ends of two steps, slowest rank"),
        *(_field(phase, _FLOAT, "s", "median over steps of the mean over ranks") for phase in PHASES),
        _field("forward_backward_s", _FLOAT, "s", "median; where forward and backward are fused"),
        _field("wait_s", _FLOAT, "s", "median; part of exchange_exposed_s: waiting for the slowest rank"),
        _field("move_s", _FLOAT, "s", "median; part of exchange_exposed_s: the exchange itself"),
        _field("exchange_busy_s", _FLOAT, "s", "median; exchange including what overlaps the backward pass"),
        *(_field(part, _FLOAT, "s", f"median; {meaning}") for part, meaning in _PARTS.items()),
        _field("staleness", _FLOAT, "updates", "mean; of other ranks between a gradient's weights and its use"),
        _field("staleness_max", _FLOAT, "updates", "the largest of any gradient; both since training went on"),
        _field("first_loss", _FLOAT, "", "loss of step 1"),
        _field("min_loss", _FLOAT, "", "least loss of any step"),
        _field("final_loss", _FLOAT, "", "loss of the last step"),
        _field(
            "loss_area_loss_s",
            _FLOAT,
            "loss x s",
            "trapezoid of the loss over time, from step 1; null if not ok",
        ),
        _field("test_metric", _FLOAT, "", "on the test set, at the end"),
        _field("test_metric_name", _TEXT, "", "accuracy (higher is better) or error (lower is better)"),
        _field("peak_memory_bytes", _INT, "B", "largest over the ranks; host RSS, or device memory on a GPU"),
        *CONSUMPTION,
        _field("device_used", _TEXT, "", "cpu or cuda"),
        _field("threads_used", _INT, "threads", "per rank"),
        _field("cores", _INT, "cores", "usable on the busiest node"),
        _field("hosts", _INT, "", "nodes"),
        _field(
            "core_wait_share",
            _FLOAT,
            "",
            "share of the time of the steps in which a thread was ready and had no core; worst rank",
        ),
        _field("others_core_share", _FLOAT, "", "share of the ranks' cores that other processes used; worst host"),
        _field("oversubscribed", _BOOL, "", "more ranks x threads than cores on a node: its times mean nothing"),
        _field(
            "placement_verified",
            _BOOL,
            "",
            "the ranks sat as `placement` asks; false: kept out of comparisons; null: not asked, or not to be told",
        ),
        _field("ended_at", _TEXT, "ISO 8601, UTC", "when the record was written"),
    ]
)

STEPS = pa.schema(
    [
        _field("step", pa.int32(), "", "counted from 1; warm-up steps are 0, -1, ..."),
        _field("rank", pa.int32(), "", "MPI rank"),
        _field("t_s", _FLOAT, "s", "time zero to the slowest rank's end of the step; null in warm-up"),
        _field("loss", _FLOAT, "", "sample-weighted mean over all ranks; null in warm-up"),
        _field("rank_loss", _FLOAT, "", "mean over this rank's samples"),
        _field("rank_t_s", _FLOAT, "s", "time zero to this rank's end of the step"),
        _field("step_s", _FLOAT, "s", "this rank's step: the sum of its phases"),
        *(
            _field(phase, _FLOAT, "s", "phase of this rank's step; null where it could not be told apart")
            for phase in PHASES
        ),
        _field("forward_backward_s", _FLOAT, "s", "where forward and backward are fused"),
        _field("wait_s", _FLOAT, "s", "part of exchange_exposed_s: until the slowest rank arrived"),
        _field("move_s", _FLOAT, "s", "part of exchange_exposed_s: the rest of it"),
        _field("exchange_busy_s", _FLOAT, "s", "exchange including what overlaps the backward pass"),
        *(_field(part, _FLOAT, "s", meaning) for part, meaning in _PARTS.items()),
        _field("warm_up", _BOOL, "", "before time zero; in no rate"),
        _field("sampled", _BOOL, "", "its phases were measured, where those of most steps are fused"),
    ]
)

EVALUATIONS = pa.schema(
    [
        _field("step", pa.int32(), "", "after this step"),
        _field("t_s", _FLOAT, "s", "training time at that step; evaluation itself is not in it"),
        _field("samples_seen", _INT, "samples", "over all ranks"),
        _field("metric", _FLOAT, "", "on the whole test set"),
        _field("loss", _FLOAT, "", "on the whole test set"),
    ]
)

TRACE = pa.schema(
    [
        _field("step", pa.int32(), "", "that was traced, counted from 1"),
        _field("rank", pa.int32(), "", "MPI rank"),
        _field("begin_s", _FLOAT, "s", "when it began, since the tracing did, on rank 0's clock"),
        _field("step_s", _FLOAT, "s", "the traced step, which is slower than others"),
        _field("exchange_s", _FLOAT, "s", "union of the intervals of the exchange; null if none was recognised"),
        _field("compute_s", _FLOAT, "s", "union of the intervals of operators or, on a GPU, of kernels"),
        _field("exposed_s", _FLOAT, "s", "union of the intervals of the exchange, less those of compute_s"),
        _field("clock_offset_s", _FLOAT, "s", "by how much this rank's clock was ahead of rank 0's"),
        _field("clock_error_s", _FLOAT, "s", "half of the fastest round trip: the most that may be wrong with that"),
    ]
)

METERED = [column.name for column in CONSUMPTION]  # columns of the run record that meters fill
SCHEMAS = {"run": RUN, "steps": STEPS, "evaluations": EVALUATIONS, "gpu": GPU, "trace": TRACE}


def write(
    kind: str, columns: Mapping[str, Sequence[Any]], file: Path, metadata: Mapping[str, Any] | None = None
) -> None:
    """Write a record: to a temporary name in the same folder, then renamed.

    Args:
        kind: of `SCHEMAS`.
        columns: some columns of that schema, all equally long; those left out become null, and so does every nan.
        file: where to.
        metadata: plain JSON values, kept in the file's metadata (`provenance`, ...).

    Raises:
        KeyError: a column that the schema does not have.
    """
    schema = SCHEMAS[kind]
    unknown = set(columns) - set(schema.names)
    if unknown:
        raise KeyError(f"no column {sorted(unknown)} in {kind} records; expected: {', '.join(schema.names)}")
    rows = len(next(iter(columns.values()), ()))
    arrays = [pa.array(columns.get(field.name, [None] * rows), type=field.type, from_pandas=True) for field in schema]
    notes = {"ddp_hpc.schema": f"{kind}/{SCHEMA_VERSION}"}
    notes |= {f"ddp_hpc.{key}": json.dumps(value) for key, value in (metadata or {}).items()}
    table = pa.Table.from_arrays(arrays, schema=schema.with_metadata(notes))
    write_table(table, file)


def write_table(table: pa.Table, file: Path) -> None:
    """Write any table by rename, so that nobody ever sees half a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with replaced(file) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read(kind: str, file: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return one record, or some of its columns.

    Raises:
        RecordError: naming the file, if it cannot be read or has another schema.
    """
    try:
        with pq.ParquetFile(file) as parquet:  # half the time of read_table, which prepares for many files
            _check_version(kind, file, parquet.schema_arrow)
            return parquet.read(columns)
    except (OSError, pa.ArrowException) as error:
        raise RecordError(
            f"cannot read {file} (run {file.parent.name}): {error}; delete it and run the study again to make it anew"
        ) from None


def hosts_of(file: Path) -> tuple[str, ...]:
    """Return the hosts of a run's ranks, each once, sorted, from its record's provenance; empty if that has none."""
    ranks = read_metadata(file).get("provenance", {}).get("ranks") or []
    return tuple(sorted({rank["host"] for rank in ranks if rank.get("host")}))


def read_metadata(file: Path) -> dict[str, Any]:
    """Return what `write` was given as metadata, e.g. `provenance`."""
    try:
        raw = pq.read_schema(file).metadata or {}
    except (OSError, pa.ArrowException) as error:
        raise RecordError(f"cannot read {file}: {error}") from None
    prefix = b"ddp_hpc."
    return {
        key[len(prefix) :].decode(): json.loads(value)
        for key, value in raw.items()
        if key.startswith(prefix) and key != b"ddp_hpc.schema"
    }


def read_runs(files: Iterable[Path]) -> pa.Table:
    """Return the run records of many files as one table, in their order.

    Raises:
        RecordError: naming every file that cannot be read.
    """
    tables, problems = [], []
    for file in files:
        try:
            tables.append(read("run", file).replace_schema_metadata(None))
        except RecordError as error:
            problems.append(str(error))
    if problems:
        raise RecordError("\n".join(problems))
    return pa.concat_tables([RUN.remove_metadata().empty_table(), *tables])


def _check_version(kind: str, file: Path, schema: pa.Schema) -> None:
    found = (schema.metadata or {}).get(b"ddp_hpc.schema", b"none").decode()
    wanted = f"{kind}/{SCHEMA_VERSION}"
    if found != wanted or not schema.equals(SCHEMAS[kind]):
        raise RecordError(
            f"{file} has schema {found}, this version of ddp-hpc reads {wanted}: it was written by another version; "
            "read it with that one, or delete it and run the study again"
        )
