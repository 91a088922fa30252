"""The protocols of exchanges and optimizers."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ddp_hpc.profiling.timers import Timers as Timers  # what an exchange tells the clock


class Optimizer(Protocol):
    """Takes the weights that it was made for one step along their gradients."""

    def step(self) -> None:
        """Update the weights from the gradients as they are now."""


class Exchange(Protocol):
    """A way to go from the gradients of all ranks to the next weights."""

    def update(self) -> None:
        """Exchange the gradients, then take the optimiser's step. All ranks must call, if it is synchronous."""

    def close(self) -> None:
        """Give back what is held: nothing, unless an exchange has a method of its own."""
        return


@runtime_checkable
class Synchronizes(Protocol):
    """What an exchange has too if its ranks' weights differ, or gradients may be under way, between two steps."""

    def synchronize(self) -> None:
        """Apply every gradient that was sent, and give all ranks the weights of the trained model.

        All ranks must call, after any number of steps each; training can go on afterwards. It is called in the last
        step and before the weights are evaluated.
        """


@runtime_checkable
class Stateful(Protocol):
    """What an exchange has too if it keeps something from step to step, e.g. what compression has left out."""

    def state(self) -> list[Tensor]:
        """Return all that changes from step to step beside weights and optimiser, to save and restore in place."""


@runtime_checkable
class HasMetrics(Protocol):
    """What an exchange has too if there is more to say of it than its times."""

    def metrics(self) -> dict[str, float | None]:
        """Return columns of the run record, e.g. of staleness; this rank's since the last `synchronize`,
        or since the start.

        It is called once, on every rank, after the last step and before `close`; ranks' numbers are averaged, or the
        largest is taken where the column is a maximum.
        """


Wrap = Callable[[torch.optim.Optimizer], torch.optim.Optimizer]


class MakeOptimizer(Protocol):
    """Makes optimisers by the spec's rule."""

    def __call__(self, weights: Tensor, gradients: Tensor) -> Optimizer:
        """Return one of these weights, all or a slice, and the same slice of the gradients: flat tensors."""

    def of_torch(self, parameters: Sequence[nn.Parameter], fused: bool, wrap: Wrap | None = None) -> Optimizer:
        """Return one of `torch.optim` for these parameters, as users of torch make it, in what `wrap` makes of it."""
