"""Figures: one figure, one file. Each names the tables it reads (`INPUTS`) and offers `draw`."""

from ddp_hpc.analysis.figures._save import make

__all__ = ["make"]
