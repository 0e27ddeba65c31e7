"""In which arithmetic the discriminator looks at images."""

from typing import Literal, get_args

import torch

Precision = Literal["float32", "bfloat16"]
CHOOSE_FLOAT32 = "choose precision='float32', or a device with CUDA"


def check_precision(precision: str, device: torch.device, *, remedy: str = CHOOSE_FLOAT32) -> None:
    """bfloat16 is for matrix units: on a CPU it would only be slower and coarser."""
    if precision not in get_args(Precision):
        raise ValueError(f"unknown precision {precision!r}: choose one of {', '.join(get_args(Precision))}")
    if precision == "bfloat16" and device.type != "cuda":
        raise ValueError(f"precision 'bfloat16' needs a GPU, and the device is {device.type}: {remedy}")
