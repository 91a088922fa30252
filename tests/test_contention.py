"""How long threads wait for cores that others have, told by Linux."""

import os
import subprocess
import sys

import pytest

from ddp_hpc.profiling.contention import longest_wait_s, waited_s

WORK = """
import sys, time
from ddp_hpc.profiling.contention import longest_wait_s, waited_s
before, began = waited_s(), time.perf_counter()
while time.perf_counter() - began < 1:
    pass
print(longest_wait_s(before, waited_s()))
"""


def on_one_core(core):
    return subprocess.Popen(
        [sys.executable, "-c", WORK],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )


def test_three_who_share_a_core_wait_for_two_thirds_of_their_time():
    core = min(os.sched_getaffinity(0))
    shared = [on_one_core(core) for _ in range(3)]
    waited = sorted(float(process.communicate(timeout=60)[0]) for process in shared)
    assert waited[1] > 0.3  # of a second; started a little apart, and others may take more from them
    assert waited[2] < 1


def test_a_thread_counts_from_when_it_began_and_one_that_has_ended_no_more():
    before, after = {1: 10.0, 2: 4.0}, {1: 10.5, 3: 0.25}
    assert longest_wait_s(before, after) == 0.5


@pytest.mark.parametrize("content", [None, "", "0"])
def test_where_nobody_counts_nothing_is_known(tmp_path, content):
    (tmp_path / "12").mkdir()
    if content is not None:
        (tmp_path / "12" / "schedstat").write_text(content)
    assert waited_s(tmp_path) is None
    assert longest_wait_s(None, {1: 1.0}) is longest_wait_s({1: 1.0}, None) is None
