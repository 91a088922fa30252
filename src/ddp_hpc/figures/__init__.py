"""Figures: one figure, one file. Each names the tables it reads (`INPUTS`) and offers `draw`."""

from ddp_hpc.figures._make import make

__all__ = ["make"]
