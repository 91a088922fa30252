"""Reads YAML 1.2 files with line numbers: `1e-4` is a float, `010` is ten, `no` a string; duplicate keys are errors.

Values are plain: text, numbers, true, false, null, dates, lists, and mappings whose keys are text. A file is refused
before it costs much time or memory: what an alias stands for counts each time.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from ddp_hpc.config.errors import given

Key = tuple[str | int, ...]

MOST_BYTES = 1_000_000
MOST_VALUES = 200_000
MOST_LEVELS = 50
MOST_DIGITS = 100
_STANDARD = "tag:yaml.org,2002:"
# scalars that Snakemake, which reads YAML 1.1, takes for something else
_OTHER_IN_1_1 = re.compile(
    r"[-+]?(0[0-9_]+|0o[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?|([0-9][0-9_]*\.?|\.)[0-9_]*e[-+]?[0-9]+)"
    "|yes|no|on|off",
    re.IGNORECASE,
)
_PLAIN = ("str", "int", "float", "bool", "null", "timestamp", "value", "seq", "map")

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
    ("maximum depth", f"nested over {MOST_LEVELS} levels deep; expected: fewer", False),
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


def read_mapping(file: Path, error: type[Exception], shared: Key | None = None) -> Document:
    """Return the mapping in `file`; raise `error`, with file and line, where it is missing, no YAML or no mapping.

    Snakemake reads the value of the key `shared`, too: what YAML 1.1 takes for something else is refused there.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.max_depth = MOST_LEVELS
    try:
        with open(file, "rb") as opened:
            content = opened.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise error(f"{file}: is larger than {MOST_BYTES:,} bytes; expected: a shorter file")
        yaml.composer.warn_double_anchors = False  # YAML allows it: the last one counts
        node = yaml.compose(content.decode("utf-8-sig"))
        if yaml.resolver.processing_version != (1, 2):
            raise error(f"{file}: says `%YAML` 1.1; expected: YAML 1.2, without that line")
        if node is None:
            raise error(f"{file}: is empty; expected: a mapping of keys to values")
        lines: dict[Key, int] = {}
        made = _Values(yaml, lines, shared)
        values = made.of(node, ())
        if made.wrong:
            raise error("\n".join(f"{file}:{one.line}: {one}" for one in made.wrong))
    except FileNotFoundError:
        raise error(f"{file}: no such file") from None
    except OSError as problem:
        raise error(f"{file}: cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        line = problem.object[: problem.start].count(b"\n") + 1
        raise error(f"{file}:{line}: not UTF-8 text ({problem.reason}); save it as UTF-8") from None
    except MarkedYAMLError as problem:
        raise error(_explain(file, problem)) from None
    except ReaderError as problem:  # a character that no YAML file may hold
        line = content[: problem.position].count(b"\n") + 1
        raise error(f"{file}:{line}: {str(problem).splitlines()[0]}; take it out") from None
    except _NodeError as problem:
        raise error(f"{file}:{problem.line}: {problem}") from None
    if not isinstance(values, dict):
        found = "a list" if isinstance(values, list) else given(values)
        raise error(f"{file}: given {found}, expected: a mapping of keys to values")
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


class _NodeError(ValueError):
    """What is wrong with a part of a file that is YAML, and its line."""

    def __init__(self, node: Node, key: Key, why: str) -> None:
        super().__init__(f"{'.'.join(map(str, key))}: {why}" if key else why)
        self.line = node.start_mark.line + 1


class _Values:
    """Makes plain values of the nodes of a file, and notes the line of every key in `lines`."""

    def __init__(self, yaml: YAML, lines: dict[Key, int], shared: Key | None = None) -> None:
        self.yaml, self.lines, self.shared = yaml, lines, shared
        self.count = 0
        self.wrong: list[_NodeError] = []  # of values by themselves: all are told at once
        self.within: list[Node] = []  # the mappings and lists around a node

    def of(self, node: Node, key: Key) -> Any:
        """Return the value of a node, whose key in the file is `key`."""
        self.count += 1
        if self.count > MOST_VALUES:
            raise _NodeError(node, key, f"over {MOST_VALUES:,} values, aliases counted; expected: a smaller file")
        kind = str(node.tag).removeprefix(_STANDARD)
        if kind not in _PLAIN:
            tag, value = str(node.tag).replace(_STANDARD, "!!"), node.value if isinstance(node, ScalarNode) else "..."
            return self._refuse(node, key, f"given {tag} {value}, expected: plain YAML values, without a tag (!...)")
        if isinstance(node, ScalarNode):
            return self._scalar(node, key, kind)
        if node in self.within:
            raise _NodeError(node, key, "an alias (*) stands within what it stands for; expected: values without end")
        if len(self.within) > MOST_LEVELS:
            raise _NodeError(node, key, f"nested over {MOST_LEVELS} levels deep; expected: fewer")
        self.within.append(node)
        found = self._mapping(node, key) if isinstance(node, MappingNode) else self._list(node, key)
        self.within.pop()
        return found

    def _scalar(self, node: ScalarNode, key: Key, kind: str) -> Any:
        if kind == "int" and len(node.value) > MOST_DIGITS:
            shown = f"given {node.value[:20]}... ({len(node.value):,} digits)"
            return self._refuse(node, key, f"{shown}, expected: a number of at most {MOST_DIGITS}")
        shared = self.shared is not None and key[: len(self.shared)] == self.shared
        if shared and not node.style and _OTHER_IN_1_1.fullmatch(node.value):
            expected = "a number without zeros before it, true, false, or a string in quotes"
            self._refuse(node, key, f"given {node.value}, which Snakemake takes otherwise; expected: {expected}")
        try:
            return node.value if kind == "value" else self.yaml.constructor.construct_object(node)
        except (ValueError, KeyError, IndexError, YAMLError):  # `!!int b`, `2024-13-45`
            tag = "a date" if kind == "timestamp" else f"what its tag !!{kind} says"
            return self._refuse(node, key, f"{node.value!r} is not {tag}; write it without a tag, or in quotes")

    def _refuse(self, node: Node, key: Key, why: str) -> Any:
        self.wrong.append(_NodeError(node, key, why))

    def _list(self, node: Node, key: Key) -> list[Any]:
        for index, item in enumerate(node.value):
            self.lines[(*key, index)] = item.start_mark.line + 1
        return [self.of(item, (*key, index)) for index, item in enumerate(node.value)]

    def _mapping(self, node: MappingNode, key: Key) -> dict[str, Any]:
        own = [(name, value) for name, value in node.value if not _merges(name)]
        found: dict[str, Any] = {}
        for name, value in own:
            if not isinstance(name, ScalarNode):
                self._refuse(name, key, "given a list or a mapping as a key, expected: text")
                continue
            if name.value in found:
                self._refuse(name, key, f'duplicate key "{name.value}"; each key may stand once')
            self.lines[(*key, name.value)] = name.start_mark.line + 1
            found[name.value] = self.of(value, (*key, name.value))
        for brought in [value for name, value in node.value if _merges(name)]:  # by `<<: *anchor`
            for one in brought.value if isinstance(brought, SequenceNode) else [brought]:
                if not isinstance(one, MappingNode):
                    raise _NodeError(
                        one, key, "<<: given a value, expected: an alias (*) of a mapping, or a list of such"
                    )
                lines = dict(self.lines)
                found |= {name: value for name, value in self.of(one, key).items() if name not in found}
                self.lines.update(lines)
        return found


def _merges(key: Node) -> bool:
    return bool(key.tag == f"{_STANDARD}merge")
