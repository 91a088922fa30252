"""Declarative scaling studies of data-parallel training."""


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version  # slow to import, and every run starts us several times

    return version("ddp-hpc")
