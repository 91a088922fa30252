"""The precision of matrix products and convolutions: full, tf32 or bfloat16; and the order in which kernels add."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from ddp_hpc.config.errors import LaunchError

Arithmetic = Callable[[], AbstractContextManager[object]]


def choose(precision: str, device: torch.device) -> Arithmetic:
    """Set the switches of this process; return what forward pass and loss must be computed in.

    `full`: products in the type of the weights. `tf32`: factors of float32 products are rounded to 10 bits. `bfloat16`:
    products and convolutions in bfloat16 (`torch.autocast`), sums in the loss, weights, gradients and optimiser in
    float32.

    Raises:
        LaunchError: the device has no such arithmetic.
    """
    tf32 = precision == "tf32"
    able = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    if tf32 and not able:
        raise LaunchError(
            f"precision: tf32 needs an NVIDIA GPU of compute capability 8.0 (A100) or later, this run is on {device}: "
            "expected here: full, bfloat16"
        )
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32  # by default torch rounds convolutions, but not products
    if precision == "bfloat16":
        # without the cache of rounded weights, which would outlive the step that it was captured in
        return partial(torch.autocast, device.type, torch.bfloat16, cache_enabled=False)
    return nullcontext


def same_order_each_time(device: torch.device) -> None:
    """Take the kernels of a GPU that add in the same order each time; torch warns where there is none.

    Source: https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    if device.type == "cuda":
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
        torch.use_deterministic_algorithms(True, warn_only=True)
