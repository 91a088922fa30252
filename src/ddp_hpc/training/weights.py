"""The trained weights of a run as a file in the format safetensors, and the model that they make."""

import json
import warnings
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import nn

from ddp_hpc.config import catalog, spec
from ddp_hpc.runs import identity
from ddp_hpc.system.files import replaced


class WeightsError(ValueError):
    """Weights that cannot be read, or that the model does not take."""


def save(file: Path, run: str, of: spec.RunSpec, model: nn.Module, input_shape: tuple[int, ...]) -> None:
    """Write the weights and buffers of a model, and what it is built from, in place of `file`.

    The tensors have the names of the model's `state_dict`. Those of rank 0 are the ones that evaluations judge.
    """
    tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in model.state_dict().items()}
    about = {
        "run": run,
        "spec": of.canonical,
        "input_shape": list(input_shape),
        "outputs": catalog.load("dataset", of.dataset.name).OUTPUTS,
        "files": _files(of.model.name),
    }
    with replaced(file) as temporary:
        safetensors.torch.save_file(tensors, temporary, {name: json.dumps(value) for name, value in about.items()})


def load(file: Path) -> nn.Module:
    """Return the model of a run with the weights of `file`, on the CPU, in evaluation. May raise a WeightsError."""
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            about = {name: json.loads(value) for name, value in (opened.metadata() or {}).items()}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  (it is no mapping)
        of = spec.load(about["spec"])
    except (safetensors.SafetensorError, OSError, KeyError, ValueError) as error:
        raise WeightsError(f"{file} cannot be read as weights that ddp-hpc has kept: {error}") from None
    changed = [name for name, hashed in _files(of.model.name).items() if about["files"].get(name, hashed) != hashed]
    if changed:
        warnings.warn(f"{', '.join(changed)} has changed since {about['run']} was trained", stacklevel=3)
    with torch.random.fork_rng(devices=[]):  # initial weights are drawn, and replaced
        build = catalog.load("model", of.model.name).build
        model: nn.Module = build(tuple(about["input_shape"]), about["outputs"], **of.model.options)
    model.to(getattr(torch, of.dtype))
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise WeightsError(f"model {of.model.name} does not take the weights of {about['run']}: {error}") from None
    return model.eval()


def _files(model: str) -> dict[str, str]:
    """Return the hashes of the file of a model and of what it imports from the project."""
    return identity.closure([catalog.path("model", model)], identity.NOT_COUNTED)
