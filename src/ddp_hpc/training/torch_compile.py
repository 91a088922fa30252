"""Forward pass, loss and backward pass compiled into fused kernels by torch.compile (Inductor), before the warmup.

The gradients of a compiled backward pass are all there only when it ends, so an exchange that starts from the hooks of
single parameters overlaps nothing. DistributedDataParallel is the exception: torch cuts the compiled model where DDP's
buckets end.

What is compiled is kept in the user's cache folder, one folder for each model, batch size, code and processor. It is
built under another name and renamed when it is whole: Inductor's compiler writes its libraries in place, and one that
was killed half way would break every run after it. On each node one rank compiles, the others read what it made, so
that all compute with the same kernels, in a run that goes on from a checkpoint too.

Source: J. Ansel et al., PyTorch 2: Faster Machine Learning Through Dynamic Python Bytecode Transformation and Graph
Compilation, ASPLOS 2024.
"""

import hashlib
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from mpi4py import MPI
from torch import Tensor

from ddp_hpc.config import catalog
from ddp_hpc.config.errors import LaunchError
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.config.types import canonical_json
from ddp_hpc.profiling.timers import Timers
from ddp_hpc.runs import identity
from ddp_hpc.system.files import text_of, user_cache
from ddp_hpc.training.components import Components, Compute
from ddp_hpc.training.snapshot import Snapshot

Compiled = Literal["off", "anew", "from the cache"]

FOLDER = "TORCHINDUCTOR_CACHE_DIR"
# of Inductor's and Triton's errors: what they are about is missing on this machine, the model is not to blame
_MISSING = re.compile(r"InvalidCxxCompiler|CppCompileError|TritonMissing|C compiler|Python\.h")
# torch 2.13 precompiles its headers, 150 MB, into /tmp, whatever its cache folder is
_WHOLE: dict[str, Any] = {"fullgraph": True, "dynamic": False, "options": {"cpp_cache_precompile_headers": False}}
_POLL_S = 0.02
_DAY_S = 86_400  # nothing takes so long to compile


def compile_step(spec: RunSpec, components: Components, comm: MPI.Intracomm, step: int) -> tuple[Components, Compiled]:
    """Return the components with its forward pass, loss and backward pass compiled, and where that came from.

    All ranks must call. The batch of `step`, counted from 0, shows the shapes; the state of the training is as before.
    From now on this process compiles nothing: what would have to be compiled again raises.

    Raises:
        LaunchError: this machine has no compiler, or no place for what is compiled.
        RuntimeError: the model cannot be compiled as a whole.
    """
    torch.compiler.reset()
    torch.compiler.set_stance("default")
    before = Snapshot(components.replica.frozen(), components.replica.model, components.device)
    compute, rehearsed = _of_wrapper(components) if components.replica.wrapper else _of_all(components)
    rehearse = partial(_rehearse, components, rehearsed)
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    origin: Compiled = "from the cache"
    try:
        with components.timers.redirected(Timers()):
            components.batches.load(step)
            folder = _root() / _digest(spec, components)
            if node.rank == 0 and not folder.exists():
                origin = "anew"
                _build(folder, rehearse)
            _wait_for_all(node)
            if origin != "anew":
                os.environ[FOLDER] = str(folder)
                rehearse()
            _wait_for_all(comm)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise _explained(error, spec, components) from error
    finally:
        node.Free()
    before.restore()
    torch.compiler.set_stance("fail_on_recompile")
    return replace(components, compiled=_never_again(compute)), origin


def _of_all(components: Components) -> tuple[Compute, Compute]:
    """Return the compiled way from a batch to its loss: that of steps, and that of which no exchange is told."""
    replica, loss = components.replica, components.loss

    def compute(inputs: Tensor, targets: Tensor) -> Tensor:
        return loss(replica.forward(inputs), targets)

    compiled: Compute = torch.compile(compute, **_WHOLE)
    return compiled, compiled


def _of_wrapper(components: Components) -> tuple[Compute, Compute]:
    """Compile the model in what an exchange has wrapped it in, which goes on to run around it; the loss apart."""
    wrapper: Any = components.replica.wrapper
    wrapper.module = torch.compile(wrapper.module, **_WHOLE)
    loss = torch.compile(components.loss, **_WHOLE)
    # DDP's own: the model as in its forward pass, but without the collectives around it
    inside = getattr(wrapper, "_inside_ddp_forward", nullcontext)

    def rehearsed(inputs: Tensor, targets: Tensor) -> Tensor:
        with inside():
            outputs = wrapper.module(inputs)
        return loss(outputs, targets)

    return lambda inputs, targets: loss(components.replica.forward(inputs), targets), rehearsed


def _rehearse(components: Components, compute: Compute) -> None:
    """Go forward and backward; no hook of a parameter is called, for nothing is added to its gradient."""
    batch = components.batches.batch()
    with components.arithmetic():
        loss = compute(batch.inputs, batch.targets)
    torch.autograd.grad(loss, [span.parameter for span in components.replica.spans], allow_unused=True)


def _never_again(compute: Compute) -> Compute:
    def computed(inputs: Tensor, targets: Tensor) -> Tensor:
        try:
            return compute(inputs, targets)
        except RuntimeError as error:
            if "fail_on_recompile" not in str(error):
                raise
            raise RuntimeError(
                "compile: true, but a step would have to be compiled again, for something has changed since the first: "
                f"{error}\nexpected: a model that computes the same in each step, or `compile: false`"
            ) from error

    return computed


def _build(folder: Path, rehearse: Callable[[], None]) -> None:
    """Compile into a folder that gets its name when it is whole; whoever was faster wins."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for old in folder.parent.glob(".*"):  # of processes that were killed
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > _DAY_S:
                shutil.rmtree(old)
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        os.environ[FOLDER] = str(building)
        rehearse()
        # Triton's files name each other by their paths; Inductor's hold the kernels too, and write them anew
        shutil.rmtree(building / "triton", ignore_errors=True)
        try:
            building.rename(folder)
        except OSError:
            if not folder.exists():
                raise
        os.environ[FOLDER] = str(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


_given_root = os.environ.get(FOLDER)  # before this process changes it


def _root() -> Path:
    """Return where compiled code is kept: as torch's variable says, else in the user's cache folder."""
    if _given_root:
        return Path(_given_root).absolute()
    return user_cache() / "ddp-hpc" / "compiled"


def _digest(spec: RunSpec, components: Components) -> str:
    """Return the name of the folder for such a step. Inductor itself checks what is in it by its own hashes."""
    fields = ("model", "dataset", "batch_size", "dtype", "precision")
    content = {name: spec.canonical.get(name) for name in fields} | {
        "code": identity.closure([catalog.path(kind, getattr(spec, kind).name) for kind in ("model", "dataset")]),
        "wrapper": type(components.replica.wrapper).__name__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": _processor(),
        "gpu": torch.cuda.get_device_name(components.device) if components.device.type == "cuda" else None,
    }
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:16]


def _processor() -> str:
    """Return what this host's processor is and can do: code for it may not run on another that shares the folder."""
    first, _, _ = text_of(Path("/proc/cpuinfo")).partition("\n\n")
    facts = re.findall(r"^(?:model name|flags|Features)\s*:.*$", first, re.MULTILINE)
    return "\n".join(facts) or platform.processor() or platform.machine()


def _wait_for_all(comm: MPI.Comm) -> None:
    """Wait as `Barrier` does, but leave the cores to the rank that compiles."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(_POLL_S)


def _explained(error: Exception, spec: RunSpec, components: Components) -> Exception:
    """Return an error that says what was given, what is allowed and what to do."""
    if isinstance(error, LaunchError):
        return error
    text, _, _ = str(error).strip().partition("\n\nSet TORCHDYNAMO_VERBOSE")
    words = f"{type(error).__name__}: {text}"
    if "out of memory" in text.lower():
        return torch.OutOfMemoryError(words) if components.device.type == "cuda" else MemoryError(words)
    if isinstance(error, OSError) and error.filename and str(error.filename).startswith(str(_root())):
        return LaunchError(
            f"compile: true keeps what is compiled in {_root()}, which cannot be written ({words}): set XDG_CACHE_HOME "
            f"or {FOLDER} to a folder that can"
        )
    if _MISSING.search(words):
        needs = "Triton and a C compiler (gcc)" if components.device.type == "cuda" else "a C++ compiler and Python.h"
        return LaunchError(
            f"compile: true on {components.device.type} needs {needs}, and that is missing or does not work ({words}): "
            "install it (g++ and python3-dev, or load your site's module), name the compiler in CXX (CC for Triton), "
            "or set `compile: false`"
        )
    return RuntimeError(
        f"compile: true, but model {spec.model.name!r} cannot be compiled as a whole: {words}\n"
        "expected: a model that torch.compile(fullgraph=True, dynamic=False) takes, or `compile: false`"
    )
