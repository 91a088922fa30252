"""Declarative scaling studies of data-parallel training."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("ddp-hpc")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
