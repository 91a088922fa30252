"""How long an exchange takes, and how much it sends, by the alpha-beta model: for planning, without torch or MPI.

A message of s bytes takes alpha + s / beta (Hockney, Parallel Computing 20(3), 1994), a rank sends and receives one
message at a time, both at once, and n ranks do not slow one another down. What the fit of `ddp-hpc bench exchange`
gives are alpha and beta of this model, from times of whole exchanges.

Sources of the formulas: ring, Patarasuk and Yuan, JPDC 69(2), 2009; recursive doubling, and recursive halving with
doubling (Rabenseifner), Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005, sections 4.4 and 4.5.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf


@dataclass(frozen=True, kw_only=True)
class Link:
    """What lies between two ranks: a network, or for ranks that share memory, that memory."""

    bandwidth: float  # beta, in B/s and direction
    latency: float = 0.0  # alpha, in s per message; of memory, per barrier
    adding: float = inf  # gamma, at which a rank adds two buffers, in B/s of one of them


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What an exchange costs: what lies one after another on its critical path, and what is sent."""

    rounds: float = 0.0  # messages after one another
    path_bytes: float = 0.0  # bytes of those messages
    added_bytes: float = 0.0  # bytes that are added up after one another
    barriers: float = 0.0  # of ranks that share memory, after one another
    memory_bytes: float = 0.0  # bytes that a rank copies or reads through that memory
    sent: float = 0.0  # bytes that the busiest rank sends, e.g. a server
    messages: float = 0.0  # that the busiest rank sends
    sent_by_others: float = 0.0  # bytes that a rank sends that does not serve

    def time(self, link: Link, memory: Link | None = None) -> float:
        """Return the seconds that it takes; without `memory`, what ranks of a node share is as fast as `link`."""
        memory = memory or link
        return (
            self.rounds * link.latency
            + self.path_bytes / link.bandwidth
            + self.added_bytes / link.adding
            + self.barriers * memory.latency
            + self.memory_bytes / memory.bandwidth
        )


def _alike(messages: int, sent: float, added_bytes: float) -> Cost:
    """Return the cost where all ranks do the same at the same time."""
    both = {"rounds": messages, "messages": messages, "path_bytes": sent, "sent": sent, "sent_by_others": sent}
    return Cost(**both, added_bytes=added_bytes)


def _ring(size: float, n: int) -> Cost:
    """Reduce-scatter, then allgather, each n-1 messages of an n-th part."""
    share = (n - 1) / n * size
    return _alike(2 * (n - 1), 2 * share, share)


def _folded(size: float, n: int, cost: Callable[[int], Cost], early: Callable[[int], float]) -> Cost:
    """Return the cost on the next lower power of two, to which the ranks beyond give their buffers, and wait.

    In step `v`, from 0, a rank that takes such a buffer meets the first one that takes none, whose message of
    `early(v)` bytes has come meanwhile over the same link.
    """
    log2 = n.bit_length() - 1
    inside = cost(log2)
    beyond = n - 2**log2
    if not beyond:
        return inside
    first_met = (beyond & -beyond).bit_length() - 1
    return replace(
        inside,
        rounds=inside.rounds + 2,
        path_bytes=inside.path_bytes + 2 * size + early(first_met),
        added_bytes=inside.added_bytes + size,
        sent=inside.sent + size,
        messages=inside.messages + 1,
    )


def _rabenseifner(size: float, n: int) -> Cost:
    """Halves, quarters, ... are exchanged and added; then the parts are gathered in the opposite order."""

    def inside(log2: int) -> Cost:
        share = (2**log2 - 1) / 2**log2 * size
        return _alike(2 * log2, 2 * share, share)

    return _folded(size, n, inside, lambda step: size / 2 ** (step + 1))


def _recursive_doubling(size: float, n: int) -> Cost:
    """Whole buffers are exchanged with the rank 1, 2, 4, ... further: few messages, for small buffers."""
    return _folded(size, n, lambda log2: _alike(log2, log2 * size, log2 * size), lambda step: size)


def _sharded_server(size: float, n: int, *, servers: int | None = None) -> Cost:
    """Each of k servers gets a k-th of all gradients, one rank after another, and sends a k-th of the model to all."""
    servers = n if servers is None else servers
    if not 1 <= servers <= n:
        raise ValueError(f"servers={servers}, expected: 1 to the number of ranks, {n}")
    into = (n - 1) * size / servers  # a server's own part is there already
    sent = into + (servers - 1) / servers * size
    return Cost(
        rounds=2 * (n - 1),
        path_bytes=2 * into,
        added_bytes=into,
        sent=sent,
        messages=n - 1 + servers - 1,
        sent_by_others=size if servers < n else sent,
    )


def _async_server(size: float, n: int) -> Cost:
    """The server is the bottleneck: gradients come in and models go out at once, one rank after another."""
    all_ranks = (n - 1) * size
    return Cost(
        rounds=n - 1, path_bytes=all_ranks, added_bytes=all_ranks, sent=all_ranks, messages=n - 1, sent_by_others=size
    )


def _shared_memory(size: float, n: int) -> Cost:
    """Each rank reads its n-th part of n buffers and writes one, between two barriers. Nothing is sent."""
    return Cost(barriers=2, memory_bytes=(1 + 1 / n) * size, added_bytes=(n - 1) / n * size)


def _hierarchical(size: float, n: int, *, ranks_per_group: int) -> Cost:
    """Shared memory in each group, a ring of one leader each between two more barriers; one group needs no ring."""
    largest = ranks_per_group
    if not 1 <= largest <= n:
        raise ValueError(f"ranks_per_group={ranks_per_group}, expected: 1 to the number of ranks, {n}")
    if largest == n:
        return _shared_memory(size, n)
    inside, leaders = _shared_memory(size, largest) if largest > 1 else Cost(), _ring(size, -(-n // largest))
    return replace(
        leaders,
        barriers=inside.barriers + 2 if largest > 1 else 0,
        memory_bytes=inside.memory_bytes,
        added_bytes=inside.added_bytes + leaders.added_bytes,
        sent_by_others=0.0 if largest > 1 else leaders.sent,
    )


def _periodic_allreduce(size: float, n: int, *, period: int = 1) -> Cost:
    """An allreduce of the weights every `period` steps, spread over them."""
    whole = _rabenseifner(size, n)
    return Cost(**{name: value / period for name, value in vars(whole).items()})


# what files of exchanges name as their COST; libraries that choose by themselves stand with what suits large buffers
_FORMULAS: dict[str, Callable[..., Cost]] = {
    "nothing": lambda size, n: Cost(),
    "ring": _ring,
    "allreduce": _rabenseifner,
    "parameter_server": lambda size, n: _sharded_server(size, n, servers=1),
    "sharded_server": _sharded_server,
    "async_server": _async_server,
    "shared_memory": _shared_memory,
    "shared_model": lambda size, n: Cost(memory_bytes=size),
    "hierarchical": _hierarchical,
    "periodic_allreduce": _periodic_allreduce,
}
FORMULAS = tuple(_FORMULAS)


def cost(formula: str, size: float, world_size: int, *, hosts: int | None = None, **options: int | None) -> Cost:
    """Return what one exchange of `size` bytes on `world_size` ranks costs; nothing on one rank.

    Args:
        formula: one of `FORMULAS`, which an exchange's file names as its COST.
        size: bytes of the gradients, which are as many as of the weights.
        world_size: ranks.
        hosts: nodes, with equally many ranks each; None: one.
        options: `servers` of sharded_server, None: every rank; `ranks_per_group` of hierarchical, None: those of a
            node; `period` of periodic_allreduce.

    Raises:
        ValueError: no such formula, sizes or options that cannot be.
    """
    if formula not in _FORMULAS:
        raise ValueError(f"no formula {formula!r}; expected: {', '.join(FORMULAS)}")
    if size < 0 or world_size < 1:
        raise ValueError(f"size={size}, world_size={world_size}; expected: size >= 0 and world_size >= 1")
    if formula == "hierarchical" and options.get("ranks_per_group") is None:
        options["ranks_per_group"] = -(-world_size // (hosts or 1))
    return _FORMULAS[formula](size, world_size, **options) if world_size > 1 else Cost()


def exchange_time(
    formula: str, size: float, world_size: int, link: Link, memory: Link | None = None, **options: int | None
) -> float:
    """Return the seconds of one exchange: see `cost` and `Cost.time`.

    For an allreduce MPI is taken to choose the best of ring, Rabenseifner's algorithm and recursive doubling.
    """
    if formula == "allreduce" and world_size > 1:
        return min(one(size, world_size).time(link) for one in (_ring, _rabenseifner, _recursive_doubling))
    return cost(formula, size, world_size, **options).time(link, memory)


def exposed_time(exchange_s: float, beside_s: float, last_s: float = 0.0) -> float:
    """Return the seconds of an exchange that nothing is computed beside, of one that begins in the backward pass.

    The exchange of what the pass gives first runs beside its rest, `beside_s`; that of what it gives last, `last_s`,
    can begin only when the pass is over. No whole is longer than the exchange.
    """
    return min(exchange_s, max(last_s, exchange_s - beside_s))


def bus_bandwidth(size: float, seconds: float, world_size: int) -> float | None:
    """Return size / seconds x 2(n-1)/n in B/s, comparable with the link whatever n is; None for one rank.

    Source: nccl-tests, doc/PERFORMANCE.md, for allreduce.
    """
    return size / seconds * 2 * (world_size - 1) / world_size if world_size > 1 else None


def continued(
    formula: str, seconds: Mapping[int, float], world_size: int, averaging: bool = False, **options: int | None
) -> float:
    """Return how long an exchange takes on so many ranks, if it has taken these seconds on others, by world size.

    Fitted are latency and bandwidth or, of the `averaging` alone, what does not depend on the ranks and what each added
    buffer takes: by least squares of relative errors, neither below 0. Raise ValueError where these do not tell them
    apart.
    """

    def terms(n: int) -> tuple[float, float]:
        one = cost(formula, 1.0, n, **options)
        return (1.0, one.added_bytes) if averaging else (one.rounds, one.path_bytes)

    rows = [tuple(term / value for term in terms(n)) for n, value in seconds.items()]
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = map(sum, zip(*rows, strict=True))
    determinant = aa * bb - ab * ab
    if determinant <= 1e-12 * aa * bb:
        raise ValueError(f"the seconds at {', '.join(map(str, seconds))} ranks do not tell latency from bandwidth")
    first, second = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
    if min(first, second) < 0:
        first, second = (0.0, b / bb) if first < 0 else (a / aa, 0.0)
    one, other = terms(world_size)
    return first * one + second * other
