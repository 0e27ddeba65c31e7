"""Which stages a device gets."""

import warnings

import torch
from torch import Tensor

from discopatch.model.fast.look import Look
from discopatch.model.fast.network import Network
from discopatch.model.fast.stages import Plain, Stages

FAR = 0.05  # rounding in bfloat16 stays well below


def choose_stages(network: Network, look: Look) -> Stages:
    """Kernels for bfloat16 on a GPU, once they have agreed there with the plain stages; else the plain ones."""
    device = look.corners.device
    if device.type != "cuda" or network.dtype != torch.bfloat16:
        return Plain()
    try:
        from discopatch.model.fast.launch import Kernels

        check_agreement(network, look, Kernels())
        return Kernels()
    except Exception as error:  # whatever a compiler may say: there is a way without it
        warnings.warn(
            f"the fast kernels do not work on {torch.cuda.get_device_name(device)} ({type(error).__name__}: {error}): "
            "plain ones take their place, which are slower",
            RuntimeWarning,
            stacklevel=2,
        )
        return Plain()


@torch.inference_mode()
def check_agreement(network: Network, look: Look, stages: Stages) -> None:
    """On two pictures, one of them dim, that both ways see the same."""
    pictures = two_pictures(look)
    statistics = 2 * network.channels
    expected, found = (network.run(pictures, look, each) for each in (Plain(), stages))
    for name, where in (("statistics", slice(statistics)), ("logits", slice(statistics, None))):
        apart = relative_difference(found[:, where], expected[:, where])
        if not apart < FAR:
            raise ArithmeticError(f"the {name} are {apart:.2g} away from those of the plain pass")


def two_pictures(look: Look) -> Tensor:
    """Noise, and the same with little contrast; drawn without the global generator."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(256, (look.size, look.size, 3), generator=generator, dtype=torch.uint8)
    return torch.stack((noise, 200 + noise // 16)).to(look.corners.device)


def relative_difference(found: Tensor, expected: Tensor) -> float:
    """Of whole rows of numbers, in their lengths."""
    return float((found - expected).norm() / expected.norm())
