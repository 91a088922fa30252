"""The numbers of a README of published results, and those that the tables beside it give.

`python tests/support/published_readmes.py` puts the README of each pack in results/published beside it.
"""

import csv
import json
import re
import zipfile
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from ddp_hpc.publication import anew, readme
from ddp_hpc.publication import pack as names
from ddp_hpc.publication.pack import Pack

PUBLISHED = Path(__file__).parents[2] / "results" / "published"
# code, paths, links, dates, versions, hashes, and the numbers of figures and tables are no results
NO_RESULT = re.compile(
    r"```.*?```|`[^`\n]*`|\]\([^)]*\)|https?://\S+|<!--.*?-->|\b\d{4}-\d\d-\d\d\b|\bv?\d+(?:\.\d+){2,}\S*"
    r"|\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,40}\b|\b(?:Linux|Python|torch|mpi4py) [\d.]+"
    r"|\b(?:[Ff]igures?|[Tt]ables?|sections?) \d+\.\d+(?:(?: to|,| and) \d+\.\d+)*",
    re.DOTALL,
)
NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w]*\d)")
SCALES = (1, 100, 1e3, 1e6, 1e-3, 1e-6, 1e-9, 1 / 60)  # per cent, ms, us; k, M, G; minutes


def numbers(text: str) -> list[str]:
    """Return the numbers of a text in Markdown, as they stand there, without those of code, links, dates, versions."""
    return [found.replace(",", "").replace("−", "-") for found in NUMBER.findall(NO_RESULT.sub(" ", text))]


def of_pack(pack: Pack) -> list[str]:
    """Return the numbers in the README of a pack that its tables do not give there.

    Of a pack that other code has made, with other words, those that its tables give nowhere.
    """
    facts = json.loads((pack.root / names.FACTS).read_text(encoding="utf-8"))
    given = numbers(readme.text(pack, facts))
    there = numbers((pack.root / names.README).read_text(encoding="utf-8"))
    if anew.otherwise(pack):
        return [one for one in there if one not in given]
    return [one or "one less" for one, other in zip_longest(there, given) if one != other]


def of_folder(folder: Path) -> list[str]:
    """Return the numbers with a fraction in a README written by hand that no table beside it has, rounded so."""
    known = sorted(_values(folder))
    return [
        one
        for one in numbers((folder / "README.md").read_text(encoding="utf-8"))
        if "." in one and not any(_is(one, value) for value in known)
    ]


def _values(folder: Path) -> Iterator[float]:
    for file in folder.glob("*.csv"):
        with open(file, encoding="utf-8", newline="") as opened:
            for row in csv.reader(opened):
                for text in row:
                    yield from (abs(float(one)) for one in numbers(text))


def _is(shown: str, value: float) -> bool:
    """Return whether a number is a value, rounded to its digits, by one of the usual scales."""
    digits = len(shown.partition("e")[0].partition(".")[2])
    size = abs(float(shown))
    return any(abs(value * scale - size) <= 0.5000001 * 10.0**-digits for scale in SCALES)


def readmes() -> Iterator[tuple[Path, str]]:
    """Yield where the README of each zipped pack is to be read beside it, and what it says."""
    for file in sorted(PUBLISHED.glob("*.zip")):
        with zipfile.ZipFile(file) as pack:
            (name,) = (name for name in pack.namelist() if name.split("/")[1:] == [names.README])
            yield file.with_suffix(".md"), pack.read(name).decode()


if __name__ == "__main__":
    for beside, text in readmes():
        beside.write_text(text, encoding="utf-8")
