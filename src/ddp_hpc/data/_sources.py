"""Fetch a dataset by its name: where from, and which checksum, stand as constants in its file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddp_hpc.config import catalog
from ddp_hpc.config.catalog import CatalogError


def is_fetched(dataset: str) -> bool:
    """Return whether a dataset has to be fetched before it can be used; the others ship with a library."""
    return "URL" in catalog.constants("dataset", dataset)


def _published(known: Mapping[str, Any]) -> str:
    """Return from where a dataset is taken if nobody says: the folder of its package, if installed, else its URL."""
    installed = known.get("PLACE")
    return str(installed if installed and Path(installed).is_dir() else known["URL"])


def fetch(dataset: str, data_folder: Path, source: str | None = None) -> str:
    """Bring a dataset here and return one line about it.

    Args:
        dataset: a name in the catalogue.
        data_folder: holds one folder per dataset.
        source: path or URL of the published archive, or of a folder with the published files; None: where a package
            of the system has them, else where they were published.

    Raises:
        CatalogError: no such dataset.
        FetchError: the data cannot be had, or are others; what was there before stays.
    """
    from ddp_hpc.data import _download

    if not is_fetched(dataset):
        if source:
            raise CatalogError(f"dataset {dataset!r} ships with its library, it cannot be taken from {source}")
        return f"{dataset}: ships with its library, nothing to fetch"
    known = catalog.constants("dataset", dataset)
    folder = data_folder / dataset
    place = source or _published(known)
    try:
        if "FILES" in known:
            new = _download.fetch_files(place, folder, known["FILES"], dataset)
        else:
            new = _download.fetch(place, folder, known["SHA256"], dataset)
    except _download.FetchError as error:
        if "INSTALL" not in known:
            raise
        raise _download.FetchError(f"{error}; on Debian and Ubuntu, `{known['INSTALL']}` brings it") from error
    return f"{dataset}: {'fetched into' if new else 'already in'} {folder}"
