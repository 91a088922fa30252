"""Every number of the sources: where it is claimed, what our published runs have found, and the verdict.

`python tests/support/source_numbers.py` writes docs/numbers.md from results/published/numbers.csv, the claims of the
studies, and the table of claims beside each published study.
"""

import io
import zipfile
from collections.abc import Iterator
from functools import cache
from math import nan
from pathlib import Path

import pandas as pd

from ddp_hpc.analysis.claim_verdict import NOT_TESTABLE, verdict, verdict_in_words
from ddp_hpc.analysis.formatting import cell
from ddp_hpc.analysis.intervals import Interval
from ddp_hpc.config import grid
from ddp_hpc.config.claims import ARITHMETIC, Claim

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results" / "published"
PAGE = ROOT / "docs" / "numbers.md"
ORDER = ["place", "quantity", "number", "claim", "ours", "interval", "from", "runs", "verdict"]
HEAD = """\
# Every number of the sources

Each number that the four sources state, those of a report on one of them in the press and of the script of another,
run again; the claim of a study that tests it, and what our published runs have found (`results/published/`). A
measurement of the source is *reproduced* or *contradicted*. The arithmetic of a formula, which shows no measurement,
and an expectation of our own are *confirmed* or *refuted*. *The direction* (or *the range*), *not the number*: ours
is as expected, but more than a quarter from the number. *Not run*: no results of the study are published; most such
studies are for a cluster. None of our numbers was measured on a GPU. A number without a claim says why. This page is
made from `results/published/numbers.csv`, the studies and their published tables of claims; a test holds it to them.

## Out of scope

- Model parallelism, which two of the sources describe and none of them measures: what they measure is data-parallel,
  and so is this program.
- Inception V3: the efficiency of 88 % that the slides quote from elsewhere is claimed of ResNet-101 alone.
- Five times the speed of TensorFlow: by some readings, the source says, without plot or setting; TensorFlow is no peer
  here.
- Times of an NVIDIA K80 and of a cluster of 2017 as such: their ratios are claimed, as no other machine has them.
- The tree of MPI_Gather, by which the source explains the odd times of gathering: `gather_server` calls MPI_Gather and
  MPI_Bcast as the source does, but which algorithm the MPI of 2017 took is not known. `fashion_mnist_alexnet_small` has
  `parameter_server`, which averages what has come while the rest arrives.
- A search like OmniOpt's, whose outcome the slides use and leave to be done again for larger batches: studies have
  grids, and `strain_stress_rates` searches the rate of each batch in one. A gap of generalisation, which they cite as
  possible, is not claimed.
- The size of the L2 term in the source's loss: the studies on CIFAR-10 count it, as the source does, but it depends on
  first weights that are not published. In `fashion_mnist_alexnet_small` the threshold of 1.8 is of the cross-entropy
  alone. In both small studies the mean loss over 32 steps has to be below it, not the loss of one step.
- The 216 runs of CIFAR-10 on up to eight workers, a GPU each: `cifar10_alexnet_small` has model, loss and server of
  `cifar10_alexnet`, and on two cores 24 points of 24,576 images, half of those there are.
- The topology of PCIe and NVLink as a cause: the links and adapters of each rank are recorded and shown, traffic is
  sampled; no number of the sources says what they bring.
- The memory realignment's share in the source's speedup: it states none. `folded_bias` trains with it and without.
"""


@cache
def claims(study: str) -> dict[str, Claim]:
    """Return the claims of a shipped study by their names."""
    return {claim.id: claim for claim in grid.expand(ROOT / "config" / "studies" / f"{study}.yaml").study.claims}


@cache
def found(study: str) -> dict[str, dict[str, object]]:
    """Return the rows of the table of claims in the pack of a study, by their names; none where there is no pack."""
    pack = PUBLISHED / f"{study}.zip"
    if not pack.is_file():
        return {}
    with zipfile.ZipFile(pack) as archive:
        files = [name for name in archive.namelist() if name.endswith("/tables/claims.parquet")]
        tables = [pd.read_parquet(io.BytesIO(archive.read(name))) for name in files]
    return {row["id"]: row for table in tables for row in table.to_dict("records")}


def numbers() -> list[dict[str, str]]:
    """Return the list of numbers, as it is kept by hand; `claims` is a list."""
    rows = pd.read_csv(PUBLISHED / "numbers.csv", dtype=str, keep_default_na=False).to_dict("records")
    return [row | {"claims": [one for one in row["claims"].split("; ") if one]} for row in rows]


def ours(study: str, name: str) -> list[str]:
    """Return our number, its interval, from what it is, of how many runs, and the verdict by today's rules."""
    claim, row = claims(study)[name], found(study).get(name)
    if claim.of_kind == ARITHMETIC:
        number = claim.ours.predicted.number
        return [cell(number), "", "a formula", "", verdict(claim, Interval(number, nan, nan, "computed"))[0]]
    if row is None:
        return ["", "", "", "", "not run"]
    if (row["statement"], row["expected"]) != (claim.statement, claim.in_words):
        return ["", "", "", "", "not run since the claim was changed"]
    if row["verdict"] == NOT_TESTABLE or pd.isna(row["ours"]):
        return ["", "", "", "", f"{NOT_TESTABLE}: {row['reason']}"]
    interval = Interval(row["ours"], row["ours_low"], row["ours_high"], row["interval_from"])
    ends = f"{cell(interval.low)} to {cell(interval.high)}" if interval.known else ""
    judged = verdict_in_words(row | {"verdict": verdict(claim, interval)[0], "published": claim.published})
    return [cell(interval.middle), ends, interval.basis, cell(row.get("runs", nan)), judged]


def lines() -> Iterator[str]:
    """Yield the page, line by line."""
    yield from HEAD.splitlines()
    rows = numbers()
    judged = [ours(*one.split("/"))[-1].partition(":")[0] for row in rows for one in row["claims"]]
    counts = pd.Series(judged).value_counts()
    yield ""
    yield f"Claims of a number: {', '.join(f'{count} {name}' for name, count in counts.sort_index().items())}."
    for source in dict.fromkeys(row["source"] for row in rows):
        yield from ("", f"## The {source}", "", f"| {' | '.join(ORDER)} |", f"|{'---|' * len(ORDER)}")
        for row in (row for row in rows if row["source"] == source):
            number = f"{row['number']} {row['unit']}".strip()
            if row["claimed_as"]:
                number += f" (claimed as {row['claimed_as']})"
            head = [row["place"], row["quantity"], number]
            for one in row["claims"]:
                yield f"| {' | '.join([*head, f'`{one}`', *ours(*one.split('/'))])} |"
            if not row["claims"]:
                yield f"| {' | '.join([*head, '', '', '', '', '', row['otherwise']])} |"


if __name__ == "__main__":
    PAGE.write_text("\n".join(lines()) + "\n", encoding="utf-8")
