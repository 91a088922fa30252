"""What a pack is made from, copied into it: records, specs, ends of attempts, study, code, versions."""

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from importlib import metadata
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from ruamel.yaml import YAML

from ddp_hpc import __version__
from ddp_hpc.config.publication import Publication
from ddp_hpc.publication import pack as names
from ddp_hpc.publication.pack import Pack
from ddp_hpc.publication.private import Private, texts_of
from ddp_hpc.runs import identity, records
from ddp_hpc.runs.attempt import RECORDS, RunFolder, Store
from ddp_hpc.runs.ending import classify, written
from ddp_hpc.runs.state import state_of
from ddp_hpc.runs.study_runs import Planned, StudyRuns
from ddp_hpc.system.files import write_json

KINDS = ("trace", *RECORDS)
LOSSES = ("step", "rank", "t_s", "loss", "warm_up")  # columns of steps, of which the first rank's are those of all
KEPT = b"ddp_hpc.kept"


def copy(study_runs: StudyRuns, study: Path, machine: Path | None, said: Publication, root: Path) -> None:
    """Copy the evidence of a study into the folder of a pack, as it is; `study` and `machine` are files."""
    for planned in study_runs.planned:
        _copy_run(study_runs.store, planned, Store(root).run(planned.run))
    shutil.copyfile(study, root / names.STUDY)
    for name, hashed in (Pack(root).own_outputs | files_of(study_runs.planned)).items():
        _copy_code(study_runs.store, name, hashed, root / names.place_of(name))
    if machine:
        shutil.copyfile(machine, root / names.MACHINE)
    (root / names.PUBLICATION).write_text(_in_yaml(said.model_dump(mode="json", exclude_defaults=True)))
    (root / names.LOCK).parent.mkdir()
    (root / names.LOCK).write_text("\n".join(lock(software_of(study_runs))) + "\n")


def seal(folder: RunFolder) -> None:
    """Seal the records of a run in a pack: by size and digest, without dates, which no copy keeps."""
    if all(folder.record(kind).is_file() for kind in RECORDS):
        folder.sealed = {kind: [entry[0], 0, entry[2]] for kind, entry in folder.entries().items()}


def keep_losses(root: Path) -> None:
    """Keep of the steps in a pack the first rank's alone, and of them the losses and when each step ended.

    The other columns become null: what they mean stays told, and they take no room.
    """
    for file in sorted(root.glob(f"{names.RUNS}/*/steps.parquet")):
        steps = records.read("steps", file, rows=pc.field("rank") == 0)
        nothing = {one.name: pa.nulls(len(steps), one.type) for one in steps.schema if one.name not in LOSSES}
        columns = [nothing.get(name, steps[name]) for name in steps.column_names]
        about = (steps.schema.metadata or {}) | {KEPT: b'"losses"'}
        records.write_table(pa.Table.from_arrays(columns, schema=steps.schema.with_metadata(about)), file)


def only_losses(root: Path) -> bool:
    """Return whether the steps in a pack are those that `keep_losses` has left."""
    files = root.glob(f"{names.RUNS}/*/steps.parquet")
    return any(KEPT in (pq.read_schema(file).metadata or {}) for file in files)


def _copy_run(store: Store, planned: Planned, folder: RunFolder) -> None:
    """Copy what is known of a run: its spec, its records if it has some that count, how its attempts ended."""
    folder.path.mkdir(parents=True)
    run, (_, spec_hash, code_hash) = store.run(planned.run), identity.parts(planned.run)
    hashes = {"spec_hash": spec_hash, "code_hash": code_hash, "files": identity.fingerprints(planned.spec)}
    folder.plan = {"run": planned.run, "spec": planned.spec.canonical, **hashes}
    for kind in KINDS if run.finished else ():
        if run.record(kind).is_file():
            shutil.copyfile(run.record(kind), folder.record(kind))
    state = state_of(store, planned.run)
    for attempt in run.attempts:
        ending = classify(written(attempt))
        end = {"status": ending.status, "reason": ending.reason} if ending else {"status": "cancelled", "reason": None}
        if attempt.number == run.attempts[-1].number and not run.finished:
            end = {"status": state.status, "reason": state.reason}
        to = folder.path / "attempts" / str(attempt.number)
        to.mkdir(parents=True)
        write_json(to / "ended.json", end)


def files_of(planned: Iterable[Planned]) -> dict[str, str]:
    """Return the hash of each file that decides results of some run, by its name (`identity.file_of`)."""
    found = {name: hashed for one in planned for name, hashed in identity.fingerprints(one.spec).items()}
    return {name: found[name] for name in sorted(found) if name != identity.VERSION}


def _copy_code(store: Store, name: str, hashed: str, to: Path) -> None:
    """Copy a file as it was when the first run was trained by it, or as it is now, if only comments can differ."""
    to.parent.mkdir(parents=True, exist_ok=True)
    kept = store.code(hashed)
    shutil.copyfile(kept if kept.is_file() else identity.file_of(name), to)


def code_hash_of(file: Path) -> str:
    """Return the hash of a file as runs count it: of its meaning, if it is Python."""
    return identity.file_hash(file) if file.suffix == ".py" else identity.content_hash(file)


def software_of(study_runs: StudyRuns) -> dict[str, set[str]]:
    """Return which versions the records name, by software: usually one each."""
    found: dict[str, set[str]] = {}
    for planned in study_runs.planned:
        if study_runs.store.finished(planned.run):
            about = records.read_metadata(study_runs.store.file(planned.run)).get("provenance", {})
            for name, version in about.get("software", {}).items():
                found.setdefault(name, set()).add(str(version))
    return found


def lock(trained_with: dict[str, set[str]]) -> list[str]:
    """Return what pip installs for an environment as the runs had it: versions of their records, else those here."""
    pins = {_normal(name): metadata.version(name) for name in _needed("ddp-hpc")}
    for name in ("torch", "numpy"):
        if len(versions := trained_with.get(name, set())) == 1:
            pins[name] = min(versions).partition("+")[0]  # without its build, e.g. `+cpu`
    told = (f"{name} {', '.join(sorted(trained_with.get(name, ())))}" for name in ("python", "torch", "numpy", "mpi"))
    return [
        f"# ddp-hpc {__version__} and what it needs. torch and numpy: as the runs were trained; others: as the tables",
        "# and figures were made. The records name: " + "; ".join(line for line in told if not line.endswith(" ")),
        *(f"{name}=={pins[name]}" for name in sorted(pins)),
    ]


def _needed(root: str) -> set[str]:
    """Return the packages that a package needs, directly or not, of those that are installed; extras left out."""
    found: set[str] = set()
    waiting = [root]
    while waiting:
        for line in metadata.requires(waiting.pop()) or ():
            name = re.split(r"[^\w.\-]", line, maxsplit=1)[0]
            if "extra ==" not in line and _normal(name) not in map(_normal, found) and _installed(name):
                found.add(name)
                waiting.append(name)
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def _in_yaml(values: Any) -> str:
    text, yaml = StringIO(), YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.allow_unicode, yaml.width = False, True, 100
    yaml.dump(values, text)
    return text.getvalue()


def private_in(root: Path, found: Private) -> bool:
    """Note what looks private in the evidence of a pack; return whether some stands where it decides a hash."""
    tables = {file: pq.read_table(file, columns=_texts(file)) for file in sorted(root.glob("runs/*/*.parquet"))}
    for table in tables.values():
        for name, raw in (table.schema.metadata or {}).items():
            if name.startswith(b"ddp_hpc."):
                found.learn({name.decode().removeprefix("ddp_hpc."): json.loads(raw)} if name != _SCHEMA else None)
    if (root / names.MACHINE).is_file():
        found.learn(YAML(typ="safe", pure=True).load((root / names.MACHINE).read_text()))
    for table in tables.values():
        for text in texts_of(table):
            found.look(text, "records")
    for file in _others(root):
        found.look(file.read_text(), file.relative_to(root).as_posix() if file.parent == root else "ends of attempts")
    fixed = Private(found.kinds)
    for file in _fixed(root):
        text = file.read_text(errors="replace")
        for private in (found, fixed):
            private.look(text, file.relative_to(root).as_posix())
    return bool(fixed.places)


_SCHEMA = b"ddp_hpc.schema"


def _texts(file: Path) -> list[str]:
    return [name for name in ("host", "reason") if name in pq.read_schema(file).names]


def _others(root: Path) -> Iterator[Path]:
    """Yield the texts in which words may be replaced."""
    if (root / names.MACHINE).is_file():
        yield root / names.MACHINE
    yield from sorted(root.glob("runs/*/attempts/*/ended.json"))


def _fixed(root: Path) -> Iterator[Path]:
    """Yield the texts that decide hashes: in them nothing may be replaced."""
    yield root / names.STUDY
    for folder in (names.CODE, names.PROJECT):
        yield from (file for file in sorted((root / folder).rglob("*")) if file.is_file())


def redact(root: Path, found: Private) -> None:
    """Put other words in place of what looks private, but where hashes would be others."""
    for file in sorted(root.glob("runs/*/*.parquet")):
        records.write_table(found.table_without(pq.read_table(file)), file)
    for file in _others(root):
        file.write_text(found.without(file.read_text()))
