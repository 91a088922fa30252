"""What a run leaves behind: how records are written and read.

What could not be measured is null, never 0, and the reason stands in the provenance.

Columns are read by name, so a record outlives the version that wrote it: a field of specs that it lacks has its
default, for that is what the run did; a measurement that it lacks is null; what only a newer version knows is ignored.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ddp_hpc.config.spec import COLUMN_DEFAULTS
from ddp_hpc.runs.attempt import RunFolder
from ddp_hpc.runs.schema import RUN, SCHEMA_VERSION, SCHEMAS
from ddp_hpc.system.files import replaced

if TYPE_CHECKING:
    import pyarrow.compute as pc


_PIECES = 100  # tables that are held before they become one


class RecordError(ValueError):
    """A record that cannot be read, or is of another schema version."""


def write(
    kind: str, columns: Mapping[str, Sequence[Any]], file: Path, metadata: Mapping[str, Any] | None = None
) -> None:
    """Write a record of a kind of `SCHEMAS`.

    The columns are some of that schema, all equally long; those left out become null, and so does every nan. The
    metadata are plain JSON values, kept in the file's metadata (`provenance`, ...).
    """
    write_pieces(kind, [columns], file, metadata)


def write_pieces(
    kind: str,
    pieces: Iterable[Mapping[str, Sequence[Any]]],
    file: Path,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write a record as `write` does, one piece of its rows after another; each becomes a row group."""
    notes = {"ddp_hpc.schema": f"{kind}/{SCHEMA_VERSION}"}
    notes |= {f"ddp_hpc.{key}": json.dumps(value) for key, value in (metadata or {}).items()}
    schema = SCHEMAS[kind].with_metadata(notes)
    compression = "none" if kind == "run" else "zstd"  # one row compressed is larger, and takes twice as long to read
    file.parent.mkdir(parents=True, exist_ok=True)
    with replaced(file) as temporary, pq.ParquetWriter(temporary, schema, compression=compression) as writer:
        for columns in pieces:
            unknown = set(columns) - set(schema.names)
            if unknown:
                raise KeyError(f"no column {sorted(unknown)} in {kind} records; expected: {', '.join(schema.names)}")
            rows = len(next(iter(columns.values()), ()))
            arrays = [
                _array(columns[one.name], one.type) if one.name in columns else pa.nulls(rows, one.type)
                for one in schema
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values as a column: numbers, truths or texts; None and nan become null.

    `pa.array` would import pandas to ask whether it was given one of its series: half a second at the end of each run.

    Raises:
        pa.ArrowInvalid: a value is not of that kind, such as 1.5 where integers are expected.
    """
    given = np.asarray(values)
    if given.dtype == object or pa.types.is_string(kind):
        missing = np.array([value is None or value != value for value in values], dtype=bool)  # nan is not itself
    else:
        missing = given != given
    wrong = pa.ArrowInvalid(f"given {list(values[:3])} ..., expected: values of type {kind}")
    if pa.types.is_string(kind):
        if not all(isinstance(value, str) or lacks for value, lacks in zip(values, missing, strict=True)):
            raise wrong
        texts = [b"" if lacks else value.encode() for value, lacks in zip(values, missing, strict=True)]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        content = [ends, np.frombuffer(b"".join(texts), dtype=np.uint8)]
    else:
        truths = len(given) if given.dtype == bool else 0
        if given.dtype == object:
            truths = sum(isinstance(value, bool | np.bool_) for value in values)
        if given.dtype.kind in "USM" or truths != (np.sum(~missing) if pa.types.is_boolean(kind) else 0):
            raise wrong
        there = np.where(missing, 0, given) if missing.any() else given
        with np.errstate(invalid="ignore"):  # what does not fit is another number on its way back
            numbers = there.astype(kind.to_pandas_dtype())
            if not np.array_equal(numbers.astype(there.dtype), there):
                raise wrong
        content = [np.packbits(numbers, bitorder="little") if pa.types.is_boolean(kind) else numbers]
    known = np.packbits(~missing, bitorder="little") if missing.any() else None
    buffers = [None if part is None else pa.py_buffer(np.ascontiguousarray(part)) for part in (known, *content)]
    return pa.Array.from_buffers(kind, len(missing), buffers)


def write_table(table: pa.Table, file: Path) -> None:
    """Write any table by rename, so that nobody ever sees half a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with replaced(file) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read(kind: str, file: Path, columns: Sequence[str] | None = None, rows: "pc.Expression | None" = None) -> pa.Table:
    """Return one record, or some of its columns: those of `SCHEMAS`, whichever the file has. May raise RecordError.

    `rows` chooses some rows by columns that are read; the others are never all in memory.
    """
    try:
        with pq.ParquetFile(file) as parquet:  # half the time of read_table, which prepares for many files
            found, expected = parquet.schema_arrow, SCHEMAS[kind]
            version = (found.metadata or {}).get(b"ddp_hpc.schema", b"none").decode()
            if version != f"{kind}/{SCHEMA_VERSION}":
                raise RecordError(
                    f"{file} has schema {version}, this version of ddp-hpc reads {kind}/{SCHEMA_VERSION}: read it with "
                    "the version that wrote it, or delete it and run the study again"
                )
            if found.equals(expected):
                return _rows(parquet, columns, rows)
            wanted = expected if columns is None else pa.schema([expected.field(name) for name in columns])
            known = set(wanted.names)
            return _conformed(_rows(parquet, [name for name in found.names if name in known], rows), wanted)
    except (OSError, pa.ArrowException) as error:
        raise RecordError(
            f"cannot read {file} (run {file.parent.name}): {error}; delete it and run the study again to make it anew"
        ) from None


def _rows(parquet: pq.ParquetFile, columns: Sequence[str] | None, rows: "pc.Expression | None") -> pa.Table:
    if rows is None:
        return parquet.read(columns)
    chosen = [pa.Table.from_batches([batch]).filter(rows) for batch in parquet.iter_batches(columns=columns)]
    return pa.concat_tables(chosen) if chosen else parquet.read(columns)


def _conformed(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Return the columns of `wanted`: as they are there, cast to its types, else their default, else null."""
    there = dict(zip(table.column_names, table.columns, strict=True))

    def column(field: pa.Field) -> pa.ChunkedArray | pa.Array:
        found = there.get(field.name)
        if found is None:
            return pa.repeat(pa.scalar(COLUMN_DEFAULTS.get(field.name), field.type), table.num_rows)
        try:
            return found if found.type == field.type else found.cast(field.type)
        except pa.ArrowException as error:
            raise pa.ArrowInvalid(f"column {field.name!r}: {error}; expected: {field.type}") from None

    return pa.Table.from_arrays([column(field) for field in wanted], schema=wanted.with_metadata(table.schema.metadata))


def hosts_of(file: Path) -> tuple[str, ...]:
    """Return the hosts of a run's ranks, each once, sorted, from its record's provenance; empty if that has none."""
    ranks = read_metadata(file).get("provenance", {}).get("ranks") or []
    return tuple(sorted({rank["host"] for rank in ranks if rank.get("host")}))


def processors_of(file: Path) -> tuple[str, ...]:
    """Return the models of what a run's ranks computed on, GPUs where they had some; empty if its record has none."""
    ranks = read_metadata(file).get("provenance", {}).get("ranks") or []
    models = {(rank.get("gpu") or {}).get("name") or rank.get("cpu") for rank in ranks}
    return tuple(sorted(filter(None, models)))


def read_metadata(file: Path) -> dict[str, Any]:
    """Return what `write` was given as metadata, e.g. `provenance`."""
    try:
        raw = pq.read_schema(file).metadata or {}
    except (OSError, pa.ArrowException) as error:
        raise RecordError(f"cannot read {file}: {error}") from None
    ours = {key.decode(): value for key, value in raw.items() if key.startswith(b"ddp_hpc.")}
    return {key.removeprefix("ddp_hpc."): json.loads(ours[key]) for key in ours if key != "ddp_hpc.schema"}


def read_run(file: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the record of a run, which is one row. May raise RecordError."""
    table = read("run", file, columns)
    if table.num_rows != 1:
        raise RecordError(f"{file} has {table.num_rows} rows, expected: one; delete it and run the study again")
    return table


def damage(folder: RunFolder) -> str | None:
    """Return why the records of a run do not count, after reading all. Whole ones without a seal are given one."""
    if (found := folder.damage(trust_dates=False)) or folder.sealed or not folder.has_record:
        return found
    try:
        for kind in folder.stamps():
            read(kind, folder.record(kind))
    except RecordError as error:
        return str(error)
    with suppress(OSError):
        folder.sealed = folder.entries()
    return None


def read_runs(files: Iterable[Path]) -> tuple[pa.Table, dict[Path, str]]:
    """Return the run records of many files as one table, in their order, and by file why others cannot be read."""
    tables, problems = [RUN.remove_metadata().empty_table()], {}
    for file in files:
        try:
            tables.append(read_run(file).replace_schema_metadata(None))
        except RecordError as error:
            problems[file] = str(error)
        if len(tables) > _PIECES:  # the columns of a table of one row take far more memory than their values
            tables = [pa.concat_tables(tables).combine_chunks()]
    return pa.concat_tables(tables), problems
