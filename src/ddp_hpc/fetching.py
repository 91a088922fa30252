"""Fetch a dataset by its name: where from, and which checksum, stand as constants in its file."""

from pathlib import Path

from ddp_hpc import catalog
from ddp_hpc.catalog import CatalogError


def is_fetched(dataset: str) -> bool:
    """Return whether a dataset has to be fetched before it can be used; the others ship with a library."""
    return "URL" in catalog.constants("dataset", dataset)


def fetch(dataset: str, data_folder: Path, source: str | None = None) -> str:
    """Bring a dataset here and return one line about it.

    Args:
        dataset: a name in the catalogue.
        data_folder: holds one folder per dataset.
        source: path or URL of the published archive; None: where it was published.

    Raises:
        CatalogError: no such dataset.
        FetchError: the archive cannot be had, or is another one; what was there before stays.
    """
    from ddp_hpc.data import _fetch

    if not is_fetched(dataset):
        if source:
            raise CatalogError(f"dataset {dataset!r} ships with its library, it cannot be taken from {source}")
        return f"{dataset}: ships with its library, nothing to fetch"
    known = catalog.constants("dataset", dataset)
    folder = data_folder / dataset
    new = _fetch.fetch(source or known["URL"], folder, known["SHA256"], dataset)
    return f"{dataset}: {'fetched into' if new else 'already in'} {folder}"
