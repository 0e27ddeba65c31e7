"""BatchNorm whose batch is one image's patches."""

from typing import Any

import torch
from torch import Tensor, nn

BATCHNORM_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def patch_statistics(x: Tensor, patches: int | None = None) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of every channel over each group of patches.

    (groups * patches, C, H, W) -> two (groups, C), in float32 or wider; without `patches` all of `x` is one group.
    """
    size, channels, height, width = x.shape
    patches = size if patches is None else patches
    check_divides(size, patches)
    # The 3-D view is free in channels_last memory, and the only one whose reduction Triton compiles in bfloat16.
    groups = x.permute(0, 2, 3, 1).reshape(-1, patches * height * width, channels).to(at_least_float32(x.dtype))
    mean = groups.mean(1)
    # Two plain means: torch.var_mean takes several times as long on a CPU.
    return mean, (groups - mean[:, None]).square().mean(1)


def check_divides(size: int, patches: int) -> None:
    """A batch is a whole number of groups."""
    if not torch.compiler.is_compiling() and size % patches:
        raise ValueError(f"{size} patches do not divide into groups of {patches}: pass a multiple of {patches}")


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Half precision loses the small differences between patches that the method lives on."""
    return torch.promote_types(dtype, torch.float32)


class PatchNorm2d(nn.Module):
    """Normalises each group of `patches` by that group's own mean and biased variance.

    Each image's patches stand together in the batch, (images * patches, C, H, W), so that an image's result never
    depends on its neighbours. Without `patches` the whole batch is one group: then this is `nn.BatchNorm2d` in
    training mode, and its state dict loads here (running statistics are left out, there are none to keep).
    """

    def __init__(self, channels: int, patches: int | None = None, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.channels, self.patches, self.eps = channels, patches, eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, patches: int | None = None) -> Tensor:
        """`patches` here overrides the group size that the layer was made with."""
        return self.normalise(x, *patch_statistics(x, self.patches if patches is None else patches))

    def normalise(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """`x` on the scale of its own group, from statistics that are already known."""
        grouped = x.reshape(mean.shape[0], -1, *x.shape[1:])  # (groups, patches, C, H, W)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        normal = (grouped - per_channel(mean)) * per_channel(scale) + self.bias[:, None, None]
        return normal.flatten(0, 1).to(x.dtype)

    def extra_repr(self) -> str:
        """What `print(layer)` shows."""
        return f"{self.channels}, patches={self.patches or 'all'}, eps={self.eps}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in BATCHNORM_BUFFERS:
            state_dict.pop(prefix + name, None)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def per_channel(values: Tensor) -> Tensor:
    """(groups, C) -> (groups, 1, C, 1, 1), to meet (groups, patches, C, H, W)."""
    return values[:, None, :, None, None]
