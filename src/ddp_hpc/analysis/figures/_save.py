"""Draws a figure from its tables and saves it as SVG, PDF and PNG."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ddp_hpc.analysis.figures._style import SIZES as SIZES
from ddp_hpc.analysis.figures._style import TEXT, style
from ddp_hpc.analysis.latex import escape
from ddp_hpc.config import catalog
from ddp_hpc.config.study import Study
from ddp_hpc.runs import records
from ddp_hpc.system.files import replaced

if TYPE_CHECKING:  # `_style` has to come before matplotlib
    from matplotlib.figure import Figure

MOST_HEIGHT_IN = 9.0  # of a page
# no dates and versions in the files: the same tables make the same bytes
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
    "svg": {"Creator": None, "Date": None, "Type": None, "Format": None},
}


def make(name: str, study: Study, tables_folder: Path, folder: Path, size: str | None = None) -> Path:
    """Draw a figure in the size that suits it, or as `<name>-<size>`; see `save`; return the SVG file.

    No such figure is a CatalogError; a table that the figure reads and that is not there, a FileNotFoundError;
    a figure that is too high for a page in this size, a ValueError.
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
    with style(size):
        figure = _drawn(name, study, tables, coverage, size)
        return save(
            figure, folder, f"{name}-{size}" if size else name, constants.get("CAPTION", f"{name}."), study.name
        )


def picture(
    name: str, study: Study, tables: dict[str, pd.DataFrame], coverage: str, size: str | None = None
) -> "Figure":
    """Return a figure of these tables as `make` saves it. Too high for a page in this size: a ValueError."""
    with style(size):
        figure = _drawn(name, study, tables, coverage, size)
        _lay_out(figure)
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if "labelsize" not in axis.get_tick_params():  # else how many ticks there are is for letters of the user's size
            axis.set_tick_params(labelsize=TEXT)
    return figure


def _drawn(name: str, study: Study, tables: dict[str, pd.DataFrame], coverage: str, size: str | None) -> "Figure":
    figure: Figure = catalog.load("figure", name).draw(tables, study, coverage)
    height_in = figure.get_figheight()
    if size and height_in > MOST_HEIGHT_IN:
        raise ValueError(
            f"{height_in:.0f} in high in this size, a page has {MOST_HEIGHT_IN:g}; leave out `--size {size}`"
        )
    return figure


def _lay_out(figure: "Figure") -> None:
    """Lay a figure out once, for all forms, in round numbers: the solver's last digits differ from time to time.

    What has a name in an SVG file gets a number, too: no name stands there twice.
    """
    for number, one in enumerate(figure.findobj(lambda one: bool(one.get_gid()))):
        one.set_gid(f"{one.get_gid()}.{number}")
    figure.draw_without_rendering()
    if _cut(figure):  # what stands beside a bar has moved with it
        figure.draw_without_rendering()
    figure.set_layout_engine(None)  # "none" is an engine, too: with any, each form is drawn twice
    for axes in figure.axes:
        place = axes.get_position(original=True).bounds
        axes.set_position(tuple(round(part, 6) for part in place), which="original")


def _cut(figure: "Figure") -> bool:
    """Return whether the edge of the figure cuts words that stand in a panel."""
    words = (text.get_window_extent() for axes in figure.axes for text in axes.texts)
    return any(one.x0 < figure.bbox.x0 or one.x1 > figure.bbox.x1 for one in words)


def save(figure: "Figure", folder: Path, name: str, caption: str, study: str = "") -> Path:
    """Write a figure as `<name>.png`, `.pdf` and `.svg`, the SVG last, into `folder`, made if need be; return the SVG.

    Beside it stands the caption, with what the figure's label adds to it, as `<name>.txt`, and `<name>.tex` for LaTeX.
    The figure was drawn within `style()`, which still holds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    whole = " ".join(filter(None, [caption, str(figure.get_label())]))
    label = "-".join(filter(None, ["fig:" + study, name])).replace("_", "-")
    for form, text in {"txt": whole, "tex": rf"\caption{{{escape(whole)}}}\label{{{label}}}"}.items():
        with replaced(folder / f"{name}.{form}") as temporary:
            temporary.write_text(f"{text}\n", encoding="utf-8")
    title = f"{study}: {caption}" if study else caption
    _lay_out(figure)
    for form, metadata in _METADATA.items():
        drawn = io.BytesIO()  # on a full disk matplotlib's writers fail in words of their own
        figure.savefig(drawn, format=form, metadata=metadata | {"Title": title})
        with replaced(folder / f"{name}.{form}") as temporary:
            temporary.write_bytes(drawn.getvalue())
    return folder / f"{name}.svg"
