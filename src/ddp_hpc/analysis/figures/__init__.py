"""Figures: one figure, one file. Each names the tables it reads (`INPUTS`) and offers `draw(tables, study, coverage)`.

`draw` gets these tables by their names, the study, and in words how many of the planned runs there are, which is the
last line of its small print. What figures share: `_panels` and `_curves` make panels and curves of a table's rows,
`_marks` marks points that are not to be trusted, `_layout` holds what is around the panels, `_style` how it all looks.
"""

from ddp_hpc.analysis.figures._save import SIZES, make, picture

__all__ = ["SIZES", "make", "picture"]
