"""Who a run is: the hash of its spec and of the code that decides its result.

The code hash is taken over syntax trees, so comments, docstrings and formatting do not count. It covers the training
loop, the model, dataset and exchange that a spec names, and what these import of ours. Measuring and record keeping
count through the hand-raised MEASUREMENT_VERSION instead.
"""

import ast
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from ddp_hpc.config import catalog
from ddp_hpc.config.spec import RunSpec

# Raise by hand when the meaning of a measurement changes (timers, meters, definitions): all runs are then new.
MEASUREMENT_VERSION = 1

DIGITS = 10  # hexadecimal: 40 bits, a collision among 10,000 runs has a chance of 5e-5

# capitals of an exchange's file that say what it does and costs, for tables and records: they decide no result
WORDS = (
    *("SCHEME", "COMPUTES", "MOVES_GRADIENTS", "MOVES_MODEL", "GPU_DATA_PATH", "GRADIENT_PATH"),
    *("COST", "COST_OPTIONS", "COMPRESSES"),
)

# modules that are not code of a run: their effect on results counts through MEASUREMENT_VERSION. Checkpoints have none:
# a training that was interrupted ends with the bits of one that was not, which tests see to.
_NOT_COUNTED = ("config", "profiling", "runs", "system", "training.checkpoint", "training.result")


def run_id(spec: RunSpec) -> str:
    """Return `<readable>-<spec hash>-<code hash>`: the name of the run's folder."""
    return f"{spec.readable}-{spec.hash}-{code_hash(spec)}"


def parts(run: str) -> tuple[str, str, str]:
    """Split a run's name into readable hint, spec hash and code hash."""
    readable, spec_hash, code = run.rsplit("-", 2)
    return readable, spec_hash, code


def code_hash(spec: RunSpec) -> str:
    """Return the hash of all code that `spec` depends on."""
    return _digest(fingerprints(spec))


def fingerprints(spec: RunSpec) -> dict[str, str]:
    """Return the hash of every file that `spec` depends on, by its path in the package."""
    return dict(_fingerprints(spec.model.name, spec.dataset.name, spec.exchange.name))


@cache
def _fingerprints(model: str, dataset: str, exchange: str) -> Mapping[str, str]:
    roots = [
        catalog.PACKAGE / "training" / "trainer.py",
        catalog.path("model", model),
        catalog.path("dataset", dataset),
        catalog.path("exchange", exchange),
    ]
    return {"MEASUREMENT_VERSION": str(MEASUREMENT_VERSION)} | closure(roots, _NOT_COUNTED)


def forget() -> None:
    """Forget the files that were read: the next hash is of what they hold now."""
    for remembered in (_fingerprints, file_hash, content_hash, _imports):
        remembered.cache_clear()


def closure(roots: list[Path], left_out: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the hash of `roots` and of all modules of ours that they import, directly or not.

    Args:
        roots: files of the package.
        left_out: modules (and packages, with all below), dotted, that are not followed.
    """
    found: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        file = waiting.pop()
        name = file.relative_to(catalog.PACKAGE).as_posix()
        if name in found:
            continue
        found[name] = file_hash(file)
        found |= {other.relative_to(catalog.PACKAGE).as_posix(): content_hash(other) for other in _beside(file)}
        reached = {*_imports(file), *_packages(file)}
        waiting += [module for module in reached if not _is_below(_module(module), left_out)]
    return dict(sorted(found.items()))


def _digest(hashes: Mapping[str, str]) -> str:
    text = "\n".join(f"{name}={value}" for name, value in sorted(hashes.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


@cache
def file_hash(file: Path) -> str:
    """Return the hash of a file's meaning: its syntax tree without comments, docstrings, `WORDS` and formatting."""
    tree = _without_words(_without_docstrings(ast.parse(file.read_text(encoding="utf-8"), filename=str(file))))
    return hashlib.sha256(_dump(tree).encode()).hexdigest()[:DIGITS]


def _beside(file: Path) -> list[Path]:
    """Return the files that belong to a module by their name, such as `digits.csv` to `digits.py`."""
    return sorted(other for other in file.parent.glob(f"{file.stem}.*") if other.suffix not in (".py", ".pyc"))


@cache
def content_hash(file: Path) -> str:
    """Return the hash of a file's bytes, for what has no syntax tree."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:DIGITS]


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [
                child
                for child in node.body
                if not (
                    isinstance(child, ast.Expr)
                    and isinstance(child.value, ast.Constant)
                    and type(child.value.value) is str
                )
            ]
    return tree


def _without_words(tree: ast.Module) -> ast.Module:
    tree.body = [
        child
        for child in tree.body
        if not (isinstance(child, ast.Assign) and all(ast.unparse(target) in WORDS for target in child.targets))
    ]
    return tree


def _dump(node: object) -> str:
    """Return a syntax tree as text. `ast.dump` differs between Python versions, this leaves out what is empty."""
    if isinstance(node, ast.JoinedStr):  # Python 3.12 ends some f-strings with an empty text
        node.values = [part for part in node.values if not (isinstance(part, ast.Constant) and part.value == "")]
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if value is not None and value != [])
        return (
            f"{type(node).__name__}({','.join(f'{name}={_dump(value)}' for name, value in fields if name != 'kind')})"
        )
    if isinstance(node, list):
        return f"[{','.join(map(_dump, node))}]"
    return repr(node)


@cache
def _imports(file: Path) -> tuple[Path, ...]:
    """Return the files of ours that `file` imports anywhere, inside functions too."""
    tree = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
    return tuple(sorted({path for name in _imported_names(tree, file) for path in _files_of(name)}))


def _imported_names(tree: ast.Module, file: Path) -> Iterator[str]:
    package = [catalog.PACKAGE.name, *file.relative_to(catalog.PACKAGE).parts[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _files_of(name: str) -> Iterator[Path]:
    """Return the file of a dotted name of ours; nothing for a name that is no module of ours."""
    first, *rest = name.split(".")
    if first != catalog.PACKAGE.name or not rest:
        return
    base = catalog.PACKAGE.joinpath(*rest)
    for file in (base.with_suffix(".py"), base / "__init__.py"):
        if file.is_file():
            yield file


def _packages(file: Path) -> Iterator[Path]:
    """Return the `__init__.py` of the packages below ours that `file` lies in: importing it runs them."""
    for folder in file.relative_to(catalog.PACKAGE).parents:
        if folder != Path() and (catalog.PACKAGE / folder / "__init__.py").is_file():
            yield catalog.PACKAGE / folder / "__init__.py"


def _is_below(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def _module(file: Path) -> str:
    relative = file.relative_to(catalog.PACKAGE).with_suffix("")
    return ".".join(part for part in relative.parts if part != "__init__") or "__init__"
