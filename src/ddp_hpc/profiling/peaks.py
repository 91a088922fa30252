"""The most floating-point operations per second that a GPU can do, by the kind of arithmetic: what MFU is relative to.

Dense products; where a data sheet gives rates with sparsity, half of them. Sources, NVIDIA's papers and data sheets:
"H100 Tensor Core GPU Architecture" (2022), tables 1 and 2; "A100 Tensor Core GPU Architecture" (2020), table 1; data
sheets of H100 NVL, H200, V100, T4, A10, A40, L4 and L40S.
"""

TERA = 1e12

_NVL = {"float64": 60.0, "float32": 60.0, "tf32": 417.5, "bfloat16": 835.5}
_SXM = {"float64": 66.9, "float32": 66.9, "tf32": 494.7, "bfloat16": 989.4}

# TFLOP/s by words that a device's name holds, all of them; the first that fits counts. What is not there the device
# cannot do; float64 counts tensor cores, which its products use.
PEAKS = {
    "H200 NVL": _NVL,
    "H200": _SXM,
    "H100 NVL": _NVL,
    "H100 PCIe": {"float64": 51.2, "float32": 51.2, "tf32": 378.0, "bfloat16": 756.0},
    "H100 HBM3": _SXM,
    "A100": {"float64": 19.5, "float32": 19.5, "tf32": 156.0, "bfloat16": 312.0},
    "V100 SXM2": {"float64": 7.8, "float32": 15.7},
    "V100 PCIE": {"float64": 7.0, "float32": 14.0},
    "L40S": {"float32": 91.6, "tf32": 183.0, "bfloat16": 362.05},
    "A40": {"float32": 37.4, "tf32": 74.8, "bfloat16": 149.7},
    "A10": {"float32": 31.2, "tf32": 62.5, "bfloat16": 125.0},
    "L4": {"float32": 30.3, "tf32": 60.0, "bfloat16": 121.0},
    "T4": {"float32": 8.1},
}


def peak_flop_per_s(device: str, precision: str, dtype: str) -> float | None:
    """Return the peak of a device, for products of a `precision`; None if it is not known, or for a MIG slice.

    The device is named as by its driver, e.g. `NVIDIA A100-SXM4-40GB`; `dtype` is that of the weights.
    """
    words = set(device.replace("-", " ").split())
    if "MIG" in words:
        return None
    kind = dtype if precision == "full" or dtype == "float64" else precision
    peak: dict[str, float] = next((peak for needed, peak in PEAKS.items() if words.issuperset(needed.split())), {})
    return TERA * peak[kind] if kind in peak else None
