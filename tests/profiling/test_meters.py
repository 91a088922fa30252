"""Joules, nulls and reasons: devices of 100, 200 and 300 W, whatever NVML can and cannot do."""

import json
from array import array

import numpy as np
import pytest
from metered import WINDOWS, consumed, ranks, sample, stand_in

from ddp_hpc.profiling import energy, flops, nvml
from ddp_hpc.profiling.peaks import peak_flop_per_s
from ddp_hpc.profiling.rapl import CpuPackages
from ddp_hpc.profiling.telemetry import NodeSamples
from ddp_hpc.runs import records

A, B, C = stand_in().UUIDS
SLICE = stand_in().SLICE
UNSUPPORTED, DENIED = "NVML: Not Supported", "NVML: Insufficient Permissions"


def run(monkeypatch, mode, uuids, **fields):
    return consumed(ranks(uuids, NodeSamples(devices=sample(monkeypatch, mode, uuids))), **fields)


def test_two_seconds_on_two_devices_by_hand(monkeypatch):
    """The pause between the windows does not count, nor does what lies before and after."""
    row, samples, reasons = run(monkeypatch, "", [B, C])
    assert (row["gpus"], row["energy_method"]) == (2, "counter")
    assert row["energy_j"] == row["energy_counter_j"] == pytest.approx(2 * (200 + 300))
    assert row["energy_power_j"] == pytest.approx(1000)
    assert row["energy_error_j"] == pytest.approx(4 * 0.1 * (200 + 300))  # at each of four ends what an interval brings
    assert row["energy_per_sample_j"] == pytest.approx(1000 / 160)
    assert row["power_mean_w"] == pytest.approx(250)
    assert row["energy_idle_share"] == pytest.approx(1)  # the stand-in draws the same at rest
    assert row["gpu_utilisation_mean"] == pytest.approx((0.25 + 0.5) / 2)
    assert (row["sm_clock_mean_mhz"], row["memory_clock_mean_mhz"]) == (1001.5, 2001.5)
    assert (row["temperature_max_c"], row["throttled_share"]) == (42, 0.5)  # one is held by its power cap, one idles
    assert row["pcie_rx_bytes_per_s"] == pytest.approx(2.5e6, rel=1e-3)
    assert row["nvlink_tx_bytes_per_s"] == pytest.approx(2.5 * 4e3 * 1024, rel=1e-2)
    assert {name for name, value in row.items() if value is None} == reasons.keys()
    assert reasons.keys() == {"cpu_energy_j", "flop_per_step", "flop_per_s", "mfu"}  # of a T4 the peak is known
    assert set(samples["uuid"]) == {f"GPU-{B}", f"GPU-{C}"}


def test_samples_have_the_time_of_the_training(tmp_path, monkeypatch):
    _, samples, _ = run(monkeypatch, "", [A])
    records.write("gpu", samples, tmp_path / "gpu.parquet")
    frame = records.read("gpu", tmp_path / "gpu.parquet").to_pandas()
    assert frame["t_s"].iloc[[0, -1]].tolist() == pytest.approx([-1, 3])
    inner = frame[(frame["t_s"] > -0.01) & (frame["t_s"] < 2.51)]
    assert inner["trained_s"].iloc[[0, 5, 10, 12, 15, 20, 25]].tolist() == pytest.approx([0, 0.5, 1, 1, 1, 1.5, 2])
    assert frame["trained_s"].isna().sum() == 10 + 5
    assert inner["energy_j"].to_numpy() == pytest.approx(100 * inner["trained_s"].to_numpy())
    assert frame["power_w"].eq(100).all()


def test_the_number_that_nvml_gives_a_device_is_not_cudas(monkeypatch):
    fake = stand_in()
    assert [fake.UUIDS[fake.nvmlDeviceGetHandleByIndex(index).number] for index in range(3)] != fake.UUIDS
    for uuid, watts in ((A, 100), (B, 200), (C, 300)):
        for form in (uuid, f"GPU-{uuid}"):
            row, samples, _ = run(monkeypatch, "", [form])
            assert row["energy_j"] == pytest.approx(2 * watts)
            assert set(samples["uuid"]) == {f"GPU-{uuid}"}


def test_traffic_that_a_newer_driver_counts_by_another_name(monkeypatch):
    (row, _, _), (newer, _, _) = (run(monkeypatch, mode, [B]) for mode in ("", "newer"))
    assert newer["nvlink_tx_bytes_per_s"] == pytest.approx(row["nvlink_tx_bytes_per_s"], rel=1e-2)
    assert newer["nvlink_tx_bytes_per_s"] == pytest.approx(2 * 4e3 * 1024, rel=1e-2)


@pytest.mark.parametrize(("link", "known"), [({"pcie_generation_max": 3, "pcie_width_max": 16}, True), ({}, False)])
def test_a_counter_that_begins_anew_is_followed_where_it_cannot_have_done_so_twice(monkeypatch, link, known):
    """10 GB/s come in, so a counter of 32 bits begins anew every 0.43 s."""
    now, fake = [0.0], stand_in("wraps")
    fake.clock = lambda: now[0]
    monkeypatch.setattr(nvml.time, "perf_counter_ns", lambda: round(1e9 * now[0]))
    gpu, found = nvml.Device(fake, A), []
    gpu.facts = link
    for tick in range(1, 30):
        now[0] = 0.1 * tick
        found.append(gpu.read().get("pcie_rx_bytes_per_s"))
    rates = [rate for rate in found if rate is not None]
    assert rates == pytest.approx([1e10] * len(rates))
    assert len(rates) == (28 if known else 3)
    assert gpu.reasons.get("pcie_rx_bytes_per_s") == (None if known else nvml.WRAPPED)


def test_a_device_counts_once_however_many_ranks_and_hosts_see_it(monkeypatch):
    row, _, _ = run(monkeypatch, "", [A, A, A], share_gpu=True)
    assert (row["gpus"], row["energy_j"]) == (1, pytest.approx(200))
    seen = NodeSamples(devices=sample(monkeypatch, "", [A]))
    parts = ranks([A], seen) + ranks([A], seen)  # two containers on one node
    row, samples, _ = consumed(parts, share_gpu=True)
    assert (row["gpus"], row["energy_j"], len(samples["t_s"])) == (1, pytest.approx(200), 41)


def test_names_as_bytes_change_nothing(monkeypatch):
    assert run(monkeypatch, "bytes", [B])[0]["energy_j"] == pytest.approx(400)
    assert sample(monkeypatch, "bytes", [B])[0].name == "Tesla T1"


def test_without_a_counter_power_is_integrated_and_that_is_said(monkeypatch):
    row, samples, reasons = run(monkeypatch, "no counter", [B])
    assert (row["energy_j"], row["energy_method"]) == (pytest.approx(400), "integrated power")
    assert row["energy_counter_j"] is None
    assert reasons["energy_counter_j"] == UNSUPPORTED
    assert np.isnan(samples["energy_counter_j"]).all()


def test_without_power_the_counter_is_enough_but_not_for_what_rest_would_take(monkeypatch):
    row, _, reasons = run(monkeypatch, "no power", [B])
    assert (row["energy_j"], row["energy_method"], row["energy_power_j"]) == (pytest.approx(400), "counter", None)
    assert reasons["energy_power_j"] == UNSUPPORTED
    assert row["energy_idle_share"] is None
    assert "no sample of power at rest" in reasons["energy_idle_share"]


def test_without_both_there_is_no_energy_and_all_else(monkeypatch):
    row, _, reasons = run(monkeypatch, "neither", [B])
    for name in ("energy_j", "energy_method", "energy_per_sample_j", "power_mean_w", "energy_idle_share"):
        assert row[name] is None
        assert UNSUPPORTED in reasons[name]
    assert row["gpu_utilisation_mean"] == pytest.approx(0.25)


def test_an_old_driver_has_other_functions(monkeypatch):
    row, samples, reasons = run(monkeypatch, "old", [B])
    assert (row["energy_j"], row["energy_method"]) == (pytest.approx(400), "integrated power")
    assert reasons["energy_counter_j"] == "NVML: Function Not Found"
    assert reasons["nvlink_rx_bytes_per_s"] == UNSUPPORTED
    assert (row["pcie_rx_bytes_per_s"], row["pcie_tx_bytes_per_s"]) == (2e6, 4e6)  # watched, not counted
    assert np.isfinite(samples["pcie_rx_bytes_per_s"]).sum() == 2  # each time takes 20 ms: not at every sample


@pytest.mark.parametrize(("mode", "uuid"), [("mig slice", SLICE), ("mig slice", f"MIG-{SLICE}"), ("mig mode", A)])
def test_a_slice_has_neither_utilisation_nor_the_energy_of_its_neighbours(monkeypatch, mode, uuid):
    row, _, reasons = run(monkeypatch, mode, [uuid])
    assert row["gpu_utilisation_mean"] is None
    assert reasons["gpu_utilisation_mean"] == UNSUPPORTED
    assert row["energy_j"] is None
    assert reasons["energy_counter_j"] == reasons["energy_power_j"] == nvml.MIG
    assert row["sm_clock_mean_mhz"] == 1000


def test_an_unknown_device_is_null_and_named(monkeypatch):
    row, samples, reasons = run(monkeypatch, "not there", [A])
    assert row["energy_j"] is None
    assert f"NVML finds no device of UUID {A}: Not Found" in reasons["energy_j"]
    assert reasons["gpu_utilisation_mean"] == f"NVML finds no device of UUID {A}: Not Found"
    assert len(samples["t_s"]) == 0


def test_no_sum_over_devices_of_which_one_is_unknown(monkeypatch):
    row, _, reasons = run(monkeypatch, "", [A, "eeeeeeee"])
    assert row["gpus"] == 2
    assert row["energy_j"] is row["gpu_utilisation_mean"] is None
    assert "UUID eeeeeeee" in reasons["energy_j"]


def test_a_device_lost_on_the_way_has_no_energy_but_its_samples(monkeypatch):
    row, samples, reasons = run(monkeypatch, "lost", [A])
    assert row["energy_j"] is None
    assert "lost: GPU is lost" in reasons["energy_j"]
    assert reasons["gpu_utilisation_mean"] == "lost: GPU is lost"  # before the training began
    assert len(samples["t_s"]) == 5


def test_a_counter_that_goes_back_gives_its_place_to_power_where_too_little_is_known(monkeypatch):
    row, _, _ = run(monkeypatch, "reset", [B])  # long before time zero
    assert (row["energy_j"], row["energy_method"]) == (pytest.approx(400), "counter")
    t_s = np.arange(0, 4.01, 0.5)
    counter_j = np.where(t_s < 1.2, 1e6, 0) + 100 * t_s
    found = energy.by_counter(t_s, counter_j, [(0.0, 4.0)])
    assert found.total_j is None  # an eighth of the time is missing
    assert "the counter went back; sampled in 3.50 of 4.00 s" in found.reason
    fine = np.linspace(0, 4, 41)
    back = np.where(fine < 1.2, 1e6, 0) + 100 * fine
    assert energy.by_counter(fine, back, [(0.0, 4.0)]).total_j == pytest.approx(400)


def test_a_counter_that_does_not_move_is_no_zero(monkeypatch):
    row, _, reasons = run(monkeypatch, "stands still", [B])
    assert (row["energy_j"], row["energy_method"]) == (pytest.approx(400), "integrated power")
    assert reasons["energy_counter_j"] == "the counter did not move"


@pytest.mark.parametrize("seed", range(20))
def test_the_energy_of_a_counter_that_moves_now_and_then_is_within_its_bounds(seed):
    """Of a training of a second and less, too, if a sample is taken at its ends."""
    random = np.random.default_rng(seed)
    fine_s = np.arange(0, 4, 0.001)
    truth_j = np.cumsum(random.uniform(50, 700, 40).repeat(100)) * 0.001
    counted_j = truth_j[np.arange(4000) // 100 * 100]  # updated every 100 ms
    begin, end = np.sort(random.choice(np.arange(500, 3000), 2, replace=False))
    read = np.union1d(np.arange(random.integers(90), 4000, 90), [begin, end])
    found = energy.by_counter(fine_s[read], counted_j[read], [(fine_s[begin], fine_s[end])])
    if found.total_j is None:  # between two updates
        assert found.reason == "the counter did not move"
        return
    assert abs(found.total_j - (truth_j[end] - truth_j[begin])) <= found.error_j <= 2 * 0.2 * 700


def test_where_the_counter_was_not_read_at_both_ends_no_bound_is_known():
    t_s = np.arange(0.05, 2, 0.1)
    assert energy.by_counter(t_s, 100 * t_s, [(0.1, 1.9)]).error_j == pytest.approx(2 * 15)
    assert energy.by_counter(t_s, 100 * t_s, [(0.0, 1.9)]).error_j is None


def test_what_breaks_in_the_library_is_a_reason(monkeypatch):
    row, _, reasons = run(monkeypatch, "breaks", [B])
    assert row["energy_method"] == "integrated power"
    assert reasons["energy_counter_j"] == "AttributeError: no such function"


def test_power_across_a_long_silence_is_not_known():
    t_s = np.array([0, 1, 2, 3, 60, 61.0])
    found = energy.by_power(t_s, np.full(6, 100.0), [(0.0, 61.0)])
    assert found.total_j is None
    assert "sampled in 4.00 of 61.00 s" in found.reason
    assert energy.by_counter(t_s, 100 * t_s, [(0.0, 61.0)]).total_j == pytest.approx(6100)


@pytest.mark.parametrize("samples", [0, 1])
def test_too_few_samples_give_no_energy(samples):
    t_s = np.arange(float(samples))
    for way in (energy.by_counter, energy.by_power):
        assert way(t_s, t_s, [(0.0, 1.0)]).reason == "fewer than two samples"


def test_a_sum_of_uneven_power_by_brute_force():
    rng = np.random.default_rng(3)
    t_s = np.cumsum(rng.uniform(0.05, 0.15, 60))
    power_w = rng.uniform(50, 700, 60)
    fine = np.linspace(t_s[0], t_s[-1], 2_000_001)
    inside = energy.inside(fine, WINDOWS)
    expected = np.interp(fine, t_s, power_w)[inside].sum() * (fine[1] - fine[0])
    # a window's end within an interval takes its share of the interval's energy
    assert energy.by_power(t_s, power_w, WINDOWS).total_j == pytest.approx(expected, rel=0.02)
    assert energy.elapsed(fine, WINDOWS)[-1] == pytest.approx(2)


def test_processor_packages_start_again_and_may_not_be_readable(tmp_path):
    for number, (name, start) in enumerate((("package-0", 90), ("core", 5), ("package-1", 10))):
        zone = tmp_path / f"intel-rapl:{number}"
        zone.mkdir()
        for file, text in (("name", name), ("energy_uj", start * 10**6), ("max_energy_range_uj", 10**8)):
            (zone / file).write_text(f"{text}\n")
    packages = CpuPackages(tmp_path)
    assert packages.reason == ""
    first = packages.read()
    assert first == pytest.approx(90 + 10)  # of both packages, not of the core
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text(f"{15 * 10**6}\n")  # past 100 J, it starts again
    (tmp_path / "intel-rapl:2" / "energy_uj").write_text(f"{17 * 10**6}\n")
    assert packages.read() - first == pytest.approx(25 + 7)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert packages.read() is None
    assert "No such file" in CpuPackages(tmp_path).reason
    assert CpuPackages(tmp_path / "nowhere").reason == "RAPL: this node shows no processor package"


def test_a_processor_that_is_shown_twice_counts_once(tmp_path):
    shown = {"intel-rapl:0": "package-0", "intel-rapl:1": "package-1", "intel-rapl:2": "psys", "intel-rapl:0:0": "dram"}
    mirrored = {"intel-rapl-mmio:0": "package-0", "intel-rapl-mmio:1": "package-1"}
    for number, (zone, name) in enumerate((shown | mirrored).items()):
        (tmp_path / zone).mkdir()
        for file, text in (("name", name), ("energy_uj", 10**6 * 10**number), ("max_energy_range_uj", 10**12)):
            (tmp_path / zone / file).write_text(f"{text}\n")
    assert CpuPackages(tmp_path).read() == pytest.approx(1 + 10)


def test_dies_of_one_package_each_count(tmp_path):
    for number, name in enumerate(("package-0-die-0", "package-0-die-1")):
        (tmp_path / f"intel-rapl:{number}").mkdir()
        for file, text in (("name", name), ("energy_uj", 10**6), ("max_energy_range_uj", 10**12)):
            (tmp_path / f"intel-rapl:{number}" / file).write_text(f"{text}\n")
    assert CpuPackages(tmp_path).read() == pytest.approx(2)


def test_processors_of_one_kernel_count_once_and_of_two_twice():
    def node(boot, watts, reason=""):
        t_ns = array("q", range(0, 4 * 10**9, 10**8))
        return NodeSamples(
            boot=boot, cpu_reason=reason, cpu_t_ns=t_ns, cpu_joules=array("d", [watts * t / 1e9 for t in t_ns])
        )

    def joules(*nodes):
        row, _, reasons = consumed([part for one in nodes for part in ranks([A], one)])
        return row["cpu_energy_j"], reasons.get("cpu_energy_j")

    assert joules(node("a", 50), node("a", 50)) == (pytest.approx(100), None)
    assert joules(node("a", 50), node("b", 70)) == (pytest.approx(240), None)
    assert joules(node("a", 50), node("b", 70, "RAPL: denied")) == (None, "RAPL: denied")


def test_a_resumed_run_has_no_energy(monkeypatch):
    """What it used before is not known here."""
    parts = ranks([A], NodeSamples(devices=sample(monkeypatch, "", [A])))
    parts[0].timings.starts[1:] += [2, 0]
    row, samples, reasons = consumed(parts)
    assert row["energy_j"] is row["energy_per_sample_j"] is row["gpu_utilisation_mean"] is None
    assert "the run was resumed" in reasons["energy_j"]
    assert np.isnan(samples["energy_j"]).all()


def test_a_reading_of_the_strain_stress_network_and_its_mfu(monkeypatch):
    """600-150-200-163-2: forward 2, backward 4 operations a weight; nobody needs the inputs' gradients."""
    import torch

    from ddp_hpc.models import mlp

    model = mlp.build((600,), 2, widths=(150, 200, 163))
    before = [parameter.grad for parameter in model.parameters()]
    found = flops.per_sample(model, list(model.parameters()), torch.zeros(2, 600))
    weights = [600 * 150, 150 * 200, 200 * 163, 163 * 2]
    assert found == 6 * sum(weights) - 2 * weights[0]
    assert [parameter.grad for parameter in model.parameters()] == before
    parts = ranks(
        [A, B], NodeSamples(devices=sample(monkeypatch, "", [A, B])), "NVIDIA H100 80GB HBM3", flop_per_sample=found
    )
    row, _, reasons = consumed(parts)
    assert row["flop_per_step"] == 10 * found
    assert row["mfu"] == pytest.approx(found * 80 / (2 * 66.9e12))  # 160 samples in 2 s, two GPUs
    assert reasons.keys() == {"cpu_energy_j"}


@pytest.mark.parametrize(
    ("name", "precision", "dtype", "tera"),
    [
        ("NVIDIA A100-SXM4-40GB", "full", "float32", 19.5),
        ("NVIDIA A100-SXM4-40GB", "tf32", "float32", 156),
        ("NVIDIA A100 80GB PCIe", "bfloat16", "float32", 312),
        ("NVIDIA H100 PCIe", "full", "float64", 51.2),
        ("NVIDIA H100 NVL", "tf32", "float32", 417.5),
        ("NVIDIA H200", "bfloat16", "float32", 989.4),
        ("Tesla V100-SXM2-16GB", "full", "float32", 15.7),
        ("Tesla V100-SXM2-16GB", "tf32", "float32", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "full", "float32", None),
        ("NVIDIA RTX 9999", "full", "float32", None),
    ],
)
def test_the_peak_of_a_device(name, precision, dtype, tera):
    assert peak_flop_per_s(name, precision, dtype) == (tera if tera is None else pytest.approx(tera * 1e12))


def test_reasons_are_json(monkeypatch):
    _, _, reasons = run(monkeypatch, "lost", [A, B])
    assert json.loads(json.dumps(reasons)) == reasons
