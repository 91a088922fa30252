"""CUDA graphs on a CPU: what torch computes is recorded, and computed again from the same memory into the same memory.

As on a GPU, Python does not run again, what reads a value on the host cannot be recorded, and working memory is no
place to keep anything: from a replay on, what this graph and later ones of the same memory have left there is NaN until
it is computed anew. Otherwise than there, what is recorded is also computed.
"""

import warnings
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tape(TorchDispatchMode):
    """Records the operations that read or write memory; views do neither."""

    def __init__(self):
        super().__init__()
        self.calls, self.made = [], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        kwargs = kwargs or {}
        given = {tensor.untyped_storage().data_ptr() for tensor in tensors((args, kwargs))}
        result = function(*args, **kwargs)
        made = [made for made in tensors(result) if made.untyped_storage().data_ptr() not in given]
        if made or function._schema.is_mutable:
            self.calls.append((function, args, kwargs, result))
            self.made += made
        return result

    def spoil(self):
        for tensor in self.made:
            if tensor.is_floating_point():
                tensor.data.fill_(torch.nan)

    def replay(self):
        with torch.no_grad():
            for function, args, kwargs, result in self.calls:
                again = function(*args, **kwargs)
                for old, new in zip(tensors(result), tensors(again), strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)


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

    def reset(self):
        self.tape = None


class Recording:
    """As `torch.cuda.graph`."""

    def __init__(self, graph, pool, stream, capture_error_mode):
        self.graph, self.tape, self.pool = graph, Tape(), pool.tapes

    def __enter__(self):
        self.tape.__enter__()

    def __exit__(self, *error):
        self.tape.__exit__(*error)
        self.graph.tape, self.graph.pool = self.tape, self.pool
        self.pool.append(self.tape)
        if not self.tape.calls:
            warnings.warn("The CUDA Graph is empty.", stacklevel=2)  # torch's words


class Stream:
    """As `torch.cuda.Stream`, but what is queued in one is done at once."""

    device = None
    made = 0

    def __init__(self, device=None):
        Stream.made += 1

    def wait_stream(self, other):
        pass


def install(monkeypatch):
    """Let torch have such graphs."""
    begun.clear()
    usual, Stream.made = Stream(), 0
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", Recording)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: SimpleNamespace(tapes=[]))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda chosen: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: usual)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
