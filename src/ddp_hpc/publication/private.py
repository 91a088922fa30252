"""What looks private in what is to leave (hosts, users, accounts, paths, addresses), and another word for each.

Words are found where records have a place for them (hosts of ranks, variables of Slurm), paths by their look. Each then
counts wherever it stands. A word always gets the same other word, so tables that compare hosts still can.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

# of variables of the environment, and of keys of records and machine files, by what their values are
_KINDS = {
    "account": re.compile(r"account", re.IGNORECASE),
    "user": re.compile(r"(^|_)(user|uid|gid|group)", re.IGNORECASE),
    "host": re.compile(
        r"(^|_)(host|hosts|nodelist|nodename|nodeid_list|ipaddr|topology_addr|cluster_name)$", re.IGNORECASE
    ),
}
_NOBODY = frozenset({"localhost", "root", "cpu", "null", "none", "true", "false"})
# folders of the system are alike everywhere
_PATH = re.compile(
    r"(?<![\w.:/~\-])/(?!(?:usr|bin|sbin|lib|lib64|proc|sys|dev|etc|run|nonexistent)/)[\w.@+\-]+(?:/[\w.@+\-]+)+/?"
)
_HOME = re.compile(r"/(?:home|Users)/([\w.\-]+)")
_MAIL = re.compile(r"[\w.+\-]+@[\w\-]+\.[\w.\-]+")
_HARMLESS = re.compile(r"[0-9]+|(account|user|host)-[0-9]+|\[.*\]")  # numbers, and what is put in the place of words
_KEPT = ("spec", "files", "run", "schema")  # parts of a record's metadata that hold nothing of a machine

SHOWN = 3  # words of a kind in a list


@dataclass
class Private:
    """The words that look private, and where they stand."""

    kinds: dict[str, str] = field(default_factory=dict)  # by word
    places: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)  # by kind and word, of all that is found

    def learn(self, value: Any, key: str = "") -> None:
        """Learn the words in plain JSON values: what stands under a key that says what it is."""
        if isinstance(value, Mapping):
            for name, inner in value.items():
                self.learn(inner, str(name))
        elif isinstance(value, list):
            for inner in value:
                self.learn(inner, key)
        elif isinstance(value, str):
            kind = next((kind for kind, names in _KINDS.items() if names.search(key)), None)
            if kind and len(value) > 1 and value.lower() not in _NOBODY and not _HARMLESS.fullmatch(value):
                self.kinds.setdefault(value, kind)
            for user in _HOME.findall(value):
                self.kinds.setdefault(user, "user")

    def look(self, text: str, place: str) -> None:
        """Note what looks private in a text that stands at some place."""
        for kind, word in self._found(text):
            self.places.setdefault((kind, word), Counter())[place] += 1

    def _found(self, text: str) -> Iterator[tuple[str, str]]:
        if self._words and (hits := self._words.findall(text)):
            yield from ((self.kinds[word], word) for word in hits)
        yield from (("path", path) for path in _PATH.findall(text))
        yield from (("e-mail address", mail) for mail in _MAIL.findall(text))

    @property
    def _words(self) -> re.Pattern[str] | None:
        if not self.kinds:
            return None
        known = sorted(self.kinds, key=lambda word: (-len(word), word))
        return re.compile(rf"(?<![\w\-])(?:{'|'.join(map(re.escape, known))})(?![\w\-])")

    @property
    def other_words(self) -> dict[str, str]:
        """By word what stands for it: `host-1`, ..."""
        numbers: Counter[str] = Counter()
        found = {}
        for word in sorted(self.kinds):
            numbers[self.kinds[word]] += 1
            found[word] = f"{self.kinds[word]}-{numbers[self.kinds[word]]}"
        return found

    def without(self, text: str) -> str:
        """Return a text with other words for what looks private; of a path its last part stays."""
        text = _PATH.sub(lambda path: f"[path]/{path[0].rstrip('/').rpartition('/')[2]}", text)
        text = _MAIL.sub("[e-mail address]", text)
        others = self.other_words
        return self._words.sub(lambda word: others[word[0]], text) if self._words else text

    def values_without(self, value: Any, key: str = "") -> Any:
        """Return plain JSON values with other words for what looks private."""
        if isinstance(value, Mapping):
            return {name: self.values_without(inner, str(name)) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.values_without(inner, key) for inner in value]
        if not isinstance(value, str):
            return value
        kind = next((kind for kind, names in _KINDS.items() if names.search(key)), None)
        return f"[{kind}]" if kind and value.isdigit() else self.without(value)  # the number of a user is no word

    def table_without(self, table: pa.Table) -> pa.Table:
        """Return a record with other words for what looks private, in its texts and in what it says of its making."""
        for at, column in enumerate(table.schema):
            if column.name in _COLUMNS:
                texts = table.column(at).to_pylist()
                others = {text: text and self.without(text) for text in set(texts)}
                table = table.set_column(at, column, pa.array([others[text] for text in texts], column.type))
        metadata = dict(table.schema.metadata or {})
        for name, raw in metadata.items():
            if told(name.decode()):
                metadata[name] = json.dumps(self.values_without(json.loads(raw))).encode()
        return table.replace_schema_metadata(metadata)

    def lines(self) -> list[str]:
        """Return what was found, a line per kind: how many words, the first of them, where they stand."""
        lines = []
        for kind in sorted({kind for kind, _ in self.places}):
            words = sorted(word for of, word in self.places if of == kind)
            where = sum((self.places[kind, word] for word in words), Counter[str]())
            shown = ", ".join(words[:SHOWN]) + (f" and {len(words) - SHOWN} more" if len(words) > SHOWN else "")
            lines.append(f"{kind} {shown}: {', '.join(f'{place} ({times})' for place, times in sorted(where.items()))}")
        return lines


_COLUMNS = ("host", "reason")  # of records, in which texts of a machine stand


def told(name: str) -> bool:
    """Return whether an entry of a record's metadata may tell of a machine."""
    return name.startswith("ddp_hpc.") and name.removeprefix("ddp_hpc.") not in _KEPT


def texts_of(table: pa.Table) -> Iterable[str]:
    """Return the texts of a record that may tell of a machine, each once."""
    found = [raw.decode() for name, raw in (table.schema.metadata or {}).items() if told(name.decode())]
    for name in _COLUMNS:
        if name in table.column_names:
            found += [text for text in table.column(name).unique().to_pylist() if text]
    return found
