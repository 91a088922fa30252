"""The tables and records as a Frictionless Data Package: types, units and meanings of columns, digests of files."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ddp_hpc.analysis.definitions import about
from ddp_hpc.analysis.formatting import heading
from ddp_hpc.config.publication import LICENCES
from ddp_hpc.publication.citation import description
from ddp_hpc.publication.pack import TABLES, Pack, digest, folder_name
from ddp_hpc.runs import records

PROFILE = "https://specs.frictionlessdata.io/schemas/data-package.json"
_TYPES = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_integer, "integer"),
    (pa.types.is_floating, "number"),
    (lambda kind: True, "string"),
)


def of(pack: Pack) -> dict[str, Any]:
    """Return what datapackage.json has to say."""
    said = pack.publication
    return {
        "name": folder_name(pack).replace("_", "-"),
        "title": pack.title,
        "description": description(pack),
        "profile": "data-package",
        "created": pack.newest.isoformat(),
        "licenses": [{"name": said.licence, "path": LICENCES[str(said.licence)]}],
        "contributors": [
            {
                "title": creator.name,
                "role": "author",
                **({"organization": creator.affiliation} if creator.affiliation else {}),
            }
            for creator in said.creators
        ],
        "keywords": list(said.keywords),
        "resources": [*_tables(pack), *_records(pack)],
    }


def _tables(pack: Pack) -> list[dict[str, Any]]:
    """Return a resource per table, of its CSV file."""
    found = []
    for file in sorted((pack.root / TABLES).glob("*.parquet")):
        about = records.read_metadata(file)
        resource = _resource(pack, f"tables/{file.stem}.csv", f"table-{file.stem}".replace("_", "-"))
        fields = [_field(column) for column in pq.read_schema(file)]
        found.append(
            resource
            | {"profile": "tabular-data-resource", "title": about["caption"], "description": about["coverage"]}
            | {"schema": {"fields": fields, "missingValues": [""]}}
        )
    return found


def _field(column: pa.Field) -> dict[str, str]:
    """Return a column: its type, its unit, and what it means, as far as that is known."""
    unit, meaning = about(column.name)
    kind = next(name for fits, name in _TYPES if fits(column.type))
    found = {"name": column.name, "type": kind, "title": heading(column.name), "description": meaning, "unit": unit}
    return {key: text for key, text in found.items() if text}


def _records(pack: Pack) -> list[dict[str, Any]]:
    """Return a resource per record: its columns stand in the file itself, with units and meanings."""
    found = []
    for run in pack.runs:
        for file in sorted((pack.root / "runs" / run).glob("*.parquet")):
            name = f"{file.stem}-{run}".lower().replace("_", "-")
            resource = _resource(pack, f"runs/{run}/{file.name}", name)
            found.append(resource | {"profile": "data-resource", "type": "file", "title": f"{file.stem} of {run}"})
    return found


def _resource(pack: Pack, path: str, name: str) -> dict[str, Any]:
    file = pack.root / path
    kind = {".csv": ("csv", "text/csv"), ".parquet": ("parquet", "application/vnd.apache.parquet")}[file.suffix]
    return {
        "name": name,
        "path": path,
        "format": kind[0],
        "mediatype": kind[1],
        "encoding": "utf-8",
        "bytes": file.stat().st_size,
        "hash": f"sha256:{digest(file)}",
    }
