"""Tables: one table, one file. Each offers `build(study_runs) -> DataFrame`, and `CAPTION`."""

from ddp_hpc.analysis.tables._formats import built, lines, make

__all__ = ["built", "lines", "make"]
