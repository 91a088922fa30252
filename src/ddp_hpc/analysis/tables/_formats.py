"""Formats of a table: Parquet (which figures read) and CSV with all columns; Markdown and LaTeX for reading."""

import json
import re
import textwrap
from pathlib import Path

import pandas as pd
import pyarrow as pa
from pyarrow import compute, csv

from ddp_hpc.analysis.formatting import Readable, heading, in_a_cell, in_words, readable
from ddp_hpc.analysis.latex import escape
from ddp_hpc.config import catalog
from ddp_hpc.config.spec import SPEC_COLUMNS
from ddp_hpc.config.types import canonical_json
from ddp_hpc.runs import records
from ddp_hpc.runs.study_runs import StudyRuns
from ddp_hpc.system.files import replaced

MOST_ROWS = 200  # in Markdown and LaTeX, which are for reading
WIDE = 60  # letters; longer texts are broken into lines in LaTeX
BREAK = r" \\"
LINE_PT, COLUMN_PT = 345, 229  # widths in LaTeX's article: of a line, and of one in two columns
LETTER_PT, BESIDE_PT = 4.5, 3.0  # of a letter of \footnotesize; beside a column of a table
SMALL = 9 / 8  # a letter of \small to that
SENTENCE = 0.25  # of a line
HEADING_LETTERS = 10  # of a line of a heading
ENDS = re.compile(r" (low|high|least|largest)\b")  # in headings, of intervals and ranges
AXES = frozenset(map(heading, SPEC_COLUMNS))
# what a spreadsheet would evaluate, in full width too, or what is marked already and would be
FORMULA = r"^'*\s*[=+\-@" + "\uff1d\uff0b\uff0d\uff20" + r"]|^'*[\t\r\n]"
NUMBER = r"^[-+]?[0-9.]+([eE][-+]?[0-9]+)?$"
CSV = (
    "text is in quotes; a missing value is an empty cell without quotes, an empty text one with quotes; a text that a "
    "spreadsheet would take for a formula has an apostrophe before it"
)
LONG, SHORT = 45, 30  # rows on a page in LaTeX, in letters of \footnotesize and of \small


def make(name: str, study_runs: StudyRuns, folder: Path) -> Path:
    """Write a table as `<name>.csv`, `.md`, `.tex` and `.parquet` into `folder`, the Parquet file last.

    A table may offer `LEFT_OUT`, columns that are not for reading, or `left_out(study)`, if they depend on the study;
    `RANKED = True`, if the rules of the winner belong to its notes; `FOR_READING = False`, if nobody reads it: then
    there are Parquet and CSV only; `lines(frame)`, for a terminal.

    Coverage, rules, caption, study and the columns left out stand in the Parquet file's metadata
    (`records.read_metadata`), coverage and rules also as notes under the readable forms.

    Returns:
        The Parquet file.

    Raises:
        CatalogError: no such table.
        RecordError: naming every record that cannot be read.
    """
    frame, module = built(name, study_runs), catalog.load("table", name)
    study, caption, coverage = study_runs.study, str(getattr(module, "CAPTION", name)), study_runs.coverage()
    left_out = list(module.left_out(study) if hasattr(module, "left_out") else getattr(module, "LEFT_OUT", ()))
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    with replaced(folder / f"{name}.csv") as temporary:
        csv.write_csv(safe_in_spreadsheets(table), temporary)
    if getattr(module, "FOR_READING", True):
        shown = readable(frame.head(MOST_ROWS), left_out)
        rules = in_words(study.rules, study.looks) if getattr(module, "RANKED", False) else []
        notes = [f"Coverage: {coverage}.", *rules, *shown.notes]
        if len(frame) > MOST_ROWS:
            notes.append(f"The first {MOST_ROWS} of {len(frame)} rows; all are in {name}.csv and {name}.parquet.")
        label = f"tab:{study.name}-{name}".replace("_", "-")
        _replace(folder / f"{name}.md", markdown(shown, caption, [*notes, *shown.for_authors]))
        _replace(folder / f"{name}.tex", latex(shown, caption, notes, label))
    facts = {
        "study": study.name,
        "caption": caption,
        "coverage": coverage,
        "rules": study.rules.model_dump(),
        "left_out": left_out,
        "csv": CSV,
    }
    metadata = {f"ddp_hpc.{key}": json.dumps(value) for key, value in facts.items()}
    file = folder / f"{name}.parquet"
    records.write_table(table.replace_schema_metadata({**(table.schema.metadata or {}), **metadata}), file)
    return file


def built(name: str, study_runs: StudyRuns) -> pd.DataFrame:
    """Return a table as its files have it. May raise CatalogError and RecordError, as `make` does."""
    return _as_it_is(catalog.load("table", name).build(study_runs))


def _as_it_is(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose options name letters as they are: records escape all but ASCII, for their hashes."""
    plain = frame.copy()
    for name in (name for name in frame if str(name).endswith("_options")):
        texts = [None if pd.isna(text) else canonical_json(json.loads(text), escaped=False) for text in frame[name]]
        plain[name] = pd.Series(texts, frame.index, frame[name].dtype)
    return plain


def safe_in_spreadsheets(table: pa.Table) -> pa.Table:
    """Return a table whose texts no spreadsheet evaluates: an apostrophe stands before each that it would.

    Texts that are plain numbers are harmless. Who takes one apostrophe away from `'*FORMULA` has the table again.
    """
    for at, field in enumerate(table.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            texts = table.column(at)
            evaluated = compute.and_not(
                compute.match_substring_regex(texts, FORMULA), compute.match_substring_regex(texts, NUMBER)
            )
            marked = compute.binary_join_element_wise(pa.scalar("'", field.type), texts, pa.scalar("", field.type))
            table = table.set_column(at, field, compute.if_else(evaluated, marked, texts))
    return table


def lines(name: str, file: Path) -> list[str]:
    """Return what a terminal shows of a table that was written to `file`: nothing if it offers no `lines(frame)`."""
    module = catalog.load("table", name)
    return list(module.lines(pd.read_parquet(file))) if hasattr(module, "lines") else []


def markdown(shown: Readable, caption: str, notes: list[str]) -> str:
    """Return a table of texts as Markdown."""

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(map(in_a_cell, cells)) + " |"

    rows = [
        line(list(shown.texts.columns)),
        line(["---:" if number else "---" for number in shown.numeric]),
        *(line(row) for row in shown.texts.values.tolist()),
    ]
    return "\n".join([f"**{caption}**", "", *rows, "", *(f"{in_a_cell(note)}  " for note in notes), ""])


def latex(shown: Readable, caption: str, notes: list[str], label: str) -> str:
    """Return a table of texts as LaTeX, no wider than a line of an article; it needs the package booktabs.

    On a page of two columns it stands in one, if it fits, else it spans both; it goes on in another table after `LONG`
    rows. Its letters are small where that fits, else smaller.
    """
    kept, gone, width_pt = _that_fit(shown)
    table, room_pt = ("table", COLUMN_PT) if width_pt <= COLUMN_PT else ("table*", LINE_PT)
    size = r"\small" if SMALL * width_pt <= room_pt and len(shown.texts) <= SHORT else r"\footnotesize"
    cells, numeric = shown.texts.iloc[:, kept], [shown.numeric[at] for at in kept]
    head = " & ".join(map(_heading, cells.columns, numeric)) + BREAK
    body = [" & ".join(map(escape, row)) + BREAK for row in cells.values.tolist()]
    texts = cells.T.values.tolist()  # by column
    columns = "".join("r" if number else _column(those) for number, those in zip(numeric, texts, strict=True))
    title = rf"\caption{{{escape(caption)}}}\label{{{label}}}"
    begin = rf"\centering{size}\setlength{{\tabcolsep}}{{{BESIDE_PT:g}pt}}"
    lines = []
    for first in range(0, max(len(body), 1), LONG):
        rows = [r"\toprule", head, r"\midrule", *body[first : first + LONG], r"\bottomrule", r"\end{tabular}"]
        start, end = (rf"\{word}{{{table}}}" for word in ("begin", "end"))
        lines += [start, begin, title, rf"\begin{{tabular}}{{{columns}}}", *rows, end]
        title = rf"Table~\ref{{{label}}}, continued\par"
    lines.insert(-1, rf"\par\smallskip\raggedright {f'{BREAK} '.join(map(escape, notes))}")
    told = [f"No room on a line, but in the Parquet and CSV files: {', '.join(gone)}."] if gone else []
    needs = [f"% {' '.join(note.split())}" for note in (r"needs \usepackage{booktabs}", *told, *shown.for_authors)]
    if any(r"\ifdefined" in line for line in lines):
        needs.append("% XeLaTeX or LuaLaTeX and a font that has them print all; pdflatex prints some as [U+...]")
    return "\n".join([*needs, *lines, ""])


def _that_fit(shown: Readable) -> tuple[list[int], list[str], float]:
    """Return the columns for which a line has room, the names of the others, and how wide those that fit are.

    Ends of intervals go first, then the last column; the first and those of a spec stay, which tell rows apart.
    """
    names, texts = list(shown.texts.columns), shown.texts.T.values.tolist()
    width_pt = dict(enumerate(map(_width_pt, names, texts)))
    free = [at for at, name in enumerate(names) if at and name not in AXES]
    for at in sorted(free, key=lambda at: (not ENDS.search(names[at]), -at)):
        if sum(width_pt.values()) > LINE_PT:
            del width_pt[at]
    return list(width_pt), [name for at, name in enumerate(names) if at not in width_pt], sum(width_pt.values())


def _width_pt(name: str, cells: list[str]) -> float:
    """Return about how wide a column is, with what is beside it."""
    sentence = max(map(len, cells), default=0) > WIDE
    text_pt = SENTENCE * LINE_PT if sentence else LETTER_PT * max(map(len, (*_stacked(name), *cells)))
    return text_pt + 2 * BESIDE_PT


def _stacked(name: str) -> list[str]:
    """Return a heading in lines, so that a narrow column may have a long one."""
    return textwrap.wrap(name, HEADING_LETTERS, break_long_words=False, break_on_hyphens=False) or [""]


def _heading(name: str, numeric: bool) -> str:
    return rf"\shortstack[{'r' if numeric else 'l'}]{{{BREAK.join(map(escape, _stacked(name)))}}}"


def _column(cells: list[str]) -> str:
    """Return the type of a column of texts: sentences are broken into lines."""
    return "l" if max(map(len, cells), default=0) <= WIDE else rf"p{{{SENTENCE:g}\linewidth}}"


def _replace(file: Path, text: str) -> None:
    with replaced(file) as temporary:
        temporary.write_text(text, encoding="utf-8")
