"""Tells whether an image is like the images you trust, how sure that is, and where it differs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from discopatch.deploy.runtime import Runtime
    from discopatch.detector import Detector
    from discopatch.images import Transform
    from discopatch.model import VAE, Discriminator, PatchNorm2d
    from discopatch.model.weights import Weights
    from discopatch.scoring import Scorer

__version__ = "0.1.0"

# Imported on first use, so that `import discopatch` does not wait for torch.
_HOMES = {
    "Detector": "discopatch.detector",
    "Discriminator": "discopatch.model",
    "PatchNorm2d": "discopatch.model",
    "Runtime": "discopatch.deploy.runtime",
    "Scorer": "discopatch.scoring",
    "Transform": "discopatch.images",
    "VAE": "discopatch.model",
    "Weights": "discopatch.model.weights",
}

__all__ = [
    "VAE",
    "Detector",
    "Discriminator",
    "PatchNorm2d",
    "Runtime",
    "Scorer",
    "Transform",
    "Weights",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'discopatch' has no attribute {name!r}")
