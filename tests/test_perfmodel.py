"""The model against published figures, and against exchanges played message by message, with real numbers to add up."""

import subprocess
import sys

import pytest

from ddp_hpc import perfmodel
from ddp_hpc.config import catalog
from ddp_hpc.perfmodel import Link, bus_bandwidth, cost, exchange_time

LINK = Link(latency=3e-6, bandwidth=2e9, adding=5e9)
RANKS = [1, 2, 3, 4, 5, 7, 8, 12]
ITEM = 4


class Network:
    """n ranks, each with a buffer of integers; a rank sends one message at a time, and receives one."""

    def __init__(self, n, length):
        self.n = n
        self.data = [[(rank + 1) * (place + 3) for place in range(length)] for rank in range(n)]
        self.sums = [sum(column) for column in zip(*self.data, strict=True)]
        self.ready = [0.0] * n  # when a rank has done what it does
        self.out_free, self.in_free = [0.0] * n, [0.0] * n
        self.sent, self.messages = [0] * n, [0] * n

    def send(self, source, target, values, since):
        """Return when `values` are there."""
        start = max(since, self.out_free[source], self.in_free[target])
        end = start + LINK.latency + len(values) * ITEM / LINK.bandwidth
        self.out_free[source] = self.in_free[target] = end
        self.sent[source] += len(values) * ITEM
        self.messages[source] += 1
        return end

    def together(self, transfers, add):
        """All of these at once: source, target and slice; then every target adds, or overwrites."""
        moved = [(source, target, part, self.data[source][part]) for source, target, part in transfers]
        ends = [self.send(source, target, values, self.ready[source]) for source, target, _, values in moved]
        for (_, target, part, values), end in zip(moved, ends, strict=True):
            if add:
                self.data[target][part] = [a + b for a, b in zip(self.data[target][part], values, strict=True)]
                self.ready[target] = max(self.ready[target], end) + len(values) * ITEM / LINK.adding
            else:
                self.data[target][part] = values
                self.ready[target] = max(self.ready[target], end)

    @property
    def time(self):
        return max(self.ready)


def parts(length, n):
    return [slice(length * place // n, length * (place + 1) // n) for place in range(n)]


def play_ring(net, length):
    n, chunks = net.n, parts(length, net.n)
    for step in range(n - 1):
        net.together([(rank, (rank + 1) % n, chunks[(rank - step) % n]) for rank in range(n)], add=True)
    for step in range(n - 1):
        net.together([(rank, (rank + 1) % n, chunks[(rank + 1 - step) % n]) for rank in range(n)], add=False)


def play_servers(net, length, servers):
    """The first ranks serve; in every round each server gets from another rank, then sends to another."""
    n, shards = net.n, parts(length, servers)
    for shift in range(1, n):
        pairs = [((server + shift) % n, server) for server in range(servers)]
        net.together([(rank, server, shards[server]) for rank, server in pairs], add=True)
    for shift in range(1, n):
        pairs = [((server + shift) % n, server) for server in range(servers)]
        net.together([(server, rank, shards[server]) for rank, server in pairs], add=False)


def play_rabenseifner(net, length):
    """Of 2^k ranks."""
    held, distance = [slice(0, length)] * net.n, net.n // 2
    while distance:
        halves = []
        for rank, part in enumerate(held):
            middle = (part.start + part.stop) // 2
            low, high = slice(part.start, middle), slice(middle, part.stop)
            halves.append((high, low) if rank & distance else (low, high))  # kept, given away
        net.together([(rank, rank ^ distance, halves[rank][1]) for rank in range(net.n)], add=True)
        held = [kept for kept, _ in halves]
        distance //= 2
    distance = 1
    while distance < net.n:
        net.together([(rank, rank ^ distance, held[rank]) for rank in range(net.n)], add=False)
        both = [(held[rank], held[rank ^ distance]) for rank in range(net.n)]
        held = [slice(min(a.start, b.start), max(a.stop, b.stop)) for a, b in both]
        distance *= 2


def played(play, n, length, *more):
    net = Network(n, length)
    play(net, length, *more)
    assert all(buffer == net.sums for buffer in net.data), "each rank has the sum"
    return net


@pytest.mark.parametrize("n", RANKS)
def test_a_ring_played_message_by_message_costs_what_the_model_says(n):
    length = 840 * n
    net = played(play_ring, n, length)

    assert net.time == pytest.approx(exchange_time("ring", ITEM * length, n, LINK))
    assert net.sent == pytest.approx([cost("ring", ITEM * length, n).sent] * n)
    assert set(net.messages) == {cost("ring", ITEM * length, n).messages} == {2 * (n - 1)}


@pytest.mark.parametrize("n", RANKS)
def test_a_server_sends_to_all_and_the_others_to_it(n):
    net = played(play_servers, n, 840, 1)
    size = ITEM * 840

    # one rank after another is received and added while the next is received: adding hides, but for the last
    hidden = (n - 2) * size / LINK.adding if n > 1 else 0.0
    assert net.time - 1e-12 <= exchange_time("parameter_server", size, n, LINK) <= net.time + hidden + 1e-12
    assert net.sent[0] == cost("parameter_server", size, n).sent == (n - 1) * size
    assert net.messages[0] == cost("parameter_server", size, n).messages
    assert all(sent == cost("parameter_server", size, n).sent_by_others for sent in net.sent[1:])


@pytest.mark.parametrize(
    ("n", "servers"), [(n, k) for n in RANKS[1:] for k in {1, 2, n - 1, n} if k <= n and 840 % k == 0]
)
def test_shards_spread_the_load_over_the_servers(n, servers):
    net = played(play_servers, n, 840, servers)
    size = ITEM * 840
    model = cost("sharded_server", size, n, servers=servers)

    assert max(net.sent) == pytest.approx(model.sent)
    assert max(net.messages) == model.messages
    assert net.sent[-1] == pytest.approx(model.sent_by_others)
    assert sum(net.sent) == pytest.approx(2 * (n - 1) * size)  # however it is shared out
    free = Link(latency=LINK.latency, bandwidth=LINK.bandwidth)
    assert model.time(free) - 1e-12 <= net.time <= model.time(LINK) + 1e-12


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_halving_and_doubling_send_as_little_as_a_ring_in_fewer_messages(n):
    length = 16 * 35
    net, size = played(play_rabenseifner, n, length), ITEM * length
    model = cost("allreduce", size, n)

    assert net.time == pytest.approx(model.time(LINK))
    assert net.sent == pytest.approx([cost("ring", size, n).sent] * n)
    assert set(net.messages) == {model.messages}
    assert model.messages <= cost("ring", size, n).messages


def test_300_million_parameters_over_infiniband_take_about_400_ms():
    """The blog post's example: 1.2 GB of gradients, 6 GB/s, 40 GPUs."""
    predicted_s = exchange_time("ring", 1.2e9, 40, Link(bandwidth=6e9))
    assert predicted_s == pytest.approx(0.4, rel=0.05)


def test_each_of_40_gpus_sends_about_twice_the_gradients():
    """The same post: 1.2 GB of gradients, 2.4 GB sent by each GPU."""
    assert cost("ring", 1.2e9, 40).sent == pytest.approx(2.4e9, rel=0.03)


def test_small_buffers_want_few_messages_large_ones_few_bytes():
    """Thakur, Rabenseifner and Gropp (2005), section 4.4: log2(n) (alpha + s/beta + s/gamma) for short ones."""
    small, large = 8.0, 1e8
    doubling = 4 * (LINK.latency + small / LINK.bandwidth + small / LINK.adding)

    assert exchange_time("allreduce", small, 16, LINK) == pytest.approx(doubling)
    assert exchange_time("allreduce", large, 16, LINK) == pytest.approx(
        8 * LINK.latency + 2 * 15 / 16 * large / LINK.bandwidth + 15 / 16 * large / LINK.adding
    )


def time_of(programs):
    """Return when the last of these is done, in the time that a byte takes on a link, one way.

    A program is what a rank does in steps: it sends bytes to one rank, at once, and waits for what another sends it. A
    link passes one message at a time into a rank, and one out of it, in the order in which they were sent.
    """
    left = [list(program) for program in programs]
    now, out_free, in_free = ([0.0] * len(programs) for _ in range(3))
    arrivals = {}

    def post(rank):
        """Send what the rank's next step sends, when it comes to that step."""
        target, size, _ = left[rank][0] if left[rank] else (None, 0, None)
        if target is not None:
            out_free[rank] = in_free[target] = max(now[rank], out_free[rank], in_free[target]) + size
            arrivals.setdefault((rank, target), []).append(in_free[target])

    def can_end(rank):
        source = left[rank][0][2] if left[rank] else rank
        return source is None or arrivals.get((source, rank))

    for rank in range(len(programs)):
        post(rank)
    while any(left):
        rank = min(filter(can_end, range(len(programs))), key=now.__getitem__)  # who is earlier sends first
        _, _, source = left[rank].pop(0)
        now[rank] = max(now[rank], out_free[rank] if source is None else arrivals[source, rank].pop(0))
        post(rank)
    return max(now)


def allreduce_programs(n):
    """What MPI_Allreduce of 1 byte does on each rank by halving and doubling.

    Of the first 2 r ranks, where r are beyond a power of two, one of each two gives its buffer to the other.
    """
    log2 = n.bit_length() - 1
    pairs = n - 2**log2
    within = [*range(0, 2 * pairs, 2), *range(2 * pairs, n)]
    programs = [[] for _ in range(n)]
    for even, odd in [(2 * pair, 2 * pair + 1) for pair in range(pairs)]:
        programs[even] += [(odd, 0.5, odd), (None, 0, odd)]
        programs[odd] += [(even, 0.5, even), (even, 0.5, None)]
    for place, rank in enumerate(within):
        there = [(within[place ^ 2**k], 0.5 ** (k + 1)) for k in range(log2)]
        programs[rank] += [(other, size, other) for other, size in [*there, *reversed(there)]]
    for even, odd in [(2 * pair, 2 * pair + 1) for pair in range(pairs)]:
        programs[even] += [(odd, 1.0, None)]
        programs[odd] += [(None, 0, even)]
    return programs


@pytest.mark.parametrize(("n", "off"), [(2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0.06), (8, 0), (12, 0), (14, 0.04)])
def test_an_allreduce_beyond_a_power_of_two_waits_for_whole_messages_and_one_that_came_early(n, off):
    """Two more whole messages, section 4.5 of the same paper; and one of a rank that needs not wait for them."""
    byte = Link(bandwidth=1.0)

    assert cost("allreduce", 1.0, n).time(byte) == pytest.approx(time_of(allreduce_programs(n)), rel=off or 1e-9)
    assert exchange_time("allreduce", 1e8, n, LINK) <= exchange_time("ring", 1e8, n, LINK)  # which does not mind


@pytest.mark.parametrize("formula", perfmodel.FORMULAS)
def test_one_rank_sends_nothing_and_time_grows_with_size(formula):
    assert exchange_time(formula, 1e6, 1, LINK) == cost(formula, 1e6, 1).sent == 0
    times = [exchange_time(formula, size, 4, LINK) for size in (0, 1e3, 1e6, 1e9)]
    assert times == sorted(times)
    assert times[-1] > times[0] or formula == "nothing"


@pytest.mark.parametrize("exchange", catalog.names("exchange"))
def test_every_exchange_names_its_formula_and_the_options_that_it_takes(exchange):
    formula, options = catalog.cost_model(exchange)
    assert cost(formula, 1e6, 4, hosts=2, **options).time(LINK) > 0 or exchange == "none"


def test_two_levels_send_as_much_as_a_ring_of_the_leaders():
    memory = Link(latency=1e-6, bandwidth=2e10)
    whole = exchange_time("hierarchical", 1e6, 32, LINK, memory, ranks_per_group=8)

    assert cost("hierarchical", 1e6, 32, ranks_per_group=8).sent == cost("ring", 1e6, 4).sent
    assert cost("hierarchical", 1e6, 32, ranks_per_group=8).sent_by_others == 0
    assert whole > exchange_time("ring", 1e6, 4, LINK)
    alone = exchange_time("hierarchical", 1e6, 4, LINK, memory, ranks_per_group=1)
    assert alone == exchange_time("ring", 1e6, 4, LINK)
    assert cost("hierarchical", 1e6, 32, hosts=4) == cost("hierarchical", 1e6, 32, ranks_per_group=8)
    one_node = exchange_time("hierarchical", 1e6, 4, LINK, memory)
    assert one_node == exchange_time("shared_memory", 1e6, 4, LINK, memory)


def test_weights_averaged_every_tenth_step_cost_a_tenth():
    every, tenth = (cost("periodic_allreduce", 1e6, 8, period=period).sent for period in (1, 10))
    assert every == pytest.approx(10 * tenth)


def test_bus_bandwidth_of_a_ring_is_that_of_its_link_whatever_the_ranks():
    """nccl-tests: the factor 2(n-1)/n makes results comparable with the hardware."""
    link = Link(bandwidth=7e9)
    for n in (2, 3, 40):
        assert bus_bandwidth(1e9, exchange_time("ring", 1e9, n, link), n) == pytest.approx(7e9)
    assert bus_bandwidth(1e9, 1.0, 1) is None


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: cost("rin", 1, 2), "no formula 'rin'; expected: nothing, ring"),
        (lambda: cost("ring", -1, 2), "size=-1, world_size=2"),
        (lambda: cost("sharded_server", 1, 2, servers=3), "servers=3, expected: 1 to the number of ranks, 2"),
        (
            lambda: cost("hierarchical", 1, 2, ranks_per_group=0),
            "ranks_per_group=0, expected: 1 to the number of ranks, 2",
        ),
    ],
)
def test_what_cannot_be_is_told(call, told):
    with pytest.raises(ValueError, match=told.replace("(", r"\(")):
        call()


def test_planning_with_the_model_starts_neither_torch_nor_mpi():
    code = "import sys, ddp_hpc.perfmodel; print(*(sys.modules.keys() & {'torch', 'mpi4py', 'numpy', 'scipy'}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


def test_a_series_goes_on_as_the_link_has_it_that_made_it():
    """Latency and bandwidth follow from two world sizes; of three that do not agree, from all of them."""
    link = perfmodel.Link(latency=3e-4, bandwidth=2e8)
    series = {n: perfmodel.exchange_time("ring", 5e6, n, link) for n in (2, 4)}

    assert perfmodel.continued("ring", series, 16) == pytest.approx(perfmodel.exchange_time("ring", 5e6, 16, link))
    assert perfmodel.continued("ring", {2: 1.0, 3: 1.4, 4: 1.2}, 4) > 1.2
    with pytest.raises(ValueError, match="at 2 ranks do not tell latency from bandwidth"):
        perfmodel.continued("ring", {2: 1.0}, 4)


def test_averaging_grows_with_the_buffers_that_are_added_up():
    """SHM-Learn-Dist, figure 6.4: 4.012 ms for two workers, 7.199 for four, so 13.57 for eight (published: 13.422)."""
    series = {2: 4.012e-3, 4: 7.199e-3}

    assert perfmodel.continued("parameter_server", series, 8, averaging=True) == pytest.approx(13.573e-3, rel=1e-4)
