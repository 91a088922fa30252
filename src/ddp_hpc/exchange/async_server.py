"""Downpour: ranks push gradients to rank 0 and fetch weights without waiting; each gradient is applied as it comes."""

import os

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor

from ddp_hpc.exchange._pinned import pinning, when_ready
from ddp_hpc.exchange._protocol import MakeOptimizer, Timers
from ddp_hpc.models._replica import Replica

SCHEME = "asynchronous server"
COMPUTES = "all ranks, each at its own pace; rank 0 serves too"
MOVES_GRADIENTS = "each rank to rank 0, which applies them as they come"
MOVES_MODEL = "rank 0 to each rank that asks"
GPU_DATA_PATH = "host memory"
SYNCHRONOUS = False
EXACT = False
DETERMINISTIC = False
OVERLAPS = True
CAPTURABLE = False
COST = "async_server"

GRADIENTS, WEIGHTS, DONE = 1, 2, 3  # tags
HEADER_BYTES = 64  # numbers stay aligned behind it


class Message:
    """A header of integers and a flat tensor behind it, in one piece of host memory: one call sends both."""

    def __init__(self, like: Tensor) -> None:
        head = HEADER_BYTES // like.itemsize
        with pinning():
            memory = torch.zeros(head + len(like), dtype=like.dtype, pin_memory=like.is_cuda)
        self.array = memory.numpy()
        self.header = self.array[:head].view(np.int64)
        self.numbers = memory[head:]


class Worker:
    """Every rank but rank 0: it pushes each gradient, and takes weights over when they have come.

    It waits for nobody, unless the gradients before are still on their way.
    """

    def __init__(self, replica: Replica, comm: MPI.Intracomm, timers: Timers) -> None:
        self._replica, self._comm, self._timers = replica, comm, timers
        self._outgoing = Message(replica.gradients), Message(replica.gradients)  # one is written, the other may be sent
        self._leaving = MPI.REQUEST_NULL
        self._incoming = Message(replica.weights)
        self._fetching: MPI.Request | None = None
        self._sent = 0  # since the last `synchronize`
        self._version = torch.zeros((), dtype=torch.int64)  # updates that the weights have seen
        self.close = comm.Free  # call after `synchronize`

    def update(self) -> None:
        """Push the gradients, and take over weights that have arrived."""
        when_ready(self._replica.gradients)
        self._timers.arrived()
        message = self._outgoing[self._sent % 2]
        message.numbers.copy_(self._replica.gradients)
        message.header[0] = int(self._version)
        message.header[1] = self._fetch()
        self._leaving.Wait()
        self._leaving = self._comm.Issend(message.array, 0, GRADIENTS)  # through when it is received, small or large
        self._sent += 1
        os.sched_yield()  # where ranks share a core, one that never waits would leave the others' gradients to age
        self._timers.mark("exchange_exposed_s")

    def _fetch(self) -> bool:
        """Take over weights that have arrived; return whether the server must now be asked for new ones."""
        if self._fetching is not None:
            if not self._fetching.Test():
                return False
            self._adopt()
        self._fetching = self._comm.Irecv(self._incoming.array, 0, WEIGHTS)
        return True

    def _adopt(self) -> None:
        self._replica.weights.copy_(self._incoming.numbers)
        self._version.fill_(int(self._incoming.header[0]))

    def synchronize(self) -> None:
        """Tell the server how many gradients it has to have, and take over the weights of the trained model."""
        if self._fetching is not None:
            self._fetching.Wait()
            self._fetching = None
        self._leaving.Wait()
        farewell = Message(self._replica.gradients[:0])
        farewell.header[0] = self._sent
        self._comm.Send(farewell.array, 0, DONE)
        self._comm.Bcast(self._incoming.array)
        self._adopt()
        self._sent = 0

    def state(self) -> list[Tensor]:
        """Return the number of updates that the weights have seen."""
        return [self._version]

    def metrics(self) -> dict[str, float | None]:
        """Return nothing: the server knows."""
        return {"staleness": None, "staleness_max": None}


class Server:
    """Rank 0: it computes like the others, and serves between its own steps.

    In each step it takes what has come, at most two gradients of each worker (one that has been received, one on its
    way), so that it gets on with its own. Every answer is a copy: the weights move on while it is under way.
    """

    def __init__(self, replica: Replica, comm: MPI.Intracomm, timers: Timers, make_optimizer: MakeOptimizer) -> None:
        self._replica, self._comm, self._timers = replica, comm, timers
        self._optimizer = make_optimizer(replica.weights, replica.gradients)
        workers = range(1, comm.size)
        self._inbox = [Message(replica.gradients) for _ in workers]
        self._outbox = [Message(replica.weights) for _ in workers]
        self._answering = [MPI.REQUEST_NULL for _ in workers]
        self._applied = [0 for _ in workers]  # of each worker, since the last `synchronize`
        self._version = torch.zeros((), dtype=torch.int64)  # updates that the weights have seen
        self._staleness: list[int] = []  # of every gradient since training began or went on
        self._synchronized = False
        self._arriving = [self._listen(place) for place in range(len(workers))]

    def _listen(self, place: int) -> MPI.Request:
        """Be ready for the next message of a worker; the workers are numbered from 0 here."""
        return self._comm.Irecv(self._inbox[place].array, place + 1, MPI.ANY_TAG)

    def update(self) -> None:
        """Apply this rank's gradients, then those that have come from others."""
        when_ready(self._replica.gradients)
        self._timers.arrived()
        self._apply(int(self._version))
        for _ in range(2):
            status = [MPI.Status() for _ in self._arriving]
            self._take(MPI.Request.Testsome(self._arriving, status), status)
        os.sched_yield()  # as the workers do
        self._timers.mark("exchange_exposed_s")

    def _take(self, places: list[int] | None, statuses: list[MPI.Status]) -> None:
        """Deal with messages that have arrived: statuses are in the order of the places."""
        for place, status in zip(places or (), statuses, strict=False):
            message = self._inbox[place]
            if status.tag == DONE:
                if message.header[0] != self._applied[place]:
                    raise RuntimeError(
                        f"rank {place + 1} sent {message.header[0]} gradients, {self._applied[place]} were applied: "
                        "MPI has lost or doubled some, this run does not count"
                    )
                continue
            version, wants_weights = message.header[:2].tolist()
            self._replica.gradients.copy_(message.numbers)
            self._arriving[place] = self._listen(place)
            self._timers.mark("exchange_exposed_s")
            self._apply(version)
            self._applied[place] += 1
            if wants_weights:
                self._answer(place)

    def _apply(self, version: int) -> None:
        """Step along gradients that were computed on weights that had seen so many updates."""
        if self._synchronized:
            self._staleness.clear()
            self._synchronized = False
        self._optimizer.step()
        self._staleness.append(int(self._version) - version)
        self._version += 1
        self._timers.mark("update_s")

    def _answer(self, place: int) -> None:
        """Begin to send the weights as they are now."""
        self._answering[place].Wait()  # the worker has it, or it would not ask again
        answer = self._outbox[place]
        answer.numbers.copy_(self._replica.weights)
        answer.header[0] = int(self._version)
        self._answering[place] = self._comm.Isend(answer.array, place + 1, WEIGHTS)

    def synchronize(self) -> None:
        """Serve until every worker has synchronized, and give all ranks the weights."""
        while any(self._arriving):
            statuses = [MPI.Status() for _ in self._arriving]
            self._take(MPI.Request.Waitsome(self._arriving, statuses), statuses)
        MPI.Request.Waitall(self._answering)
        final = Message(self._replica.weights)
        final.numbers.copy_(self._replica.weights)
        final.header[0] = int(self._version)
        self._comm.Bcast(final.array)
        self._applied = [0 for _ in self._applied]
        self._arriving = [self._listen(place) for place in range(len(self._applied))]
        self._synchronized = True

    def state(self) -> list[Tensor]:
        """Return the number of updates."""
        return [self._version]

    def metrics(self) -> dict[str, float | None]:
        """Return how many updates lay, in the mean and at most, between a gradient's weights and its own update."""
        known = self._staleness
        return {
            "staleness": sum(known) / len(known) if known else None,
            "staleness_max": float(max(known)) if known else None,
        }

    def close(self) -> None:
        """Give back the communicator and what waits for messages; call after `synchronize`."""
        for request in self._arriving:
            request.Cancel()
        MPI.Request.Waitall(self._arriving)
        self._comm.Free()


def make(replica: Replica, comm: MPI.Intracomm, timers: Timers, make_optimizer: MakeOptimizer) -> Server | Worker:
    """Return the exchange; all ranks of `comm` must call. What lies on a GPU goes through pinned host memory.

    The optimiser counts updates, of which there are as many as gradients: by rules of the learning rate, too. Large
    messages go on while ranks compute only if MPI or the network moves them by itself, as Open MPI does within a node.

    Source: Downpour SGD of Dean et al., Large Scale Distributed Deep Networks, NIPS 2012, n_push = n_fetch = 1.
    """
    apart = comm.Dup()  # the server takes any tag
    return Server(replica, apart, timers, make_optimizer) if comm.rank == 0 else Worker(replica, apart, timers)
