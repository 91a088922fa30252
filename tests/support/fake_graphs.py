"""CUDA graphs on a CPU: what torch computes is recorded, and computed again from the same memory into the same memory.

As on a GPU, Python does not run again, what reads a value on the host, allocates pinned memory or is queued in another
stream cannot be recorded, and nothing that is recorded happens: memory that was there before is as it was. A graph
keeps no memory but that which was allocated while it was recorded, and that is no place to keep anything: from a replay
on, what this graph and later ones of the same memory have left there is NaN until it is computed anew. DDP adds
gradients in the stream in which it was made, and times its first ten steps. With a `Device`, replays take time there,
and queueing them takes time here.
"""

import warnings
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import torch
from torch._C._distributed_c10d import Work
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ddp_hpc.exchange import torch_ddp

ON_HOST = torch.int32  # so is DDP's map of the parameters that were used, which lies in host memory, and nothing else


class Kept:
    """A tensor of memory that was there before: where it lies, without keeping it."""

    def __init__(self, tensor):
        self.storage = StorageWeakRef(tensor.untyped_storage())
        self.form = tensor.storage_offset(), tensor.size(), tensor.stride()
        self.dtype = tensor.dtype

    def tensor(self):
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        assert storage is not None, "a graph is replayed that uses memory which was given back since it was recorded"
        return torch.empty(0, dtype=self.dtype).set_(storage, *self.form)


class Tape(TorchDispatchMode):
    """Records the operations that read or write memory; views do neither."""

    def __init__(self, pool, stream=None):
        super().__init__()
        self.calls, self.made, self.before = [], [], {}
        self.earlier, self.stream = pool, stream

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        reads = function is torch.ops.aten._local_scalar_dense.default and args[0].dtype != ON_HOST
        if reads or kwargs.get("pin_memory"):
            raise RuntimeError("operation not permitted when stream is capturing")
        if self.stream is not None and current[-1] not in (None, self.stream):
            raise RuntimeError("work is queued in a stream that is not captured")
        given = {place(tensor) for tensor in tensors((args, kwargs))}
        writes = function._schema.is_mutable or function.namespace == "c10d"  # whose schemas do not say so
        if writes:
            self.remember((args, kwargs))
        result = call(function, args, kwargs)
        made = [made for made in tensors(result) if place(made) not in given]
        if made or writes:
            self.made += made
            self.calls.append((function, *self.kept((args, kwargs, result))))
        return result

    def ours(self):
        return {place(tensor) for tape in (*self.earlier, self) for tensor in tape.made}

    def remember(self, given):
        """Keep what memory from before holds, to put it back: all that is given, for any of it may be written."""
        known = self.ours() | self.before.keys()
        for tensor in tensors(given):
            if place(tensor) not in known:
                storage = tensor.untyped_storage()
                self.before[place(tensor)] = storage, storage.clone()

    def kept(self, tree):
        ours = self.ours()
        return tree_map(
            lambda leaf: Kept(leaf) if isinstance(leaf, torch.Tensor) and place(leaf) not in ours else leaf, tree
        )

    def end(self):
        """Let nothing have happened."""
        for storage, values in self.before.values():
            storage.copy_(values)
        self.before.clear()
        self.spoil()

    def spoil(self):
        for tensor in self.made:
            if tensor.is_floating_point():
                tensor.data.fill_(torch.nan)

    def replay(self):
        with torch.no_grad():
            for function, *recorded in self.calls:
                args, kwargs, result = tree_map(
                    lambda leaf: leaf.tensor() if isinstance(leaf, Kept) else leaf, recorded
                )
                again = call(function, args, kwargs)
                for old, new in zip(tensors(result), tensors(again), strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)


def call(function, args, kwargs):
    """Call it; of a collective, wait for it, as all that is queued after it does."""
    result = function(*args, **kwargs)
    for work in tree_leaves(result) if function.namespace == "c10d" else ():
        if isinstance(work, torch.ScriptObject):
            Work.unbox(work).wait()
    return result


def place(tensor):
    return tensor.untyped_storage()._cdata


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


begun = weakref.WeakSet()  # all graphs since `install`, as long as something holds them


def alive():
    """Return the graphs that hold work: on a GPU, what their work needs cannot be given back meanwhile."""
    return [graph for graph in begun if graph.tape]


class Graph:
    """As `torch.cuda.CUDAGraph`."""

    tape = None

    def __init__(self):
        begun.add(self)

    def replay(self):
        assert self.tape, "a graph is replayed that holds no work: it was not recorded, or destroyed"
        for later in self.pool[self.pool.index(self.tape) :]:
            later.spoil()
        self.tape.replay()
        if device:
            device[-1].queue(KERNEL_S * len(self.tape.calls))

    def reset(self):
        self.tape = None


class Recording:
    """As `torch.cuda.graph`."""

    def __init__(self, graph, pool, stream, capture_error_mode):
        self.graph, self.tape, self.pool = graph, Tape(list(pool.tapes), stream), pool.tapes

    def __enter__(self):
        recording.append(self.tape)
        self.tape.__enter__()

    def __exit__(self, *error):
        self.tape.__exit__(*error)
        recording.pop()
        self.tape.end()
        self.graph.tape, self.graph.pool = self.tape, self.pool
        self.pool.append(self.tape)
        if not self.tape.calls:
            warnings.warn("The CUDA Graph is empty.", stacklevel=2)  # torch's words


recording = []  # the tape that runs, if any


class Ddp(DistributedDataParallel):
    """As on a GPU: what cannot be recorded is refused."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.made_in, self.steps = current[-1], 0

    def forward(self, *inputs, **named):
        if recording and self.made_in is not recording[-1].stream:
            raise RuntimeError("gradients are added in a stream that is not captured, that in which DDP was made")
        if recording and self.steps < 11:
            raise RuntimeError("DDP asks for the times of its first ten steps, which a capture cannot tell")
        self.steps += 1
        return super().forward(*inputs, **named)


class Stream:
    """As `torch.cuda.Stream`, but what is queued in one is done at once."""

    device = None
    made = 0

    def __init__(self, device=None):
        Stream.made += 1

    def wait_stream(self, other):
        pass


current = [None]  # streams; None: that which is there when none is chosen


@contextmanager
def stream(chosen):
    current.append(chosen)
    try:
        yield
    finally:
        current.pop()


LAUNCH_S, KERNEL_S = 5e-6, 3e-6  # on the host, and on the device


class Device:
    """A device beside its host, each with a clock of its own: what is queued begins when all before it is done."""

    def __init__(self):
        self.host_s = self.done_s = 0.0

    def queue(self, seconds=0.0):
        """Queue work that takes so long; return when it is done."""
        self.host_s += LAUNCH_S
        self.done_s = max(self.done_s, self.host_s) + seconds
        return self.done_s

    def wait(self):
        """Let the host wait for all that is queued."""
        self.host_s = max(self.host_s, self.done_s)


device = []  # that which has clocks, if any


class Event:
    """As `torch.cuda.Event`, by the clock of the device."""

    def __init__(self, enable_timing=False):
        pass

    def record(self):
        self.at_s = device[-1].queue()

    def synchronize(self):
        device[-1].host_s = max(device[-1].host_s, self.at_s)

    def elapsed_time(self, later):
        return 1e3 * (later.at_s - self.at_s)


def install(monkeypatch, clocks=None):
    """Let torch have such graphs, on a device with `clocks` if it is given."""
    begun.clear()
    current[:], device[:] = [None], [clocks] * bool(clocks)
    if clocks:
        monkeypatch.setattr(torch.cuda, "Event", Event)
    recording.clear()
    usual, Stream.made = Stream(), 0
    monkeypatch.setattr(torch_ddp, "DistributedDataParallel", Ddp)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", Recording)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: SimpleNamespace(tapes=[]))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: usual)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
