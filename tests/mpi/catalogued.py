"""Which exchanges a test is for: those of the catalogue that can run here and say certain things of themselves."""

from importlib import import_module

from ddp_hpc.config import catalog

# baselines that must be told of what ours do by themselves
UNUSED = {"torch_ddp": {"find_unused_parameters": True}}


def usable(world_size, **flags):
    """The names of all exchanges that run here, on so many ranks, and whose file says that of them."""
    names = []
    for name in catalog.names("exchange"):
        known = catalog.constants("exchange", name)
        fits = known.get("MAX_WORLD_SIZE", 10**6) >= world_size and "cpu" in catalog.devices(name)
        if fits and all(known[flag] == value for flag, value in flags.items()) and installed(name):
            names.append(name)
    assert names, f"no exchange of {world_size} ranks says {flags}: a test over them would hold of nothing"
    return names


def installed(name):
    """Whether the baseline of that name, if it is one, can be imported."""
    package = catalog.constants("exchange", name).get("PACKAGE")
    try:
        return package is None or bool(import_module(package))
    except ImportError:
        return False
