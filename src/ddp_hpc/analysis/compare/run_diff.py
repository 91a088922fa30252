"""`ddp-hpc diff`: differences of two runs in spec, code, versions, hosts, clocks, environment, job and results."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ddp_hpc.analysis.columns import show
from ddp_hpc.analysis.tables._frame import columns
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.runs import records
from ddp_hpc.runs.attempt import RunFolder
from ddp_hpc.runs.project import Project
from ddp_hpc.runs.schema import RUN
from ddp_hpc.system.terminal import in_json, table_lines

_MEASURED = columns(
    "status reason steps train_s step_s samples_per_s exchange_exposed_s wait_s startup_s final_loss test_metric",
    "peak_memory_bytes energy_j",
    *(name for name in RUN.names if "clock" in name),
)
_PER_PROCESS = ("rank", "pid")  # differ by nature
MOST_LETTERS = 60  # of a value on the screen

Facts = dict[str, dict[str, Any]]
Difference = dict[str, Any]


def main(given_a: str, given_b: str, as_json: bool) -> int:
    """Print what differs between two finished runs, nothing of what is equal, and return 0.

    A run is given by its name, by a beginning of it that no other has, or by a path to its folder.

    Raises:
        ValueError: there is no such finished run, or several.
        RecordError: its record cannot be read.
    """
    a, b = find(given_a), find(given_b)
    found = differences(facts(a), facts(b))
    if as_json:
        print(in_json({"a": str(a), "b": str(b), "differences": found}))
    else:
        print("\n".join(lines(a, b, found)))
    return 0


def find(given: str) -> Path:
    """Return the folder of a finished run."""
    path = Path(given)
    for folder in (path, path.parent):
        if folder.name and (run := RunFolder(folder)).has_record:
            if damage := run.damage():
                raise ValueError(f"{given}: {damage}")
            return folder
    if path.name != given:
        raise ValueError(f"{given}: no finished run lies there; expected: a folder with a run.parquet")
    store = Project.here().store
    matching = [run.path for run in store.finished_runs() if run.path.name.startswith(given)]
    if len(matching) != 1:
        names = ", ".join(folder.name for folder in matching[:5])
        count = f"{len(matching)} finished runs begin so: {names}" if matching else "no finished run begins so"
        raise ValueError(
            f"{given}: {count}; expected: a name that only one in {store.runs} has, or a path to its folder"
        )
    return matching[0]


def facts(folder: Path) -> Facts:
    """Return what is known of a run by section and name; what does not exist is left out."""
    file = RunFolder(folder).record()
    row = records.read_run(file).to_pylist()[0]
    metadata = records.read_metadata(file)
    provenance = metadata.get("provenance", {})
    flat = {name: dict(_flat(provenance.get(name) or {})) for name in ("software", "source", "environment")}
    ranks = _of_ranks(provenance.get("ranks", []))
    rest = {name: provenance[name] for name in ("gradient_path", "slurm_job") if provenance.get(name) is not None}
    command = " ".join(provenance.get("command") or [])
    sections = {
        "spec": {name: row[name] for name in SPEC_COLUMNS},
        "code": metadata.get("files", {}),
        "source": flat["source"],
        "versions": flat["software"],
        "hosts": {name: value for name, value in ranks.items() if not name.startswith("clock")},
        "clocks": {name: value for name, value in ranks.items() if name.startswith("clock")},
        "job": rest | {"command": command.replace(str(row["run"]), "RUN")},
        "environment": flat["environment"],
        "what is null": provenance.get("null_columns", {}),
        "result": {name: row[name] for name in _MEASURED},
    }
    return {name: {key: value for key, value in found.items() if value is not None} for name, found in sections.items()}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _of_ranks(ranks: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return each fact of the ranks: one value that all share, or a value of each rank, in their order."""
    rows = [dict(_flat(rank)) for rank in ranks]
    found = {}
    for name in dict.fromkeys(name for row in rows for name in row if name not in _PER_PROCESS):
        values = [row.get(name) for row in rows]
        found[name] = values[0] if all(value == values[0] for value in values) else values
    return found


def differences(a: Facts, b: Facts) -> dict[str, list[Difference]]:
    """Return by section the facts that are not equal; one that only one run has is null for the other."""
    found = {
        section: [
            {"name": name, "a": a[section].get(name), "b": b[section].get(name)}
            for name in a[section] | b[section]
            if a[section].get(name) != b[section].get(name)
        ]
        for section in a
    }
    return {section: those for section, those in found.items() if those}


def lines(a: Path, b: Path, found: Mapping[str, list[Difference]]) -> list[str]:
    """Return the differences for reading, section after section."""
    text = [f"A: {a.name}", f"B: {b.name}"]
    if a.name == b.name:
        text = [f"A: {a}", f"B: {b}"]
    if not found:
        return [*text, "nothing differs"]
    for section, those in found.items():
        rows = [_row(section, one) for one in those]
        text += ["", section, *(f"  {line}" for line in table_lines(rows)[1:])]
    return [*text, *_hint(found)]


def _row(section: str, one: Difference) -> dict[str, str]:
    if section == "code":
        states = {(True, False): "is not in A", (False, True): "is not in B"}
        return {"name": one["name"], "a": states.get((one["a"] is None, one["b"] is None), "differs")}
    row = {"name": one["name"], "a": _text(one["a"]), "b": _text(one["b"])}
    if section == "result" and all(isinstance(one[side], int | float) and one[side] for side in "ab"):
        row["change"] = f"{100 * (one['b'] / one['a'] - 1):+.2f} %"
    return row


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        nested = any(isinstance(one, list | str) for one in value)
        text = ("; " if nested else ",").join(map(_text, value))
    else:
        text = show(value)
    text = " ".join(text.split())
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 3]}..."


def _hint(found: Mapping[str, list[Difference]]) -> list[str]:
    """Say how to see the change of code, where git knows both."""
    commit = next((one for one in found.get("source", []) if one["name"] == "commit" and one["a"] and one["b"]), None)
    files = [one["name"] for one in found.get("code", []) if one["name"].endswith(".py")]
    if commit is None or not files:
        return []
    paths = " ".join(f"src/ddp_hpc/{name}" for name in files)
    return ["", f"git diff {commit['a'][:12]} {commit['b'][:12]} -- {paths}"]
