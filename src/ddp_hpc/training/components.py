"""Builds the components of a training from a spec: data, replica, clock, batches and exchange."""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor

from ddp_hpc.config import catalog
from ddp_hpc.config.spec import RunSpec
from ddp_hpc.data._tasks import TASKS, Dataset, Samples, Task, chance, check_outputs, check_samples
from ddp_hpc.exchange._protocol import Exchange, Stateful
from ddp_hpc.models._replica import Replica
from ddp_hpc.profiling.timers import Clock, TimerProxy, Timers
from ddp_hpc.profiling.timers import make as make_clock
from ddp_hpc.training import own_metrics, precision, sampler
from ddp_hpc.training.loader import Batches, Loaded, Numbers, Resident, Staged
from ddp_hpc.training.lr_schedule import learning_rate_rule
from ddp_hpc.training.optimizers import Maker, StatefulOptimizer
from ddp_hpc.training.snapshot import Snapshot

Compute = Callable[[Tensor, Tensor], Tensor]  # from inputs and targets to the mean loss over the samples


@dataclass(frozen=True, kw_only=True)
class Components:
    """Everything that a step needs, on one rank."""

    device: torch.device
    dataset: Dataset  # on the device, so that a step transfers nothing; in host memory if the spec says so
    task: Task
    loss: Callable[[Tensor, Tensor], Tensor]  # of outputs and targets: mean over the samples
    replica: Replica
    batches: Batches
    arithmetic: precision.Arithmetic  # in which outputs and loss are computed
    clock: Clock
    timers: TimerProxy  # what a step tells: the clock, but while it is traced, captured or compiled
    exchange: Exchange
    optimizers: list[StatefulOptimizer]
    metrics: Mapping[str, own_metrics.Metric]  # further ones, of files of one's own
    chance_metric: float  # of a model that gives all samples the same
    synchronous: bool  # all ranks take their steps together
    last_of_backward: str  # the phase in which the backward pass ends
    compiled: Compute | None = None  # what `compute` does, in fused kernels

    def compute(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of samples that are trained on: the mean over them."""
        if self.compiled is not None:
            return self.compiled(inputs, targets)
        return self.loss(self.replica.forward(inputs), targets)

    def snapshot(self, to: torch.device | None = None) -> Snapshot:
        """Return a copy of all that a step changes; `to` this device, None: beside it."""
        states = [tensor for optimizer in self.optimizers for tensor in optimizer.state()]
        if isinstance(self.exchange, Stateful):
            states += self.exchange.state()
        return Snapshot([self.replica.weights, *self.replica.frozen(), *states], self.replica.model, self.device, to)


def assemble(spec: RunSpec, comm: MPI.Intracomm, data_dir: Path, device: torch.device) -> Components:
    """Return the parts of a training. All ranks of `comm` must call.

    All ranks draw the same initial weights, from `spec.seed`; rank 0's are then broadcast, because different
    processors may round them differently. With INDEPENDENT_INITIALIZATION of an exchange each rank keeps
    weights of its own, except those that are not trained. Random numbers drawn later (dropout) differ between the
    ranks.
    """
    place = device if spec.data_placement == "device" else torch.device("cpu")
    dtype = getattr(torch, spec.dtype)
    with _shared_by(spec, "dataset", "budget"):
        data_file, loaded = _load(spec, data_dir)
    train, test = (_moved(part, place, dtype) for part in (loaded.train, loaded.test))
    dataset = replace(loaded, train=train, test=test)
    arithmetic = precision.choose(spec.precision, device)
    if spec.deterministic:
        precision.same_order_each_time(device)

    different_starts = catalog.asked(spec.exchange.name, "INDEPENDENT_INITIALIZATION", spec.exchange.options)
    own_seed = (spec.seed << 20) + comm.rank + 1

    _seed(own_seed + (1 << 19) if different_starts else spec.seed)
    with _shared_by(spec, "model", "dataset", "dtype", "device"):
        model_file = catalog.load("model", spec.model.name)
        replica = Replica(model_file.build(dataset.shape, data_file.OUTPUTS, **spec.model.options), device, dtype)
    broadcast([*([] if different_starts else [replica.weights]), *replica.frozen(), *replica.buffers()], comm)
    task = loaded.task or TASKS[data_file.TASK]
    loss = getattr(model_file, "loss", task.loss)
    with _shared_by(spec, "model", "dataset", "dtype", "device"):
        _check_outputs(spec, data_file, dataset, replica, usual_loss=loss is TASKS[data_file.TASK].loss)
    with _shared_by(spec, "exchange"):
        exchange_file = catalog.load("exchange", spec.exchange.name)
    _seed(own_seed)

    make_optimizer = Maker(spec.optimizer, learning_rate_rule(spec), spec.momentum, spec.weight_decay)
    clock = make_clock(device)
    timers = TimerProxy(clock)
    numbers = sampler.make_batches(spec, comm.rank, len(dataset.train), place)
    exchange = exchange_file.make(replica, comm, timers, make_optimizer, **spec.exchange.options)
    return Components(
        device=device,
        dataset=dataset,
        task=task,
        loss=loss,
        replica=replica,
        batches=_batches(spec, dataset.train, numbers, device, timers),
        arithmetic=arithmetic,
        clock=clock,
        timers=timers,
        exchange=exchange,
        optimizers=make_optimizer.made,
        metrics=own_metrics.of(spec),
        chance_metric=chance(task, data_file.TASK, data_file.OUTPUTS, dataset),
        synchronous=exchange_file.SYNCHRONOUS,
        last_of_backward="exchange_exposed_s" if getattr(exchange_file, "WAITS_IN_BACKWARD", False) else "backward_s",
    )


def _batches(spec: RunSpec, samples: Samples, numbers: Numbers, device: torch.device, timers: Timers) -> Batches:
    """Return this rank's batches, of samples that lie where the spec says."""
    if spec.data_placement == "loader":
        return Loaded(samples, numbers, device, timers)
    if samples.inputs.device.type == device.type:
        return Resident(samples, numbers, timers)
    return Staged(samples, numbers, spec.batch_size, device, timers)


@contextmanager
def _shared_by(spec: RunSpec, *fields: str) -> Iterator[None]:
    """Note on an error that every run with these fields of the spec meets it: such runs need not be started."""
    try:
        yield
    except Exception as error:
        vars(error)["shared_by"] = {name: spec.canonical.get(name) for name in fields}
        raise


def _load(spec: RunSpec, data_dir: Path) -> tuple[ModuleType, Dataset]:
    """Return a dataset and its file, or raise a ValueError if it is not what training and planning take for granted."""
    data_file = catalog.load("dataset", spec.dataset.name)
    _seed(spec.seed)  # a dataset may draw its samples
    loaded = data_file.build(data_dir / spec.dataset.name, **spec.dataset.options)
    check_samples(spec.dataset.name, data_file.TASK, data_file.OUTPUTS, loaded)
    if spec.budget.epochs is not None and len(loaded.train) != spec.epoch_samples:
        raise ValueError(
            f"dataset {spec.dataset.name} has {len(loaded.train)} samples to train on, where its TRAIN_SAMPLES says "
            f"{spec.epoch_samples}: budget {spec.budget} was planned with these; expected: as many"
        )
    return data_file, loaded


def _check_outputs(
    spec: RunSpec, data_file: ModuleType, dataset: Dataset, replica: Replica, *, usual_loss: bool
) -> None:
    """Raise a ValueError if outputs of the model and targets do not fit the task."""
    train, usual = dataset.train, TASKS[data_file.TASK]
    some = slice(min(spec.batch_size, len(train)))
    outputs, targets = _outputs(replica, train.inputs[some].to(replica.weights.device)), train.targets[some]
    if usual_loss or (dataset.task or usual).metric_sum is usual.metric_sum:  # else both are made for these outputs
        check_outputs(spec.model.name, data_file.TASK, data_file.OUTPUTS if usual_loss else None, outputs, targets)


def _outputs(replica: Replica, inputs: Tensor) -> Tensor:
    """Return what the model gives in evaluation, and put back what that changes."""
    before = Snapshot(replica.frozen(), replica.model, replica.weights.device)
    replica.model.eval()
    with torch.no_grad():
        outputs: Tensor = replica.model(inputs)
    replica.model.train()
    before.restore()
    return outputs


def _seed(number: int) -> None:
    """Seed every generator that a model may draw from."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2**32)  # noqa: NPY002  (a model may draw from it)


def _moved(samples: Samples, device: torch.device, dtype: torch.dtype) -> Samples:
    parts = (samples.inputs, samples.targets)
    return Samples(*(part.to(device, dtype if part.is_floating_point() else part.dtype) for part in parts))


def broadcast(tensors: Iterable[Tensor], comm: MPI.Intracomm) -> None:
    """Give all ranks rank 0's values, in place, through host memory."""
    for tensor in tensors:
        host = tensor.detach().cpu().contiguous()
        comm.Bcast(host.numpy(), root=0)
        tensor.copy_(host)


def evaluate(
    components: Components, comm: MPI.Intracomm, batch_size: int = 1024
) -> tuple[float, float, dict[str, float]]:
    """Return metric, loss and further metrics on the whole test set; each rank does a part of it. All ranks must call.

    What is evaluated is rank 0's model: buffers such as BatchNorm's running means differ between ranks, and a mix of
    them is no model. Frozen parameters, which a model may change itself, are treated so, too. They, buffers and random
    generators are put back, whatever the model does to them.
    """
    before = Snapshot(components.replica.frozen(), components.replica.model, components.device)
    broadcast([*components.replica.frozen(), *components.replica.buffers()], comm)
    test, metrics = components.dataset.test, components.metrics
    sums = torch.zeros(2 + len(metrics), dtype=torch.float64, device=components.device)
    first, last = (len(test) * place // comm.size for place in (comm.rank, comm.rank + 1))
    components.replica.model.eval()
    with torch.inference_mode(), components.arithmetic():
        for start in range(first, last, batch_size):
            chosen = slice(start, min(start + batch_size, last))
            inputs, targets = (part[chosen].to(components.device) for part in (test.inputs, test.targets))
            outputs = components.replica.model(inputs)
            sums[0] += components.task.metric_sum(outputs, targets)
            sums[1] += components.loss(outputs, targets) * len(targets)
            for place, own in enumerate(own_metrics.sums(metrics, outputs, targets), start=2):
                sums[place] += own
    components.replica.model.train()
    before.restore()
    means = sampler.weighted_mean(comm.allgather(sums.cpu().numpy()), comm.allgather([last - first]))
    metric, loss, *others = map(float, means)
    if not math.isfinite(loss):  # the largest of NaNs is no answer
        metric, others = math.nan, [math.nan] * len(others)
    return metric, loss, dict(zip(metrics, others, strict=True))
