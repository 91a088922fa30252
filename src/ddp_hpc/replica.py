"""A model whose weights and gradients are views of two flat tensors."""

import random
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

# Every parameter starts on a multiple of this in the flat tensors: GPU kernels are slower on unaligned operands.
ALIGNMENT_BYTES = 64


class Replica:
    """One rank's copy of the model.

    `weights` and `gradients` are 1-D and contiguous, in the order of `model.parameters()`, so that one call sends
    them all and a bucket is a slice. The gaps that align the parameters stay zero. A parameter that takes no part
    in a step has the gradient zero, never None, so all ranks exchange the same lengths.

    Args:
        model: its parameters are moved; whatever their layout was, they are contiguous afterwards.
        device: where to.
        dtype: of all floating-point parameters and buffers.

    Raises:
        ValueError: the model has nothing to train.
    """

    def __init__(self, model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        self.model = model.to(device=device, dtype=dtype)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not trained:
            raise ValueError(f"{type(model).__name__} has no trainable parameter: there is nothing to exchange")
        self.parameters = sum(parameter.numel() for parameter in trained)

        aligned = ALIGNMENT_BYTES // dtype.itemsize
        starts, length = [], 0
        for parameter in trained:
            starts.append(length)
            length += -(-parameter.numel() // aligned) * aligned
        self.weights = torch.zeros(length, device=device, dtype=dtype)
        self.gradients = torch.zeros_like(self.weights)
        for start, parameter in zip(starts, trained, strict=True):
            end = start + parameter.numel()
            view = self.weights[start:end].view(parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = self.gradients[start:end].view(parameter.shape)

    def zero_gradients(self) -> None:
        """Clear the gradients; backward then adds to them in place."""
        self.gradients.zero_()

    def buffers(self) -> list[Tensor]:
        """Return what the model keeps beside its weights, e.g. running means."""
        return list(self.model.buffers())


class Snapshot:
    """Copies of a training's state, to go back to: tensors, the model's buffers, the random generators.

    Args:
        tensors: changed in place by a step.
        model: its buffers are saved by their names, because a model may put a new tensor in the place of an old one.
        device: whose generator is saved beside those of the host.
    """

    def __init__(self, tensors: Iterable[Tensor], model: nn.Module, device: torch.device) -> None:
        self._saved = [(tensor, tensor.detach().clone()) for tensor in tensors]
        self._buffers = [
            (module, name, buffer, buffer.detach().clone())
            for module in model.modules()
            for name, buffer in module.named_buffers(recurse=False)
        ]
        self._device = device
        self._python_random, self._numpy_random = random.getstate(), np.random.get_state()  # noqa: NPY002
        self._host_random = torch.get_rng_state()
        self._device_random = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore(self) -> None:
        """Put every tensor and generator back, in place."""
        for tensor, saved in self._saved:
            tensor.detach().copy_(saved)
        for module, name, buffer, saved in self._buffers:
            buffer.detach().copy_(saved)
            setattr(module, name, buffer)
        random.setstate(self._python_random)
        np.random.set_state(self._numpy_random)  # noqa: NPY002  (a model may draw from it)
        torch.set_rng_state(self._host_random)
        if self._device_random is not None:
            torch.cuda.set_rng_state(self._device_random, self._device)
