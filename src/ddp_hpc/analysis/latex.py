"""Texts as LaTeX that prints them."""

import unicodedata

LAST_KNOWN = "\u017e"  # the accented letters of European languages end here
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "[": "{[}",  # after a line break it would be taken for an optional argument
    "\u2013": "--",
    "\u2014": "---",
    "\u2018": "`",
    "\u2019": "'",
    "\u201c": "``",
    "\u201d": "''",
    "\u2020": r"\textdagger{}",
    "\u2021": r"\textdaggerdbl{}",
    "\u2026": r"\ldots{}",
    "\u00b5": r"\ensuremath{\mu}",
    "\u03bc": r"\ensuremath{\mu}",
    "\u00b1": r"\ensuremath{\pm}",
    "\u00d7": r"\ensuremath{\times}",
    "\u2192": r"\ensuremath{\rightarrow}",
    "\u2248": r"\ensuremath{\approx}",
    "\u2264": r"\ensuremath{\le}",
    "\u2265": r"\ensuremath{\ge}",
} | {character: f"\\{character}" for character in "#$%&_"}


def escape(text: str) -> str:
    """Return `text` as LaTeX that prints it, control characters as spaces.

    What pdflatex does not know is printed as it is by XeLaTeX and LuaLaTeX, by its number in Unicode by pdflatex.
    """
    printable = (letter if letter.isprintable() else " " for letter in unicodedata.normalize("NFC", text))
    return "".join(
        _SPECIAL.get(letter) or (letter if letter <= LAST_KNOWN else _numbered(letter)) for letter in printable
    )


def _numbered(letter: str) -> str:
    return rf"\ifdefined\Umathchar {letter}\else [U+{ord(letter):04X}]\fi{{}}"
