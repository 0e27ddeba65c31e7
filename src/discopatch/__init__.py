"""Detects images that differ from the images you trust: how sure that is, and where they differ."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discopatch.errors import DiscopatchError, ParameterError

if TYPE_CHECKING:
    from discopatch.client import Client
    from discopatch.detector import Detector
    from discopatch.export.runtime import Runtime
    from discopatch.gate import FolderTest, folder_test
    from discopatch.images import Decoder, Transform
    from discopatch.model import VAE, Discriminator, PatchNorm2d, Weights
    from discopatch.monitor import Monitor
    from discopatch.results import Explanation, FittedDetector, Prediction, Predictions

__version__ = "0.2.0"

# Imported on first use: `import discopatch` does not import torch.
_MODULES = {
    "Client": "client",
    "Detector": "detector",
    "Discriminator": "model",
    "Explanation": "results",
    "FittedDetector": "results",
    "FolderTest": "gate",
    "Monitor": "monitor",
    "PatchNorm2d": "model",
    "Prediction": "results",
    "Predictions": "results",
    "Runtime": "export.runtime",
    "Transform": "images",
    "VAE": "model",
    "Weights": "model",
    "folder_test": "gate",
}

__all__ = [
    "VAE",
    "Client",
    "Detector",
    "DiscopatchError",
    "Discriminator",
    "Explanation",
    "FittedDetector",
    "FolderTest",
    "Monitor",
    "PatchNorm2d",
    "Prediction",
    "Predictions",
    "Runtime",
    "Transform",
    "Weights",
    "__version__",
    "folder_test",
    "load",
]


def load(
    path: "Path | str",
    *,
    networks: "str | Sequence[str]" = (),
    device: str = "auto",
    batch_size: int = 8,
    decoder: "Decoder | None" = None,
    max_pixels: int | None = None,
    max_bytes: int | None = None,
) -> "FittedDetector":
    """The detector in a file that `Detector.save` wrote, or in the folder of an export, which needs no torch.

    The path may also be an address of the Hugging Face hub, hf://owner/name.

    Parameters
    ----------
    networks
        Places of networks from outside, such as dinov2=FOLDER, if they have moved since the fit.
    device, batch_size, decoder
        As in `Detector`; exports run on a CPU with the decoder of their detector.
    max_pixels, max_bytes
        Limits of the images, by default those of `discopatch.images.Limits`.
    """
    given = {"max_pixels": max_pixels, "max_bytes": max_bytes}
    limits = {name: value for name, value in given.items() if value is not None}
    from discopatch.hub import locate

    path = locate(path).path
    if not path.is_dir():
        from discopatch.detector import Detector

        return Detector.load(path, networks=networks, device=device, batch_size=batch_size, decoder=decoder, **limits)
    if networks:
        raise ParameterError(f"{path} is an export, which holds its networks: leave networks out")
    if device not in ("auto", "cpu"):
        raise ParameterError(f"{path} is an export, which runs on a CPU: leave the device out")
    from discopatch.export.runtime import Runtime

    runtime = Runtime.load(path, **limits)
    if decoder not in (None, runtime.transform_.decoder):
        raise ParameterError(
            f"{path} is an export with decoder={runtime.transform_.decoder!r}: leave the decoder out, or load the "
            f"detector with decoder={decoder!r} and export it again"
        )
    return runtime


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"discopatch.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'discopatch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
