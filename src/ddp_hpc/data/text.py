"""Your own text, byte by byte: a file, or all files of a folder."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ddp_hpc.config.catalog import PositiveInt, Share
from ddp_hpc.data._tasks import Dataset, next_tokens

SHAPE = (None,)
TASK = "next_token"
OUTPUTS = 256
TOKENS = True


def build(folder: Path, *, path: str | None = None, context: PositiveInt = 64, test_share: Share = 0.1) -> Dataset:
    """Return the text cut into sequences of `context` bytes, each byte with the one that follows as its target.

    Runs are told apart by the path, not by what lies there: give other text another name.

    Args:
        folder: where the text is looked for if no path is given.
        path: of a file, or of a folder whose files, also in folders below, are put together in the order of their
            names; hidden ones are left out. Absolute, or from the project's folder, where trainings run. None: the
            folder `results/data/text`.
        context: bytes of a sequence.
        test_share: of the sequences, the last ones, to test on.

    Raises:
        FileNotFoundError: there is no such path; says what to do.
        ValueError: there is too little text.
    """
    place = folder if path is None else Path(path).expanduser()
    text = _bytes(place)
    starts = context * np.arange(max(0, len(text) - 1) // context)
    sequences = text[starts[:, None] + np.arange(context + 1)]  # each begins with the byte that ends the one before
    tested = round(test_share * len(sequences))
    if not 0 < tested < len(sequences):
        raise ValueError(
            f"dataset text: {place} has {len(sequences)} sequences of context={context} bytes, of which {tested} "
            "are to be tested on: give more text, a shorter context or another test_share"
        )
    return Dataset(train=next_tokens(sequences[:-tested]), test=next_tokens(sequences[-tested:]))


def _bytes(place: Path) -> NDArray[np.uint8]:
    """Return the content of a file, or of all files below a folder."""
    if not place.exists():
        raise FileNotFoundError(
            f"dataset text: {place.resolve()} is missing on this host; put text files there, or say where they are: "
            "dataset: {name: text, path: /absolute/path}"
        )
    files = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())
    shown = (file for file in files if not any(part.startswith(".") for part in file.relative_to(place).parts))
    return np.frombuffer(b"".join(file.read_bytes() for file in shown), dtype=np.uint8)
