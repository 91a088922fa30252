"""What the code of a file says: the hash of its syntax tree, and what it imports.

Both follow from the content of the file alone. They are kept in the user's cache, by the hash of that content: to make
a syntax tree of each file of the package takes a second, which every command would spend anew.
"""

import ast
import atexit
import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ddp_hpc.config import catalog
from ddp_hpc.system.files import replaced, text_of, user_cache

DIGITS = 10  # hexadecimal: 40 bits, a collision among 10,000 runs has a chance of 5e-5
MOST_KEPT = 1000  # contents, of 0.3 kB each; with more, only those are kept that this process has read

# capitals of an exchange's file that say what it does and costs, for tables and records: they decide no result
WORDS = (
    *("SCHEME", "COMPUTES", "MOVES_GRADIENTS", "MOVES_MODEL", "GPU_DATA_PATH", "GRADIENT_PATH"),
    *("COST", "COST_OPTIONS", "COMPRESSES"),
)


class Import(NamedTuple):
    """`import module` if there are no names; `from ..module import names`, with as many dots as `level` says."""

    level: int
    module: str
    names: tuple[str, ...] = ()


class Code(NamedTuple):
    """What the code of a file says."""

    digest: str  # of its syntax tree without comments, docstrings, `WORDS` and formatting
    imports: tuple[Import, ...]  # inside functions too


def code_of(file: Path) -> Code:
    """Return what the code of a file says; raise CatalogError if it is not Python."""
    content = catalog.content(file)
    key = hashlib.sha256(_version() + content).hexdigest()
    if key not in _used:
        known = _understood(_kept().get(key))
        _used[key] = known or _read(catalog.tree_of(content, file))
        _anew.update([] if known else [key])
    return _used[key]


_used: dict[str, Code] = {}  # by the hash of a content
_anew: set[str] = set()  # of these, what the cache did not have


@atexit.register  # ranks end otherwise, so that no thousand of them write at once
def _keep() -> None:
    """Write what this process was the first to read to the user's cache, if that can be written."""
    if not _anew:
        return
    _kept.cache_clear()  # others may have written meanwhile
    both = _kept() | _used
    with suppress(OSError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        with replaced(_file()) as temporary:
            temporary.write_text(json.dumps(both if len(both) <= MOST_KEPT else _used))


@cache
def _version() -> bytes:
    """What the answers depend on, beside a content: this file, and the Python whose syntax trees these are."""
    return repr(sys.version_info[:2]).encode() + Path(__file__).read_bytes()


def _file() -> Path:
    return user_cache() / "ddp-hpc" / "code.json"


@cache
def _kept() -> dict[str, Any]:
    """What the user's cache holds, by the hash of a content; nothing if it is damaged."""
    try:
        found = json.loads(text_of(_file()) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _understood(kept: Any) -> Code | None:
    """Return an entry of the cache, None if there is none or it is damaged."""
    try:
        digest, imports = kept
        return Code(
            str(digest), tuple(Import(int(level), str(module), tuple(names)) for level, module, names in imports)
        )
    except (ValueError, TypeError):
        return None


def _read(tree: ast.Module) -> Code:
    """Return what a syntax tree says, and leave out of it what does not count."""
    tree.body = [
        child
        for child in tree.body
        if not (isinstance(child, ast.Assign) and all(ast.unparse(target) in WORDS for target in child.targets))
    ]
    imports: list[Import] = []
    for node in (tree, *_statements(tree)):
        if isinstance(node, ast.Import):
            imports += [Import(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports.append(Import(node.level, node.module or "", tuple(alias.name for alias in node.names)))
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [child for child in node.body if not _is_text(child)]
    return Code(hashlib.sha256(dump(tree).encode()).hexdigest()[:DIGITS], tuple(dict.fromkeys(imports)))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements below a node, and what holds some: handlers and cases."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, field, ()):
            yield child
            yield from _statements(child)


def _is_text(statement: ast.AST) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def dump(node: object) -> str:
    """Return a syntax tree as text. `ast.dump` differs between Python versions, this leaves out what is empty."""
    if isinstance(node, ast.JoinedStr):  # Python 3.12 ends some f-strings with an empty text
        node.values = [part for part in node.values if not (isinstance(part, ast.Constant) and part.value == "")]
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if value is not None and value != [])
        return f"{type(node).__name__}({','.join(f'{name}={dump(value)}' for name, value in fields if name != 'kind')})"
    if isinstance(node, list):
        return f"[{','.join(map(dump, node))}]"
    return repr(node)
