"""A GPU for tests on a CPU: streams whose work is done as late, or as early, as it may be: a missing wait shows."""

from contextlib import contextmanager

import torch


class Stream:
    """Work in a row; nothing of it is done before somebody waits for it, or all at once if it is `eager`."""

    eager = False

    def __init__(self, device=None):
        self.work, self.done = [], 0

    def add(self, work):
        self.work.append(work)
        if self.eager and self is not current[0]:  # the first computes, and is always behind
            self.run()

    def run(self, end=None):
        end = len(self.work) if end is None else end
        while self.done < end:
            self.done += 1  # first, for the work may wait for this stream
            self.work[self.done - 1]()

    synchronize = run

    def wait_event(self, event):
        stream, end = event.stream, event.end
        self.add(lambda: stream.run(end))

    def wait_stream(self, other):
        event = Event()
        event.record(other)
        self.wait_event(event)


class Event:
    """A place in a stream."""

    def __init__(self, enable_timing=False):
        self.stream, self.end = Stream(), 0  # as CUDA has it: one that was never recorded is over

    def record(self, stream=None):
        self.stream = stream or current[-1]
        self.end = len(self.stream.work)

    def synchronize(self):
        self.stream.run(self.end)

    def query(self):
        """Time passes: each time that somebody asks, the stream does one thing more."""
        self.stream.run(min(self.end, self.stream.done + 1))
        return self.stream.done >= self.end


current = [Stream()]
copied = []  # the lengths of what went from the host to the device, or back


@contextmanager
def stream(chosen):
    current.append(chosen)
    yield
    current.pop()


IN_PLACE = ("copy_", "__iadd__", "add_", "__itruediv__", "div_", "__imul__", "mul_", "zero_", "fill_")


class Device(torch.Tensor):
    """A tensor in the memory of that GPU: what copies or changes it is queued in the current stream."""

    is_cuda = True
    device = torch.device("cuda", 0)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        plain = super().__torch_function__
        if function.__name__ in IN_PLACE:
            if function is torch.Tensor.copy_ and not all(isinstance(tensor, cls) for tensor in args[:2]):
                copied.append(args[0].numel())
            current[-1].add(lambda: plain(function, types, args, kwargs or {}))
            return args[0]
        return plain(function, types, args, kwargs or {})


def on_device(tensor):
    """Return a copy of the tensor in the memory of the GPU."""
    return tensor.clone().as_subclass(Device)


def install(monkeypatch):
    """Let torch have that GPU."""
    current[:] = [Stream()]
    copied.clear()
    empty = torch.empty

    def pinned_like(tensor, device, pin_memory):
        assert (device, pin_memory) == ("cpu", True)
        return torch.zeros_like(tensor.as_subclass(torch.Tensor))

    def anywhere(*size, device="cpu", pin_memory=False, **options):
        made = empty(*size, **options)
        return made.as_subclass(Device) if str(device).startswith("cuda") else made

    monkeypatch.setattr(torch, "empty_like", pinned_like)
    monkeypatch.setattr(torch, "empty", anywhere)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: current[-1])
