"""Tables, figures and page made anew from a pack's records, and compared with those in it.

By the same code and versions they have the same bytes. Else values are compared, and the words in figures; what cannot
be compared is counted, not judged: other code may say more or less than the pack's, but no other numbers.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import numpy as np
import pandas as pd

from ddp_hpc import __version__
from ddp_hpc.config import catalog
from ddp_hpc.publication import pack as names
from ddp_hpc.publication.pack import Pack
from ddp_hpc.runs import identity
from ddp_hpc.system.terminal import counted

PACKAGES = ("numpy", "pandas", "pyarrow", "scipy", "matplotlib", "seaborn", "itables", "jinja2")  # that make the files
OTHER_CODE = "other code of ddp-hpc"
EQUAL = 1e-9  # relative: another processor adds in another order
_WORDS = re.compile(r"<!-- (.*?) -->|<text[^>]*>(.*?)</text>", re.DOTALL)  # matplotlib draws letters, and notes what


def made_by(pack: Pack) -> dict[str, str]:
    """Return what makes the files of a pack here: versions, and a hash of the code of tables, figures and page."""
    kinds = {"table": pack.study.table_names, "figure": pack.study.figure_names}
    roots = [catalog.path(kind, name) for kind, chosen in kinds.items() for name in chosen]
    code = identity.closure([Path(__file__).parent / "derived.py", *roots])
    beside = ("analysis/report/templates", "publication/templates", "publication/licences")
    texts = {
        f"{folder}/{file.name}": identity.content_hash(file)
        for folder in beside
        for file in sorted((catalog.PACKAGE / folder).iterdir())
        if file.is_file()
    }
    versions = {name: metadata.version(name) for name in PACKAGES}
    return {"ddp_hpc": __version__, "code": identity.hash_of(code | texts)} | versions


def otherwise(pack: Pack) -> str:
    """Return by what other code or versions a pack was made than are here; empty if by the same."""
    file, here = pack.root / names.MADE_BY, made_by(pack)
    there = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    others = [
        f"{name} {there.get(name)}, here {version}" for name, version in here.items() if there.get(name) != version
    ]
    if there.get("code") != here["code"]:
        others = [OTHER_CODE, *(one for one in others if not one.startswith("code "))]
    return "; ".join(others)


@dataclass
class Comparison:
    """What came out for the files of a folder."""

    counts: Counter[str] = field(default_factory=Counter)  # of files, by what can be said of them
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return e.g. `40 files made anew: 38 the same bytes, 2 the same values`."""
        told = ", ".join(f"{number} {words}" for words, number in sorted(self.counts.items(), reverse=True))
        return f"{counted(sum(self.counts.values()), 'file')} made anew: {told}"


def compare(pack: Pack, root: Path, folder: str) -> Comparison:
    """Compare the files of a folder of the pack with those made anew below `root`."""
    made = {file.relative_to(root).as_posix(): file for file in (root / folder).rglob("*") if file.is_file()}
    there = {name for name in pack.files if name.startswith(f"{folder}/")}
    others, found = otherwise(pack), Comparison()
    for name in sorted(made.keys() | there):
        if name in made and name in there:
            word = _judged(pack.root / name, made[name], others)
            problem = f"{name} is not what the records give{f' (made by {others})' if others else ''}"
        else:
            word = "only in the pack or only here" if others else ""
            problem = f"{name} {'is missing' if name in made else 'does not come from the records'}"
        if word:
            found.counts[word] += 1
        else:
            found.problems.append(problem)
    return found


def _judged(one: Path, other: Path, others: str) -> str:
    """Return in what two files are alike, or that they cannot be compared; empty if they differ."""
    if one.read_bytes() == other.read_bytes():
        return "the same bytes"
    if one.suffix in (".parquet", ".csv"):
        return "the same values" if _same_values(one, other, others) else ""
    if one.suffix == ".svg" and others and OTHER_CODE not in others:
        return "the same words" if _words(one) == _words(other) else ""
    return "not compared" if others else ""


def _same_values(one: Path, other: Path, others: str) -> bool:
    """Return whether all numbers and texts of two tables are the same; by other code, those of columns in both."""
    read = pd.read_parquet if one.suffix == ".parquet" else pd.read_csv
    first, second = read(one), read(other)
    columns = [name for name in first if name in second] if others else list(first)
    if len(first) != len(second) or not columns or not (others or columns == list(second)):
        return False
    return all(_same(first[name], second[name]) for name in columns)


def _same(one: pd.Series, other: pd.Series) -> bool:
    if pd.api.types.is_float_dtype(one) and pd.api.types.is_float_dtype(other):
        first, second = (column.to_numpy(dtype=np.float64, na_value=np.nan) for column in (one, other))
        return bool(np.allclose(first, second, rtol=EQUAL, atol=0, equal_nan=True))
    return list(one.astype(str)) == list(other.astype(str))


def _words(figure: Path) -> Counter[tuple[str, str]]:
    return Counter(_WORDS.findall(figure.read_text(encoding="utf-8")))
