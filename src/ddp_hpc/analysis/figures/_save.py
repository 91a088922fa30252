"""Draws a figure from its tables and saves it as SVG, PDF and PNG."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ddp_hpc.analysis.figures._style import style
from ddp_hpc.config import catalog
from ddp_hpc.config.study import Study
from ddp_hpc.runs import records
from ddp_hpc.system.files import replaced

if TYPE_CHECKING:  # `_style` has to come before matplotlib
    from matplotlib.figure import Figure

# no dates and versions in the files: the same tables make the same bytes
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
    "svg": {"Creator": None, "Date": None, "Type": None, "Format": None},
}


def make(name: str, study: Study, tables_folder: Path, folder: Path) -> Path:
    """Draw a figure as `<name>.png`, `.pdf` and `.svg` into `folder`; return the SVG file.

    No such figure is a CatalogError; a table that the figure reads and that is not there, a FileNotFoundError.
    """
    constants = catalog.constants("figure", name)
    tables, coverage = {}, ""
    for table in constants["INPUTS"]:
        file = tables_folder / f"{table}.parquet"
        if not file.is_file():
            raise FileNotFoundError(
                f"figure {name!r} reads {file}, which is not there; make it: `ddp-hpc table {study.name} {table}`"
            )
        tables[table] = pd.read_parquet(file)
        coverage = records.read_metadata(file)["coverage"]
    module = catalog.load("figure", name)
    with style():
        figure: Figure = module.draw(tables, study, coverage)
        return save(figure, folder, name, f"{study.name}: {constants.get('CAPTION', name)}")


def save(figure: "Figure", folder: Path, name: str, title: str) -> Path:
    """Write a figure as `<name>.png`, `.pdf` and `.svg`, the SVG last, into `folder`, made if need be; return the SVG.

    The figure was drawn within `style()`, which still holds; its title stands in the files' metadata.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # laid out once, for all forms, in round numbers: the solver's last digits differ from time to time
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        place = axes.get_position(original=True).bounds
        axes.set_position(tuple(round(part, 6) for part in place), which="original")
    for form, metadata in _METADATA.items():
        drawn = io.BytesIO()  # on a full disk matplotlib's writers fail in words of their own
        figure.savefig(drawn, format=form, metadata=metadata | {"Title": title})
        with replaced(folder / f"{name}.{form}") as temporary:
            temporary.write_bytes(drawn.getvalue())
    return folder / f"{name}.svg"
