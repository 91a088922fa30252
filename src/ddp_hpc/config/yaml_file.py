"""Reads YAML 1.2 files with line numbers: `1e-4` is a float, `010` is ten, `no` a string; duplicate keys are errors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.scalarbool import ScalarBoolean

Key = tuple[str | int, ...]

# what the parser says; what it means (after a ; added to it); whether the line to look at is where the thing began
_IN_WORDS = (
    (r"'\t'", "; indent with spaces", False),
    ("duplicate key", "; each key may stand once", False),
    ("another document", "a second document starts here; expected: one per file", False),
    ("could not find expected ':'", "is ':' missing after this key? write `key: value`, with a blank", True),
    (
        "mapping values are not allowed",
        "a ':' cannot stand here: is a ':' or the blank after it missing in the line above, is this line indented "
        "wrongly, or does a string that holds ': ' lack quotes?",
        False,
    ),
    ("expected ',' or '}'", "is ',' or '}' missing? the mapping that begins here with '{' is not closed", True),
    ("expected ',' or ']'", "is ',' or ']' missing? the list that begins here with '[' is not closed", True),
    ("unexpected end of stream", "is a quote missing? the text that begins here is not closed", True),
    (
        "expected <block end>",
        "this line fits none above: indent it as its neighbours; in a list each item begins with '- '",
        False,
    ),
    ("cannot start any token", "; put a string that begins with it in quotes", False),
    ("undefined alias", "; put a string that begins with * in quotes", False),
    ("unknown escape character", "; in double quotes \\ begins an escape: use single quotes", False),
)


@dataclass(frozen=True)
class Document:
    """The plain values of a file, and the line of every key."""

    file: Path
    values: dict[str, Any]
    lines: Mapping[Key, int]

    def where(self, *keys: Key) -> str:
        """Return `file:line` of the first of `keys` that stands in the file, or of its nearest parent."""
        parents = [key[:end] for key in keys for end in range(len(key) - 1, 0, -1)]
        for key in [*keys, *parents]:
            if key in self.lines:
                return f"{self.file}:{self.lines[key]}"
        return str(self.file)


def read_mapping(file: Path, error: type[Exception]) -> Document:
    """Return the mapping in `file`; raise `error`, with file and line, where it is missing, no YAML or no mapping."""
    try:
        loaded = YAML(typ="rt", pure=True).load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(f"{file}: no such file") from None
    except OSError as problem:
        raise error(f"{file}: cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise error(f"{file}: not UTF-8 text ({problem.reason} at byte {problem.start}); save it as UTF-8") from None
    except MarkedYAMLError as problem:
        raise error(_explain(file, problem)) from None
    except YAMLError as problem:  # a character that no YAML file may hold
        raise error(f"{file}: {str(problem).splitlines()[0]}") from None
    except ValueError as problem:  # `!!int b`
        value = str(problem).rpartition(": ")[2]
        raise error(f"{file}: {value} is not what its tag (!!...) says; write it without a tag") from None
    if loaded is None:
        raise error(f"{file}: is empty; expected: a mapping of keys to values")
    if not isinstance(loaded, CommentedMap):
        found = "a list" if isinstance(loaded, list) else repr(loaded)
        raise error(f"{file}: given {found}, expected: a mapping of keys to values")
    lines: dict[Key, int] = {}
    values = _plain(loaded, (), lines)
    return Document(file, values, lines)


def _explain(file: Path, problem: MarkedYAMLError) -> str:
    text = (problem.problem or problem.context or "no YAML").splitlines()[0]
    mark = problem.problem_mark or problem.context_mark
    for part, words, began in _IN_WORDS:
        if part in text:
            text = f"{text}{words}" if words.startswith("; ") else words
            mark = problem.context_mark if began and problem.context_mark else mark
            break
    return f"{file}{f':{mark.line + 1}' if mark else ''}: {text}"


# ruamel's scalars remember their spelling; identity must not. The first kind is an int, too, for ruamel
_PLAIN: dict[type, Callable[[Any], Any]] = {ScalarBoolean: bool, bool: bool, int: int, float: float, str: str}


def _plain(node: Any, key: Key, lines: dict[Key, int]) -> Any:
    if isinstance(node, CommentedMap):
        for name in node:
            place = (node.lc.data or {}).get(name)  # none for a key that `<<: *anchor` brought in
            if place:
                lines[(*key, name)] = place[0] + 1
        return {name: _plain(value, (*key, name), lines) for name, value in node.items()}
    if isinstance(node, CommentedSeq):
        for index in range(len(node)):
            lines[(*key, index)] = node.lc.item(index)[0] + 1
        return [_plain(value, (*key, index), lines) for index, value in enumerate(node)]
    return next((plain(node) for kind, plain in _PLAIN.items() if isinstance(node, kind)), node)
