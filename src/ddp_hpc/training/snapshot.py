"""Snapshots of a training's state: restored after warmup and traced steps, and written into checkpoints."""

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Named = list[tuple[str, Tensor]]


class Snapshot:
    """Copies of a training's state, to go back to: tensors, the model's buffers, the generators of host and device.

    Buffers are saved by their names, because a model may put a new tensor in the place of an old one. The copies lie
    on the device `to`; None: beside what was copied.
    """

    def __init__(
        self, tensors: Iterable[Tensor], model: nn.Module, device: torch.device, to: torch.device | None = None
    ) -> None:
        self._places: list[tuple[nn.Module | None, str, Tensor]] = [(None, "", tensor) for tensor in tensors]
        for module in model.modules():
            self._places += [(module, name, buffer) for name, buffer in module.named_buffers(recurse=False)]
        self._copies: Named = [
            (name, tensor.detach().to(to or tensor.device, copy=True)) for _, name, tensor in self._places
        ]
        self._device = device
        kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
        self._generators: dict[str, Any] = {
            "python": random.getstate(),
            "numpy": (kind, np.asarray(keys).tolist(), *rest),
            "host": torch.get_rng_state(),
            "device": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        }

    def values(self) -> dict[str, Any]:
        """Return the copies, for a file: tensors and plain values only."""
        return {"tensors": self._copies, "generators": self._generators}

    def take_over(self, values: dict[str, Any]) -> None:
        """Let the copies be those that another snapshot, of a training like this one, gave by `values`.

        Raises:
            ValueError: that training was not like this one; nothing is taken over then.
        """
        theirs, generators = values["tensors"], values["generators"]
        on_gpu, mine_on_gpu = (one["device"] is not None for one in (generators, self._generators))
        if _forms(theirs) != _forms(self._copies) or on_gpu != mine_on_gpu:
            raise ValueError(
                f"it holds {_size(theirs)}, this rank has {_size(self._copies)}: ranks sit otherwise on nodes, or on "
                "others"
            )
        self._copies, self._generators = theirs, generators

    def restore(self) -> None:
        """Put every tensor and generator back, in place."""
        for (owner, name, tensor), (_, saved) in zip(self._places, self._copies, strict=True):
            tensor.detach().copy_(saved)
            if owner is not None:
                setattr(owner, name, tensor)
        random.setstate(self._generators["python"])
        np.random.set_state(self._generators["numpy"])  # noqa: NPY002  (a model may draw from it)
        torch.set_rng_state(self._generators["host"])
        if self._generators["device"] is not None:
            torch.cuda.set_rng_state(self._generators["device"], self._device)


def _forms(named: Named) -> list[tuple[str, torch.Size, torch.dtype]]:
    return [(name, tensor.shape, tensor.dtype) for name, tensor in named]


def _size(named: Named) -> str:
    return f"{len(named)} tensors of {sum(tensor.numel() for _, tensor in named)} numbers"
