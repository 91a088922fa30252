"""Columns of the records that meters fill: of a run, and of every sample of a GPU."""

import pyarrow as pa

_TEXT, _INT, _FLOAT = pa.string(), pa.int64(), pa.float64()


def field(name: str, kind: pa.DataType, unit: str, meaning: str) -> pa.Field:
    """Return a column of a record, with its unit and its meaning."""
    return pa.field(name, kind, metadata={"unit": unit, "meaning": meaning})


_MEAN = "mean over the samples of the training, then over the GPUs"

CONSUMPTION = [
    field("gpus", _INT, "GPUs", "in use, each counted once however many ranks share it"),
    field("energy_j", _FLOAT, "J", "of all GPUs in the training windows: without start-up and evaluations"),
    field("energy_method", _TEXT, "", "counter: the driver's; integrated power, where it has none"),
    field("energy_counter_j", _FLOAT, "J", "by the counter"),
    field("energy_power_j", _FLOAT, "J", "by power, integrated over time"),
    field("energy_per_sample_j", _FLOAT, "J", "energy_j / samples_seen"),
    field("energy_idle_share", _FLOAT, "", "of energy_j: what the GPUs would have drawn at rest"),
    field("power_mean_w", _FLOAT, "W", "of one GPU, the mean over the training and the GPUs"),
    field("gpu_utilisation_mean", _FLOAT, "", f"time in which any kernel ran, waiting ones included; {_MEAN}"),
    field("sm_clock_mean_mhz", _FLOAT, "MHz", f"of the multiprocessors; {_MEAN}"),
    field("memory_clock_mean_mhz", _FLOAT, "MHz", f"of the memory; {_MEAN}"),
    field("temperature_max_c", _FLOAT, "C", "the highest of any GPU in the training"),
    field("throttled_share", _FLOAT, "", f"samples with clocks held down by power or heat; {_MEAN}"),
    *(
        field(f"{link}_{way}_bytes_per_s", _FLOAT, "B/s", f"{words} over {link} by one GPU; {_MEAN}")
        for link in ("pcie", "nvlink")
        for way, words in (("rx", "received"), ("tx", "sent"))
    ),
    field(
        "cpu_energy_j",
        _FLOAT,
        "J",
        "of the processor packages of all nodes in the training, by RAPL, whoever used them",
    ),
    field("flop_per_step", _FLOAT, "FLOP", "of one rank: products, convolutions, attention, forward and backward"),
    field("flop_per_s", _FLOAT, "FLOP/s", "of all ranks: their work over the training time"),
    field("peak_flop_per_s", _FLOAT, "FLOP/s", "of all GPUs in this arithmetic, by their data sheets"),
    field("mfu", _FLOAT, "", "model FLOP utilisation: flop_per_s / peak_flop_per_s"),
]

GPU = pa.schema(
    [
        field("t_s", _FLOAT, "s", "time zero to the sample, pauses included; negative before"),
        field("host", _TEXT, "", "where it was sampled"),
        field("uuid", _TEXT, "", "of the GPU, or of the MIG slice"),
        field("trained_s", _FLOAT, "s", "training time then, as t_s of steps; null before time zero and after the end"),
        field("energy_j", _FLOAT, "J", "of the training so far, by the counter, else by integrated power"),
        field("energy_counter_j", _FLOAT, "J", "counter of the driver, since it was loaded"),
        field("power_w", _FLOAT, "W", "now, where the GPU says that; else the mean of the last second"),
        field("utilisation", _FLOAT, "", "share of the last 1/6 to 1 s in which any kernel ran, waiting ones included"),
        field("memory_used_bytes", _FLOAT, "B", "of the GPU, by whomever"),
        field("sm_clock_mhz", _FLOAT, "MHz", "of the multiprocessors"),
        field("memory_clock_mhz", _FLOAT, "MHz", "of the memory"),
        field("temperature_c", _FLOAT, "C", "of the chip"),
        field("throttle_reasons", _FLOAT, "", "NVML's bits that say why clocks are not higher"),
        *(
            field(
                f"{link}_{way}_bytes_per_s", _FLOAT, "B/s", f"{words} by the GPU over {link}, since the sample before"
            )
            for link in ("pcie", "nvlink")
            for way, words in (("rx", "received"), ("tx", "sent"))
        ),
    ]
)
