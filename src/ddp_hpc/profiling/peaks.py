"""The most floating-point operations per second that a GPU can do, by the kind of arithmetic: what MFU is relative to.

Dense products; where a data sheet gives rates with sparsity, half of them. Sources, NVIDIA's papers and data sheets:
"H100 Tensor Core GPU Architecture" (2022), tables 1 and 2; "A100 Tensor Core GPU Architecture" (2020), table 1; data
sheets of H100 NVL, H200, V100, T4, A10, A40, L4 and L40S.
"""

from dataclasses import dataclass

TERA = 1e12


@dataclass(frozen=True, kw_only=True)
class Peak:
    """TFLOP/s of a device; None: it has no such arithmetic. float64 counts tensor cores, which its products use."""

    float64: float | None = None
    float32: float
    tf32: float | None = None
    bfloat16: float | None = None


_A100 = Peak(float64=19.5, float32=19.5, tf32=156.0, bfloat16=312.0)
_NVL = Peak(float64=60.0, float32=60.0, tf32=417.5, bfloat16=835.5)
_SXM = Peak(float64=66.9, float32=66.9, tf32=494.7, bfloat16=989.4)

# words that a device's name holds, all of them; the first that fits counts
PEAKS: tuple[tuple[tuple[str, ...], Peak], ...] = (
    (("H200", "NVL"), _NVL),
    (("H200",), _SXM),
    (("H100", "NVL"), _NVL),
    (("H100", "PCIe"), Peak(float64=51.2, float32=51.2, tf32=378.0, bfloat16=756.0)),
    (("H100", "HBM3"), _SXM),
    (("A100",), _A100),
    (("V100", "SXM2"), Peak(float64=7.8, float32=15.7)),
    (("V100", "PCIE"), Peak(float64=7.0, float32=14.0)),
    (("L40S",), Peak(float32=91.6, tf32=183.0, bfloat16=362.05)),
    (("A40",), Peak(float32=37.4, tf32=74.8, bfloat16=149.7)),
    (("A10",), Peak(float32=31.2, tf32=62.5, bfloat16=125.0)),
    (("L4",), Peak(float32=30.3, tf32=60.0, bfloat16=121.0)),
    (("T4",), Peak(float32=8.1)),
)


def peak_flop_per_s(device: str, precision: str, dtype: str) -> float | None:
    """Return the peak of a device; None if it is not known, or for a slice of a device (MIG).

    Args:
        device: its name as the driver gives it, e.g. `NVIDIA A100-SXM4-40GB`.
        precision: of products: `full`, `tf32`, `bfloat16`.
        dtype: of the weights: `float32`, `float64`.
    """
    words = set(device.replace("-", " ").split())
    if "MIG" in words:
        return None
    kind = dtype if precision == "full" or dtype == "float64" else precision
    for needed, peak in PEAKS:
        if set(needed) <= words:
            tera: float | None = getattr(peak, kind)
            return None if tera is None else TERA * tera
    return None
