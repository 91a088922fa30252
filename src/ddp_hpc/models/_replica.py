"""A model whose weights and gradients are views of two flat tensors."""

import contextlib
import mmap
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# Every parameter starts on a multiple of this in the flat tensors: GPU kernels are slower on unaligned operands.
ALIGNMENT_BYTES = 64


@dataclass(frozen=True)
class Span:
    """Where a parameter lies in the flat tensors."""

    parameter: nn.Parameter
    start: int
    end: int


def zeros(length: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return a flat tensor of zeros; on a CPU in huge pages where Linux gives them.

    One process reads another's memory page by page, so messages between the ranks of a node are faster: a ring of two
    ranks over 17 MB took 1.4 ms instead of 3.0.
    """
    if device.type != "cpu" or not length:
        return torch.zeros(length, device=device, dtype=dtype)
    memory = mmap.mmap(-1, length * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype)


class Replica:
    """One rank's copy of the model.

    `weights` and `gradients` are 1-D and contiguous, in the order of `model.parameters()`, so that one call sends
    them all and a bucket is a slice. The gaps that align the parameters stay zero. A parameter that takes no part
    in a step has the gradient zero, never None, so all ranks exchange the same lengths. `spans` says which parameter
    lies where; whatever the layout of one was, it is contiguous. All floating-point numbers get the `dtype`. A model
    with nothing to train, or with complex numbers, is a ValueError.
    """

    def __init__(self, model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        _refuse_complex(model)
        self.model = model.to(device=device, dtype=dtype)
        _unfold_buffers(self.model)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not trained:
            raise ValueError(f"{type(model).__name__} has no trainable parameter: there is nothing to exchange")
        self.parameters = sum(parameter.numel() for parameter in trained)

        aligned = ALIGNMENT_BYTES // dtype.itemsize
        self.spans: list[Span] = []
        length = 0
        for parameter in trained:
            self.spans.append(Span(parameter, length, length + parameter.numel()))
            length += -(-parameter.numel() // aligned) * aligned
        self.weights, self.gradients = (zeros(length, device, dtype) for _ in range(2))
        for span in self.spans:
            self.weights[span.start : span.end].view(span.parameter.shape).copy_(span.parameter.data)
        self._look_at(self.weights, self.gradients)
        self._forward: nn.Module = self.model

    def _look_at(self, weights: Tensor, gradients: Tensor) -> None:
        """Make all parameters and their gradients views of these flat tensors."""
        self.weights, self.gradients = weights, gradients
        for span in self.spans:
            shape = span.parameter.shape
            span.parameter.data = weights[span.start : span.end].view(shape)
            span.parameter.grad = gradients[span.start : span.end].view(shape)

    def move(self, weights: Tensor | None = None, gradients: Tensor | None = None) -> None:
        """Keep weights or gradients, if given, in other memory from now on, e.g. in what the ranks of a node share.

        What is given is like the tensor that it replaces, and is overwritten with its values.
        """
        if weights is not None:
            weights.copy_(self.weights)
        if gradients is not None:
            gradients.copy_(self.gradients)
        self._look_at(self.weights if weights is None else weights, self.gradients if gradients is None else gradients)

    def wrap(self, module: nn.Module) -> None:
        """Let `module`, which wraps the model, compute from now on, and keep the gradients where it wants them.

        The weights stay views of the flat tensor; `gradients` is then not in use.
        """
        self._forward = module

    @property
    def wrapper(self) -> nn.Module | None:
        """What wraps the model and computes; None: the model computes by itself."""
        return None if self._forward is self.model else self._forward

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the model's outputs in training."""
        outputs: Tensor = self._forward(inputs)
        return outputs

    def zero_gradients(self) -> None:
        """Clear the gradients; backward then adds to them in place."""
        if self.wrapper is None:
            self.gradients.zero_()
        else:
            self.model.zero_grad(set_to_none=True)

    def backward(self, loss: Tensor) -> None:
        """Write the gradients of a loss, in fewer kernels than clearing them and adding each to its view.

        No hook of a parameter is called, so it is not for exchanges that wait for one.
        """
        parameters = [span.parameter for span in self.spans]
        found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        torch._foreach_copy_([view for view in (parameter.grad for parameter in parameters) if view is not None], found)

    def buffers(self) -> list[Tensor]:
        """Return what the model keeps beside its weights, e.g. running means."""
        return list(self.model.buffers())

    def frozen(self) -> list[Tensor]:
        """Return the parameters that are not trained; a model may change them itself, as a mean of the others, say."""
        trained = {id(span.parameter) for span in self.spans}
        return [parameter.data for parameter in self.model.parameters() if id(parameter) not in trained]

    def check(self) -> None:
        """Refuse a model that has put others in the place of its parameters or gradients: it would not be trained."""
        spans = {id(span.parameter): span for span in self.spans}
        for name, parameter in self.model.named_parameters():
            span = spans.pop(id(parameter), None)
            if (span is None and parameter.requires_grad) or (span and not self._in_place(span)):
                raise RuntimeError(
                    f"the model has put another tensor in the place of its parameter {name} or of its gradient, or has "
                    "begun to train it: what is exchanged and stepped along is that of the start. Change parameters in "
                    "place (`parameter.data.clamp_(-1, 1)`), leave their gradients alone, and decide when the model is "
                    "built which are trained"
                )
        if spans:
            raise RuntimeError(
                f"the model has dropped {len(spans)} of the parameters with which it was built: what is exchanged and "
                "stepped along is still theirs"
            )

    def _in_place(self, span: Span) -> bool:
        """Return whether a parameter, and its gradient unless it was handed over, are still views of the flat ones."""
        pairs: list[tuple[Tensor | None, Tensor]] = [(span.parameter.data, self.weights)]
        if self.wrapper is None:
            pairs.append((span.parameter.grad, self.gradients))
        return span.parameter.requires_grad and all(
            view is not None and (not view.numel() or view.data_ptr() == flat[span.start :].data_ptr())
            for view, flat in pairs
        )


def _refuse_complex(model: nn.Module) -> None:
    """Refuse what a cast to a real type would take the imaginary part from."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_complex():
            raise ValueError(
                f"{type(model).__name__}: {name} is {str(tensor.dtype).removeprefix('torch.')}, expected: real "
                "numbers; keep `torch.view_as_real(...)` of it, and compute with `torch.view_as_complex(...)`"
            )


def _unfold_buffers(model: nn.Module) -> None:
    """Give buffers of which several entries are one number, as `expand` leaves them, memory in which all can be set."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if any(size > 1 and stride == 0 for size, stride in zip(buffer.shape, buffer.stride(), strict=True)):
                setattr(module, name, buffer.contiguous())
