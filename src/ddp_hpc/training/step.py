"""One training step, from a batch to the next weights."""

from torch import Tensor

from ddp_hpc.training.components import Components

AGREE_EVERY_STEPS = 10  # how often the host waits for its device, and the ranks ask each other whether to stop


def training_step(components: Components, number: int) -> Tensor:
    """Go from one state of the weights to the next; return the loss of this rank's batch, still on the device."""
    components.batches.load(number)
    loss = forward_backward(components)
    components.batches.prefetch(number + 1)
    components.exchange.update()
    return loss


def forward_backward(components: Components, hooks: bool = True) -> Tensor:
    """Make the gradients of this rank's batch; return its loss. Without `hooks` none of a parameter is called."""
    replica, batch = components.replica, components.batches.batch()
    with components.arithmetic():
        loss = components.compute(batch.inputs, batch.targets)
    components.timers.mark("forward_s")
    if hooks:
        replica.zero_gradients()
        loss.backward()  # type: ignore[no-untyped-call]
    else:
        replica.backward(loss)
    components.timers.mark(components.last_of_backward)
    return loss.detach()


def whole_step(components: Components) -> Tensor:
    """Go from this rank's batch to the next weights, without hooks but those of a wrapper; return its loss."""
    loss = forward_backward(components, hooks=components.replica.wrapper is not None)
    components.exchange.update()
    return loss
