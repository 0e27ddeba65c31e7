"""Detects images that differ from the images you trust: how sure that is, and where they differ."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from discopatch.errors import DiscopatchError
from discopatch.version import __version__

if TYPE_CHECKING:
    from discopatch.client import Client as Client
    from discopatch.detector import Detector as Detector
    from discopatch.evaluation import Evaluation as Evaluation
    from discopatch.export.runtime import Runtime as Runtime
    from discopatch.gate import FolderTest as FolderTest
    from discopatch.gate import folder_test as folder_test
    from discopatch.hub import load as load
    from discopatch.images import Transform as Transform
    from discopatch.model import VAE as VAE
    from discopatch.model import Discriminator as Discriminator
    from discopatch.model import PatchNorm2d as PatchNorm2d
    from discopatch.model import Weights as Weights
    from discopatch.monitor import Monitor as Monitor
    from discopatch.results import Explanation as Explanation
    from discopatch.results import FittedDetector as FittedDetector
    from discopatch.results import Prediction as Prediction
    from discopatch.results import Predictions as Predictions

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

__all__ = ["DiscopatchError", "__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"discopatch.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'discopatch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
