"""`ddp-hpc history GIVEN...`: how step times, losses, winners and efficiency of a study developed over commits.

`versions` finds the states of the code in what is given: packs, studies, folders of results. `development` follows each
point through them, and has each compared with the one before as `ddp-hpc compare` does. `write` makes table, figure and
page of it.
"""

from collections.abc import Sequence
from pathlib import Path

from ddp_hpc.publication.history.development import develop, in_words
from ddp_hpc.publication.history.versions import versions
from ddp_hpc.publication.history.write import rows, write
from ddp_hpc.system.terminal import in_json


def main(given: Sequence[str], to: Path, as_json: bool) -> int:
    """Follow a study through what is given, write page, figure and table into the folder `to`, and print what changed.

    Raises:
        ValueError: something given is no pack, study or folder of runs, or they are of several studies.
        RecordError: naming the records that cannot be read.
    """
    with versions(given) as found:
        developed = develop(found)
        page = write(developed, to)
        if as_json:
            print(in_json(rows(developed).astype(object).where(lambda frame: frame.notna(), None).to_dict("records")))
        else:
            print(*in_words(developed), f"page: {page}", sep="\n")
    return 0
