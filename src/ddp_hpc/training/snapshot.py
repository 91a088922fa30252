"""Snapshots of a training's state: restored after warmup and traced steps, and written into checkpoints."""

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Snapshot:
    """Copies of a training's state, to go back to: tensors, the model's buffers, the random generators.

    Args:
        tensors: changed in place by a step.
        model: its buffers are saved by their names, because a model may put a new tensor in the place of an old one.
        device: whose generator is saved beside those of the host.
        to: where the copies lie; None: beside what was copied.
    """

    def __init__(
        self, tensors: Iterable[Tensor], model: nn.Module, device: torch.device, to: torch.device | None = None
    ) -> None:
        def copy(tensor: Tensor) -> Tensor:
            return tensor.detach().to(tensor.device if to is None else to, copy=True)

        self._saved = [(tensor, copy(tensor)) for tensor in tensors]
        self._buffers = [
            (module, name, buffer, copy(buffer))
            for module in model.modules()
            for name, buffer in module.named_buffers(recurse=False)
        ]
        self._device = device
        self._python_random = random.getstate()
        self._numpy_random: tuple[Any, ...] = np.random.get_state(legacy=True)  # type: ignore[assignment]  # noqa: NPY002
        self._host_random = torch.get_rng_state()
        self._device_random = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def values(self) -> dict[str, Any]:
        """Return the copies, for a file: tensors and plain values only."""
        kind, keys, *rest = self._numpy_random
        return {
            "tensors": [saved for _, saved in self._saved],
            "buffers": [(name, saved) for _, name, _, saved in self._buffers],
            "python_random": self._python_random,
            "numpy_random": (kind, np.asarray(keys).tolist(), *rest),
            "host_random": self._host_random,
            "device_random": self._device_random,
        }

    def take_over(self, values: dict[str, Any]) -> None:
        """Let the copies be those that another snapshot, of a training like this one, gave by `values`.

        Raises:
            ValueError: that training was not like this one; nothing is taken over then.
        """
        theirs = [*(("", saved) for saved in values["tensors"]), *values["buffers"]]
        own = [*(("", saved) for _, saved in self._saved), *((name, saved) for _, name, _, saved in self._buffers)]
        if list(map(_form, theirs)) != list(map(_form, own)) or (
            (values["device_random"] is None) != (self._device_random is None)
        ):
            raise ValueError(
                f"it holds {_forms(theirs)}, this rank has {_forms(own)}: ranks sit otherwise on nodes, or on others"
            )
        self._saved = [(tensor, saved) for (tensor, _), saved in zip(self._saved, values["tensors"], strict=True)]
        self._buffers = [
            (module, name, buffer, saved)
            for (module, name, buffer, _), (_, saved) in zip(self._buffers, values["buffers"], strict=True)
        ]
        kind, keys, *rest = values["numpy_random"]
        self._numpy_random = (kind, np.array(keys, dtype=np.uint32), *rest)
        self._python_random = values["python_random"]
        self._host_random, self._device_random = values["host_random"], values["device_random"]

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


def _form(named: tuple[str, Tensor]) -> tuple[str, torch.Size, torch.dtype]:
    name, tensor = named
    return name, tensor.shape, tensor.dtype


def _forms(all_named: list[tuple[str, Tensor]]) -> str:
    return f"{len(all_named)} tensors of {sum(tensor.numel() for _, tensor in all_named)} numbers"
