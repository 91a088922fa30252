"""`ddp-hpc init`: a project of one's own, from files that the package brings; and what to note of it before runs.

`src/ddp_hpc/workflow/project/` holds those files. Links lead to the folders of the clone; a wheel has copies.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddp_hpc.config import catalog
from ddp_hpc.config.catalog import KINDS, PACKAGE, did_you_mean
from ddp_hpc.config.study import StudyError
from ddp_hpc.runs.project import Project
from ddp_hpc.runs.study_runs import StudyRuns
from ddp_hpc.system.files import write_json

SOURCE = PACKAGE / "workflow" / "project"
FIRST = "first"  # the commented study of a project that names no other
_PROGRAMS = SOURCE / "programs"  # studies of training programs of one's own, each with its program
_EXAMPLES = (SOURCE / "config" / "studies", _PROGRAMS)
TAKEN = ".ddp-hpc.json"  # which files a project has taken, each with the hash of what the package had then

_KEPT_UP = (  # files that a later package may have improved
    "workflow/Snakefile",
    *(f"profiles/{name}" for name in ("README.md", *(f"{p}/profile.yaml" for p in ("default", "slurm", "allocation")))),
    *(f"config/{name}" for name in ("README.md", "study.schema.json", "machine.schema.json", "machines/example.yaml")),
)
_IF_MISSING = {"README.md": "README.md", ".gitignore": "gitignore"}
_DOCS = b"https://github.com/ddp-hpc/ddp-hpc/blob/main/docs/"  # a project has none of its own


def examples() -> list[str]:
    """Return the names of the studies that the package brings."""
    return sorted(file.stem for folder in _EXAMPLES for file in folder.glob("*.yaml"))


def make(root: Path, study: str | None = None) -> list[str]:
    """Make a project in a folder, new or not, around an example or a first study; return the files written.

    Raises:
        StudyError: there is no such example, or a file of that name; nothing is written.
    """
    study = study or FIRST
    if study not in (FIRST, *examples()):
        near = did_you_mean(study, examples())
        raise StudyError(f"no example {study!r}{near}; expected: {', '.join(examples())}")
    example = next(file for folder in (SOURCE, *_EXAMPLES) if (file := folder / f"{study}.yaml").is_file())
    config = (SOURCE / "config" / "config.yaml").read_text(encoding="utf-8").replace("- quickstart", f"- {study}")
    contents = {name: _content(name) for name in _KEPT_UP}
    contents |= {f"config/studies/{study}.yaml": example.read_bytes(), "config/config.yaml": config.encode()}
    contents |= {file.name: file.read_bytes() for file in _PROGRAMS.glob(f"{study}.py")}
    if there := [name for name in (*contents, TAKEN) if (root / name).exists()]:
        hint = "; `--upgrade` brings its files up to date" if TAKEN in there else ""
        raise StudyError(f"{root} has {', '.join(there)} already, and nothing was written{hint}")
    folders = [kind.own_folder for kind in KINDS.values()]
    contents |= {f"{folder}/.gitkeep": b"" for folder in folders if not (root / folder).exists()}
    contents |= {n: _content(source) for n, source in _IF_MISSING.items() if not (root / n).exists()}
    for name, content in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    _note_taken(root)
    return sorted(contents)


def noted(project: Project, study_runs: StudyRuns) -> StudyRuns:
    """Return the runs with a note per broken file of the project, and if the package brings newer files than it has."""
    notes, taken = catalog.broken(), _taken(project.root)
    if other := _other(taken):
        notes.append(
            f"{', '.join(other)}: of ddp-hpc {taken.get('version')}, and the installed ddp-hpc has another version; "
            "`ddp-hpc init . --upgrade` replaces what you have not edited"
        )
    return replace(study_runs, notes=(*study_runs.notes, *notes))


def upgrade(root: Path) -> list[str]:
    """Replace the files that the package has another version of, but for edited ones; return a line per file."""
    taken = _taken(root)
    if not taken:
        raise StudyError(f"{root} has no {TAKEN}; expected: a project that `ddp-hpc init` has made")
    lines = []
    for name in _other(taken):
        file = root / name
        if name in taken["files"] and not file.exists():
            continue
        if file.is_file() and _hash(file.read_bytes()) != taken["files"].get(name):
            lines.append(f"{name}: edited here, left as it is; to compare: {SOURCE / name}")
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_content(name))
        lines.append(f"{name}: replaced")
    _note_taken(root)
    return lines


def _other(taken: Mapping[str, Any]) -> list[str]:
    """Return the files of a project of which the package has another version than it had when they were taken."""
    then = taken.get("files", {})
    return [name for name in _KEPT_UP if taken and then.get(name) != _hash(_content(name))]


def _note_taken(root: Path) -> None:
    from ddp_hpc import __version__

    files = {name: _hash(_content(name)) for name in _KEPT_UP}
    write_json(root / TAKEN, {"version": __version__, "files": files})


def _taken(root: Path) -> dict[str, Any]:
    """Return what a project has taken; nothing of a clone, whose files are the package's."""
    file = root / TAKEN
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _content(source: str) -> bytes:
    """Return a file that the package brings, as a project has it."""
    return (SOURCE / source).read_bytes().replace(b"../docs/", _DOCS)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
