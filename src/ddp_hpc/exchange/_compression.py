"""Compression of gradients: half precision, or top-k with error feedback.

All messages of all ranks are equally long, `bytes_per_message`. `encode` waits until the device is done, and overwrites
what it returned before. `add_to` adds what a message, of any rank, says to `total`, in place and in its precision.
`state` is what is kept from step to step, to save and restore in place.
"""

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ddp_hpc.exchange._pinned import pinning

Compression = Literal["float16", "bfloat16", "top_k"]
Message = NDArray[np.uint8]


class Half:
    """Two bytes per entry, rounded as torch casts; float64 gradients, too, keep no more than these bits.

    A finite entry beyond the type's range (float16: 65504) is sent as the largest that has it: one entry that is too
    large must not end a training that float32 would go on with. Infinities and NaN are sent as such, so that a
    training that diverges is seen to. What is below the range (float16: 3e-8) becomes zero.
    """

    def __init__(self, gradients: Tensor, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._out = _host_like(torch.empty_like(gradients, dtype=dtype))
        self.bytes_per_message = 2 * len(gradients)

    def encode(self, gradients: Tensor) -> Message:
        """Return `gradients` in two bytes each."""
        rounded = gradients.to(self._dtype)
        beyond = rounded.isinf() & gradients.isfinite()
        largest = torch.finfo(self._dtype).max
        self._out.copy_(torch.where(beyond, gradients.sign() * largest, rounded))
        return _bytes(self._out)

    def add_to(self, total: Tensor, message: NDArray[Any]) -> None:
        """Add the entries of `message` to `total`."""
        total += _tensor(message).view(self._dtype).to(total.device)

    def state(self) -> list[Tensor]:
        """Nothing is kept: what rounding takes is lost."""
        return []


class TopK:
    """The entries of largest magnitude only; the others are added to the next step's gradients.

    So nothing is lost but late: what was sent and what is still kept sum to all gradients there were
    (Stich et al., Sparsified SGD with Memory, arXiv:1809.07599; without the momentum correction of
    Lin et al., Deep Gradient Compression, arXiv:1712.01887). Of equal magnitudes, any may go first. The part `kept`
    of the entries is sent, at least one.
    """

    def __init__(self, gradients: Tensor, kept: float) -> None:
        self.residual = torch.zeros_like(gradients)  # what has not been sent yet
        self._count = min(len(gradients), max(1, round(kept * len(gradients))))
        self._index_type = torch.int32 if len(gradients) < 2**31 else torch.int64
        self._value_type = gradients.dtype
        value_bytes = self._count * gradients.element_size()
        self._indices_at = -(-value_bytes // 8) * 8  # aligned, whatever their type
        self.bytes_per_message = self._indices_at + self._count * self._index_type.itemsize
        empty = torch.zeros(self.bytes_per_message, dtype=torch.uint8, device=gradients.device)
        self._out = _host_like(empty).zero_()

    def _parts(self, message: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values and the indices of a message, as views."""
        values = message[: self._count * self._value_type.itemsize].view(self._value_type)
        return values, message[self._indices_at :].view(self._index_type)

    def encode(self, gradients: Tensor) -> Message:
        """Return the largest entries of `gradients` and what was kept; keep the rest."""
        self.residual += gradients
        chosen = self.residual.abs().topk(self._count, sorted=False).indices
        values, indices = self._parts(self._out)
        values.copy_(self.residual[chosen])
        indices.copy_(chosen)
        self.residual[chosen] = 0
        return _bytes(self._out)

    def add_to(self, total: Tensor, message: NDArray[Any]) -> None:
        """Add the entries of `message` to `total`."""
        values, indices = self._parts(_tensor(message).to(total.device))
        total[indices.long()] += values  # each index comes once

    def state(self) -> list[Tensor]:
        """Return what has not been sent yet."""
        return [self.residual]


Wire = Half | TopK


def make_wire(compression: Compression, gradients: Tensor, kept: float) -> Wire:
    """Return the form that `compression` names, for gradients like these, of more than two bytes each."""
    if gradients.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"compression {compression!r} of gradients in {str(gradients.dtype).removeprefix('torch.')}, expected: of "
            "float32 and float64; set compression: none, or the spec's dtype"
        )
    if compression == "top_k":
        return TopK(gradients, kept)
    return Half(gradients, torch.float16 if compression == "float16" else torch.bfloat16)


def _host_like(tensor: Tensor) -> Tensor:
    """Return memory for `tensor` that MPI can read, pinned if the tensor is a GPU's."""
    with pinning():
        return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)


def _bytes(tensor: Tensor) -> Message:
    """Return a host tensor's memory as bytes."""
    return tensor.view(torch.uint8).numpy()


def _tensor(message: NDArray[Any]) -> Tensor:
    """Return a message as a tensor: its own memory, if there is any."""
    return torch.from_numpy(message) if len(message) else torch.empty(0, dtype=torch.uint8)
