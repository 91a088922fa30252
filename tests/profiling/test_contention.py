"""Whether others used the cores: what Linux counts of threads that wait, and of cores that are busy."""

import json
import os
import subprocess
import sys

import pytest

from ddp_hpc.profiling.contention import Contention, CpuTimes, between, others_share, read, throttled_share, wait_share

WORK = """
import dataclasses, json, time
from ddp_hpc.profiling.contention import between, read
before, began = read(), time.perf_counter()
while time.perf_counter() - began < 1:
    pass
print(json.dumps(dataclasses.asdict(between(before, read(), 1.0))))
"""


def on_one_core(core):
    def bind():
        os.sched_setaffinity(0, {core})

    return subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE, text=True, preexec_fn=bind)


def test_three_who_share_a_core_wait_for_two_thirds_of_their_time_and_see_each_other():
    core = min(os.sched_getaffinity(0))
    shared = [on_one_core(core) for _ in range(3)]
    found = [json.loads(process.communicate(timeout=60)[0]) for process in shared]
    of = [
        Contention(one["wait_s"], {int(key): value for key, value in one["busy_s"].items()}, one["own_s"], 1.0)
        for one in found
    ]
    assert sorted(one.wait_s for one in of)[1] > 0.3  # started a little apart, and others may take more from them
    assert max(one.wait_s for one in of) < 1.1
    assert max(others_share([("here", {core}, one)]) for one in of) > 0.3


def test_a_thread_counts_from_when_it_began_and_one_that_has_ended_no_more():
    before, after = CpuTimes({1: 10.0, 2: 4.0}, None, 1.0), CpuTimes({1: 10.5, 3: 0.25}, None, 3.0)
    assert between(before, after, 4.0) == Contention(0.5, None, 2.0, 4.0)


def test_of_several_quotas_the_one_used_up_most_often_counts():
    before = CpuTimes(None, None, 0.0, {"outer": (100, 50), "inner": (10, 0), "gone": (1, 1)})
    after = CpuTimes(None, None, 1.0, {"outer": (140, 60), "inner": (50, 30), "new": (9, 9)})
    ranks = [between(before, after, 4.0), between(before, before, 4.0), None]
    assert throttled_share(ranks) == pytest.approx(0.75)
    assert throttled_share(ranks[1:]) is None, "no period has passed"


def test_what_ranks_use_themselves_is_not_of_others_and_the_worst_host_counts():
    quiet, loaded = {0: 10.0, 1: 10.0, 2: 9.0}, {0: 10.0, 1: 8.0}
    ranks = [
        ("a", (0, 1), Contention(0.1, quiet, 10.0, 10.0)),
        ("a", (0, 1), Contention(0.3, quiet, 10.0, 10.0)),  # nobody but these two; core 2 is not theirs
        ("b", (0, 1), Contention(2.0, loaded, 8.0, 10.0)),
        ("b", (0, 1), Contention(1.0, loaded, 7.0, 10.0)),
    ]
    assert others_share(ranks[:2]) == 0
    assert others_share(ranks) == pytest.approx(3.0 / 20)
    assert wait_share(one for _, _, one in ranks) == pytest.approx(0.2)


@pytest.mark.parametrize("content", [None, "", "0"])
def test_where_nobody_counts_nothing_is_known(tmp_path, content):
    (tmp_path / "self" / "task" / "12").mkdir(parents=True)
    if content is not None:
        (tmp_path / "self" / "task" / "12" / "schedstat").write_text(content)
        (tmp_path / "stat").write_text(content)
    reading = read(tmp_path)
    assert (reading.waited_s, reading.busy_s) == (None, None)
    unknown = between(reading, read(), 1.0)
    assert wait_share([unknown, None]) is others_share([("a", (0,), unknown), ("a", (0,), None)]) is None


def test_of_a_core_all_counts_but_idleness_and_guests_once(tmp_path):
    (tmp_path / "stat").write_text("cpu  9 9 9 9 9 9 9 9 9 9\ncpu3 100 20 30 7000 800 4 5 6 99 99\nintr 5\n")
    assert read(tmp_path).busy_s == {3: pytest.approx(165 / os.sysconf("SC_CLK_TCK"))}
