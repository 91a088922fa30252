"""The sampler is a process of its own: whatever becomes of it, the training has its end, and a reason."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from metered import STAND_INS, ranks, stand_in
from sandbox import wait_for

from ddp_hpc.execution import run_record
from ddp_hpc.profiling import telemetry_process
from ddp_hpc.profiling.telemetry import NodeTelemetry

A, B, _ = stand_in().UUIDS


@pytest.fixture
def meter(monkeypatch):
    """Start meters beside the stand-in; end what is left of them."""
    begun = []

    def start(mode, uuids=(B,), **options):
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STAND_INS), *sys.path]))
        monkeypatch.setenv("FAKE_NVML", mode)
        begun.append(NodeTelemetry(uuids, **options))
        return begun[-1]

    yield start
    for one in begun:
        if one._process and one._process.poll() is None:
            one._process.kill()
            one._process.wait()


def test_samples_are_of_the_device_and_come_at_the_interval(meter):
    one = meter("", [B, B], interval_s=0.02)
    time.sleep(1.5)
    samples = one.stop(30)
    assert (samples.reason, [device.uuid for device in samples.devices]) == ("", [f"GPU-{B}"])
    (device,) = samples.devices
    t_s, counter_j = np.array(device.t_ns) / 1e9, np.array(device.values["energy_counter_j"])
    assert len(t_s) > 5
    assert abs(t_s[-1] - time.perf_counter()) < 30  # the clock of this process
    # the counter is read a moment after the sample's time: what the machine makes of that moment
    assert np.polyfit(t_s, counter_j, 1)[0] == pytest.approx(200, rel=0.1)
    assert set(device.values["power_w"]) == {200.0}
    assert device.reasons == {}


def test_a_sample_is_taken_at_once_when_it_is_asked_for(meter):
    one = meter("", interval_s=1000)
    asked_ns = []
    for _ in range(3):
        time.sleep(0.5)
        asked_ns.append(time.perf_counter_ns())
        one.sample_now()
    (device,) = one.stop(30).devices
    assert len(device.t_ns) >= 3  # two that ask while the process starts are one
    assert device.t_ns[-1] >= asked_ns[-1]


@pytest.mark.parametrize("mode", ["hangs", "hangs at once"])
def test_a_call_that_hangs_ends_nothing_but_itself(meter, mode):
    one = meter(mode, interval_s=0.01)
    time.sleep(2)
    samples = one.stop(30)
    said = [samples.reason, *(device.ended for device in samples.devices)]
    assert "NVML has not answered for" in " ".join(said)
    assert [len(device.t_ns) for device in samples.devices] == ([] if mode == "hangs at once" else [5])
    wait_for(lambda: one._process.poll() is not None, 10)


@pytest.mark.parametrize(
    ("mode", "why"), [("no driver", "NVML: Driver Not Loaded"), ("no permission", "NVML: Insufficient Permissions")]
)
def test_a_node_whose_library_refuses_gives_the_reason(meter, mode, why):
    samples = meter(mode).stop(30)
    assert (samples.reason, samples.devices) == (why, [])


def test_without_a_gpu_and_readable_processors_nothing_is_started(meter, monkeypatch, tmp_path):
    monkeypatch.setattr("ddp_hpc.profiling.telemetry.CpuPackages", lambda: type("None", (), {"reason": "RAPL: none"}))
    one = meter("", [])
    assert one._process is None
    samples = one.stop()
    assert (samples.reason, samples.cpu_reason) == ("no GPU is used", "RAPL: none")


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["/no/such/python"], "the sampler cannot be started"),
        ([sys.executable, "-c", "raise SystemExit(3)"], "the sampler has died"),
        ([sys.executable, "-c", "import sys; sys.stdin.readline(); print('?')"], "the sampler cannot be understood"),
        (["sleep", "60"], "the sampler did not answer within 1 s"),
    ],
)
def test_a_sampler_that_fails_is_a_reason(meter, command, why):
    assert why in meter("", command=command).stop(1 if command[0] == "sleep" else 30).reason


def test_a_killed_sampler_is_a_reason(meter):
    one = meter("")
    os.kill(one._process.pid, signal.SIGKILL)
    assert one.stop(30).reason == "the sampler has died"


def test_a_sampler_that_died_before_it_was_spoken_to_has_died(meter, monkeypatch):
    def dead(*given, **named):
        process = popen(*given, **named)
        process.wait()
        return process

    popen = subprocess.Popen
    monkeypatch.setattr("ddp_hpc.profiling.telemetry.subprocess.Popen", dead)
    one = meter("", command=[sys.executable, "-c", "raise SystemExit(3)"])
    one.sample_now()
    assert one.stop(30).reason == "the sampler has died"


def test_a_sampler_ends_with_its_rank():
    code = "import time; from ddp_hpc.profiling.telemetry import NodeTelemetry; m = NodeTelemetry(['x'])"
    code += "; print(m._process.pid, flush=True)"
    rank = subprocess.Popen([sys.executable, "-c", f"{code}; time.sleep(60)"], stdout=subprocess.PIPE, text=True)
    sampler_pid = int(rank.stdout.readline())
    assert os.path.exists(f"/proc/{sampler_pid}")
    rank.kill()
    rank.wait()
    rank.stdout.close()
    wait_for(lambda: not _alive(sampler_pid), 20)


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_what_tells_two_devices_of_one_name_apart_is_kept(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", stand_in())
    one = telemetry_process.TelemetrySampler([A, B])
    one.start()
    samples = one.end()
    one.join()
    facts = {"sm_clock_max_mhz": 2000, "memory_clock_max_mhz": 4000, "ecc": True, "compute_processes": 2}
    links = {"pcie_generation_max": 5, "pcie_width_max": 16, "nvlinks": 4, "numa_node": 0}
    first = {"power_limit_w": 300.0, "pci_bus": "00000000:00:00.0"}
    assert samples.devices[0].facts == facts | links | first
    assert samples.devices[1].facts["numa_node"] == 1
    assert [device.facts["power_limit_w"] for device in samples.devices] == [300.0, 301.0]
    parts = ranks([A, B, A], samples)
    listed = run_record.provenance_of({}, parts, {"exchange": "ring", "device_used": "cuda"}, "")["ranks"]
    assert [rank["gpu"]["power_limit_w"] for rank in listed] == [300.0, 301.0, 300.0]
    assert [rank["gpu"]["uuid"] for rank in listed] == [A, B, A]


def test_a_device_that_does_not_say_has_fewer_facts(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", stand_in("old"))
    one = telemetry_process.TelemetrySampler([A, "unknown"])
    one.start()
    known, unknown = one.end().devices
    assert "power_limit_w" not in known.facts
    assert known.facts["ecc"]
    assert unknown.facts == {}


def test_a_long_run_keeps_fewer_samples_at_longer_intervals(monkeypatch):
    fake = stand_in()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    one = telemetry_process.TelemetrySampler([A, B], interval_s=0.1, most=16)
    one._open()
    for _ in range(100):
        one._sample()
    devices = one._result().devices
    assert [len(device.t_ns) for device in devices] == [len(devices[0].t_ns)] * 2
    assert 8 <= len(devices[0].t_ns) < 16
    assert one._interval_s == pytest.approx(0.1 * 2**11)
