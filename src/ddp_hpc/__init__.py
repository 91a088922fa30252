"""Declarative scaling studies of data-parallel training. In a notebook: `study = ddp_hpc.open("mine")`."""

from typing import TYPE_CHECKING

__version__: str

if TYPE_CHECKING:
    from ddp_hpc.publication.notebook import load_model as load_model
    from ddp_hpc.publication.notebook import open as open
    from ddp_hpc.runs.recorder import recorder as recorder
else:

    def __getattr__(name):
        from importlib import import_module

        if name in ("open", "load_model"):
            return getattr(import_module("ddp_hpc.publication.notebook"), name)
        if name == "realign":  # where docs/schemes.md has it
            return import_module("ddp_hpc.models._shift_kernels")
        if name == "recorder":  # of a training program of one's own
            return import_module("ddp_hpc.runs.recorder").recorder
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import version  # slow to import, and every run starts us several times

        return version("ddp-hpc")
