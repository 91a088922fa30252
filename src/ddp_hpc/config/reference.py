"""The keys of studies and machines for people and editors: the tables in config/README.md, and config/*.schema.json.

`python -m ddp_hpc.config.reference` writes them from the models, so types, defaults and meanings come from one place.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ddp_hpc.config.budget import Budget
from ddp_hpc.config.claims import (
    Bounds,
    Cells,
    Claim,
    Contradicted,
    Count,
    Expect,
    Forecast,
    Ours,
    Predicted,
    Ratio,
    Trend,
)
from ddp_hpc.config.machine import KnownLink, Links, Machine, Partition, Retries
from ddp_hpc.config.program import Program
from ddp_hpc.config.publication import Creator, Funding, Publication
from ddp_hpc.config.settings import ConfigFile, ProfileConfig
from ddp_hpc.config.spec import COMPONENTS, RunSpec
from ddp_hpc.config.study import GLOBAL_BATCH, Pairs, Repeats, Rules, Study, Target, Trace

_CLAIMS = (Claim, Ours, Cells, Ratio, Trend, Count, Predicted, Forecast, Expect, Contradicted, Bounds)
_PARTS = (Program, Budget, Trace, Pairs, Rules, Target, *_CLAIMS, Publication)
_MACHINE = (Machine, Partition, Retries, Links, KnownLink)
MODELS: Mapping[str, type[BaseModel]] = {"spec": RunSpec} | {
    model.__name__.lower(): model
    for model in (Study, Repeats, *_PARTS, Creator, Funding, *_MACHINE, ConfigFile, ProfileConfig)
}
DIALECT = "https://json-schema.org/draft/2020-12/schema"
OPTION = f"^({'|'.join(COMPONENTS)})\\.[a-z_0-9]+$"

_TYPES = {
    "integer": "integer",
    "number": "number",
    "string": "string",
    "boolean": "`true`, `false`",
    "array": "list",
    "object": "mapping",
}
_BOUNDS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}


def table(model: type[BaseModel]) -> str:
    """Return the keys of a model as a Markdown table: key, type, default, meaning."""
    whole = model.model_json_schema()
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, field in whole["properties"].items():
        default = "required" if name in whole.get("required", []) else f"`{json.dumps(_default(model, name))}`"
        lines.append(f"| `{name}` | {_allowed(field)} | {default} | {field.get('description', '')} |")
    return "\n".join(lines)


def _default(model: type[BaseModel], name: str) -> Any:
    default = model.model_fields[name].get_default(call_default_factory=True, validated_data={})
    return default.model_dump(exclude_defaults=True) if isinstance(default, BaseModel) else default


def _allowed(field: Mapping[str, Any]) -> str:
    if several := field.get("anyOf", field.get("oneOf")):
        return " or ".join(_allowed(one) for one in several)
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "$ref" in field:
        kind = field["$ref"].rsplit("/", 1)[1].lower()
        return "a name, or `{name: ..., <option>: ...}`" if kind == "component" else f"mapping, see [{kind}](#{kind})"
    if "patternProperties" in field:
        (named,) = field["patternProperties"].values()
        kind = named["$ref"].rsplit("/", 1)[1].lower()
        return f"mapping of a name to a [{kind}](#{kind})"
    if field["type"] == "null":
        return "`null`"
    bounds = [f"{sign} {_power(field[key])}" for key, sign in _BOUNDS.items() if key in field]
    return " ".join([_TYPES[field["type"]], ", ".join(bounds)]).strip()


def _power(bound: float) -> str:
    exponent = int(bound).bit_length() - 1
    return f"2^{exponent}" if exponent > 16 and bound == 2**exponent else f"{bound:,}"


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a study file, with the fields of a spec under `base` and `grid`."""
    study, spec = Study.model_json_schema(), RunSpec.model_json_schema()
    string = {"type": "string"}
    component = {"anyOf": [string, {"type": "object", "properties": {"name": string}, "required": ["name"]}]}
    total = {"type": "integer", "exclusiveMinimum": 0, "description": "batch_size x world_size, instead of batch_size"}
    fields = spec["properties"] | {GLOBAL_BATCH: total}
    axes = {name: _one_or_more(f"field.{name}") for name in fields}
    options = {"type": "object", "patternProperties": {OPTION: {}}, "additionalProperties": False}
    study["$defs"] |= spec["$defs"] | {f"field.{name}": field for name, field in fields.items()}
    study["$defs"] |= {
        "Component": component,
        "base": options | {"properties": {name: _see(f"field.{name}") for name in fields}},
        "axes": options | {"properties": axes},
        "grid": options | {"properties": axes | dict.fromkeys(("zip", "exclude", "when"), _one_or_more("axes"))},
    }
    for name, shape in (("base", _see("base")), ("grid", _one_or_more("grid"))):
        study["properties"][name] = {"description": study["properties"][name]["description"]} | shape
    return {"$schema": DIALECT, **study}


def machine_schema() -> dict[str, Any]:
    """Return the JSON Schema of a machine file."""
    return {"$schema": DIALECT, **Machine.model_json_schema()}


def _see(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def _one_or_more(name: str) -> dict[str, Any]:
    return {"anyOf": [_see(name), {"type": "array", "items": _see(name), "minItems": 1}]}


def filled(page: str) -> str:
    """Return a Markdown page with the table of a model between each `<!-- keys: NAME -->` and `<!-- end -->`."""

    between = re.compile(r"(?<=<!-- keys: )(\w+) -->\n.*?(?=<!-- end -->)", re.DOTALL)
    return between.sub(lambda found: f"{found[1]} -->\n{table(MODELS[found[1]])}\n", page)


def write(config: Path) -> None:
    """Write the tables and the schemas in the folder `config` anew."""
    page = config / "README.md"
    page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    for name, content in (("study", schema()), ("machine", machine_schema())):
        (config / f"{name}.schema.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path("config"))
