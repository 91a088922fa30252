"""`ddp-hpc bench`: its stand-ins fit. Every part is run, in its smallest form, by `test_documented_commands.py`."""

import inspect

from ddp_hpc.bench import idle_rank
from ddp_hpc.execution import rank


def test_the_idle_rank_is_called_as_the_rank_is():
    taken = inspect.signature(rank.main).parameters
    assert list(inspect.signature(idle_rank.main).parameters.values()) == list(taken.values())
