"""Detects images that differ from the images you trust: how sure that is, and where they differ."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from discopatch.errors import DiscopatchError
from discopatch.version import __version__

if TYPE_CHECKING:
    from discopatch.client import Client
    from discopatch.detector import Detector
    from discopatch.evaluation import Evaluation
    from discopatch.export.runtime import Runtime
    from discopatch.gate import FolderTest, folder_test
    from discopatch.hub import load
    from discopatch.images import Transform
    from discopatch.model import VAE, Discriminator, PatchNorm2d, Weights
    from discopatch.monitor import Monitor
    from discopatch.results import Explanation, FittedDetector, Prediction, Predictions

# Imported on first use: `import discopatch` does not import torch.
_MODULES = {
    "Client": "client",
    "Detector": "detector",
    "Discriminator": "model",
    "Evaluation": "evaluation",
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
    "load": "hub",
}

__all__ = [
    "VAE",
    "Client",
    "Detector",
    "DiscopatchError",
    "Discriminator",
    "Evaluation",
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


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"discopatch.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'discopatch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
