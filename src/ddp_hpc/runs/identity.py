"""Who a run is: the hash of its spec and of the code that decides its result.

The code hash is taken over syntax trees, so comments, docstrings and formatting do not count. It covers the training
loop, the model, dataset and exchange that a spec names, and what these import of ours or of the project; of a program
of one's own it covers the files that the study lists. Measuring and
record keeping count through the hand-raised MEASUREMENT_VERSION instead.
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ddp_hpc.config import catalog
from ddp_hpc.config.program import paths
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.runs import syntax
from ddp_hpc.runs.syntax import DIGITS

# Raise by hand when the meaning of a measurement changes (timers, meters, definitions): all runs are then new.
MEASUREMENT_VERSION = 2

VERSION = "MEASUREMENT_VERSION"  # stands among the files of a run
OWN = "./"  # begins the name of a file of the project

# paths in the package, or their beginnings, that are not code of a run: their effect on results counts through
# MEASUREMENT_VERSION. Checkpoints have none: a training that was interrupted ends with the bits of one that was not,
# which tests see to.
NOT_COUNTED = ("config/", "profiling/", "runs/", "system/", "training/checkpoint.py", "training/result.py")

_LEFT = (".pyc", ".bak", ".orig", ".rej", ".old", ".save", ".swp", ".swo", ".tmp")  # by editors, merges, Python


def run_id(spec: RunSpec) -> str:
    """Return `<readable>-<spec hash>-<code hash>`: the name of the run's folder."""
    return f"{spec.readable}-{spec.hash}-{code_hash(spec)}"


def parts(run: str) -> tuple[str, str, str]:
    """Split a run's name into readable hint, spec hash and code hash; the hashes of another folder are empty."""
    found = run.rsplit("-", 2)
    return (found[0], found[1], found[2]) if len(found) == 3 else (run, "", "")


def code_hash(spec: RunSpec) -> str:
    """Return the hash of all code that `spec` depends on."""
    return hash_of(fingerprints(spec))


def hash_of(found: Mapping[str, str]) -> str:
    """Return the hash of code, of what `fingerprints` gives."""
    text = "\n".join(f"{name}={value}" for name, value in sorted(found.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def fingerprints(spec: RunSpec) -> dict[str, str]:
    """Return the hash of every file that `spec` depends on, by its name: see `file_of`."""
    if spec.program:
        return dict(_of_program(catalog.project() or Path.cwd(), tuple(spec.program.files)))
    return dict(_fingerprints(catalog.project(), spec.model.name, spec.dataset.name, spec.exchange.name))


def files(spec: RunSpec) -> list[str]:
    """Return the names of the files that `spec` depends on."""
    return [name for name in fingerprints(spec) if name != VERSION]


def file_of(name: str) -> Path:
    """Return a file that runs depend on, by its path in the package or, with `./` before it, in the project."""
    return (catalog.project() or Path()) / name if name.startswith(OWN) else catalog.PACKAGE / name


@cache
def _fingerprints(project: Path | None, model: str, dataset: str, exchange: str) -> Mapping[str, str]:
    named = {"model": model, "dataset": dataset, "exchange": exchange}
    roots = [catalog.PACKAGE / "training" / "trainer.py", *(catalog.path(kind, name) for kind, name in named.items())]
    return {VERSION: str(MEASUREMENT_VERSION)} | closure(roots, NOT_COUNTED)


@cache
def _of_program(project: Path, patterns: tuple[str, ...]) -> Mapping[str, str]:
    """The files that a study lists, and the modules of the project that those in Python import."""
    found = {VERSION: str(MEASUREMENT_VERSION)}
    for file in paths(patterns, project):
        if file.suffix == ".py":
            found |= closure([file], NOT_COUNTED)
        else:
            found[_path(file)] = content_hash(file)
    return found


def forget() -> None:
    """Forget the files that were read: the next hash is of what they hold now."""
    for remembered in (_fingerprints, _of_program, file_hash, content_hash, _path, _beside, _imports):
        remembered.cache_clear()


def closure(roots: list[Path], left_out: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the hash of `roots` and of all modules of ours that they import, directly or not, by name (`file_of`).

    Paths that begin as one of `left_out` are not followed. Files that belong to a module by their name, such as
    `digits.csv` to `digits.py`, count with it.
    """
    found: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        file = waiting.pop()
        if _path(file) in found:
            continue
        found |= {_path(file): file_hash(file)} | {_path(other): content_hash(other) for other in _beside(file)}
        waiting += [module for module in _imports(file) if not _path(module).startswith(left_out)]
    return dict(sorted(found.items()))


@cache
def _beside(file: Path) -> tuple[Path, ...]:
    """Return the files that belong to a module by their name."""
    return tuple(other for other in file.parent.glob(f"{file.stem}.*") if _belongs(other, file))


def _belongs(other: Path, file: Path) -> bool:
    """Return whether a file beside a module is data or an extension of it, not what an editor or a merge has left."""
    left_by_tools = other.name.startswith(file.name) or other.suffix.endswith("~") or other.suffix in _LEFT
    return not left_by_tools and other.is_file()


@cache
def _path(file: Path) -> str:
    """Return the name of a file, as `file_of` takes it."""
    root, project = catalog.PACKAGE, catalog.project()
    if project is None or file.is_relative_to(root):
        return file.relative_to(root).as_posix()
    return f"{OWN}{file.relative_to(project).as_posix()}"


@cache
def content_hash(file: Path) -> str:
    """Return the hash of a file's bytes, for what has no syntax tree."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:DIGITS]


@cache
def file_hash(file: Path) -> str:
    """Return the hash of a file's meaning: comments, docstrings, `syntax.WORDS` and formatting do not count."""
    return syntax.code_of(file).digest


@cache
def _imports(file: Path) -> tuple[Path, ...]:
    """Return the files of ours that `file` imports, inside functions too, and the `__init__.py` above: they are run."""
    project = None if file.is_relative_to(catalog.PACKAGE) else catalog.project()
    home, inside = (project, (catalog.OWN,)) if project else (catalog.PACKAGE.parent, ())
    package = (*inside, *file.relative_to(home).parts[:-1])
    names = {".".join(package[:depth]) for depth in range(1, len(package) + 1)}
    for level, module, imported in syntax.code_of(file).imports:
        base = ".".join([*(package[: len(package) - level + 1] if level else ()), *([module] if module else [])])
        names |= {base, *(f"{base}.{name}" for name in imported)}
    bases = [base for name in sorted(names) for base in _bases(name, project)]
    candidates = [path for base in bases for path in (base.with_suffix(".py"), base / "__init__.py")]
    return tuple(path for path in candidates if path.is_file())


def _bases(module: str, project: Path | None) -> list[Path]:
    """Return where a module may lie, less its suffix: in the package or, if a project's file imports it, in that."""
    first, *rest = module.split(".")
    if first == catalog.PACKAGE.name:
        return [catalog.PACKAGE.joinpath(*rest)] if rest else []
    if project is None:
        return []
    if first == catalog.OWN:
        return [project.joinpath(*rest)] if rest else []
    return [folder.joinpath(first, *rest) for folder in catalog.folders_of_imports(project)] if first else []
