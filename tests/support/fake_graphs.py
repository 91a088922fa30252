"""CUDA graphs on a CPU: what torch computes is recorded, and computed again from the same memory into the same memory.

As on a GPU, Python does not run again, and what reads a value on the host cannot be recorded. Otherwise than there,
what is recorded is also computed.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tape(TorchDispatchMode):
    """Records the operations that read or write memory; views do neither."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        kwargs = kwargs or {}
        given = {tensor.untyped_storage().data_ptr() for tensor in tensors((args, kwargs))}
        result = function(*args, **kwargs)
        made = [made for made in tensors(result) if made.untyped_storage().data_ptr() not in given]
        if made or function._schema.is_mutable:
            self.calls.append((function, args, kwargs, result))
        return result

    def replay(self):
        with torch.no_grad():
            for function, args, kwargs, result in self.calls:
                again = function(*args, **kwargs)
                for old, new in zip(tensors(result), tensors(again), strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class Graphs:
    """As `capture.CudaGraphs`."""

    def __init__(self):
        self.recorded = 0

    def begin(self):
        self._tape = Tape()
        self._tape.__enter__()

    def end(self):
        self._tape.__exit__(None, None, None)
        self.recorded += 1
        return self._tape.replay if self._tape.calls else None

    def separate(self):
        pass
