"""Tells whether an image is like the images you trust, how sure that is, and where it differs."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discopatch.errors import (
    CacheFullError,
    CheckpointError,
    ClusterError,
    DiscopatchError,
    DivergedError,
    DownloadError,
    ExportError,
    FrozenError,
    HistoryError,
    HistoryFullError,
    HubError,
    ImageError,
    MissingExtraError,
    NoImagesError,
    NormalImagesWarning,
    NotFittedError,
    OutputError,
    ParameterError,
    ParityError,
    RunError,
    SchemaError,
    ScoresError,
    ServiceError,
    StateError,
    StoreError,
    TooFewImagesError,
    TransformError,
    WatchError,
    WeightsError,
    WorkerError,
)

if TYPE_CHECKING:
    from discopatch.client import Client
    from discopatch.detector import Detector
    from discopatch.encoders import DiscriminatorEncoder, Features
    from discopatch.export.runtime import Runtime
    from discopatch.gate import FolderTest, folder_test
    from discopatch.images import Decoder, Transform
    from discopatch.model import VAE, Discriminator, PatchNorm2d, Weights
    from discopatch.monitor import ChangePoint, Monitor, MonitorStatus, Telling
    from discopatch.results import Component, ComponentScore, Explanation, Prediction, Predictions, Reason
    from discopatch.scorer import Scorer

__version__ = "0.2.0"

# Imported on first use, so that `import discopatch` does not wait for torch.
_MODULES = {
    "Client": "client",
    "ChangePoint": "monitor",
    "Component": "results",
    "ComponentScore": "results",
    "Detector": "detector",
    "Discriminator": "model",
    "DiscriminatorEncoder": "encoders",
    "Explanation": "results",
    "Features": "encoders",
    "FolderTest": "gate",
    "Monitor": "monitor",
    "MonitorStatus": "monitor",
    "PatchNorm2d": "model",
    "Prediction": "results",
    "Predictions": "results",
    "Reason": "results",
    "Runtime": "export.runtime",
    "Scorer": "scorer",
    "Telling": "monitor",
    "Transform": "images",
    "VAE": "model",
    "Weights": "model",
    "folder_test": "gate",
}

__all__ = [
    "VAE",
    "CacheFullError",
    "ChangePoint",
    "CheckpointError",
    "Client",
    "ClusterError",
    "Component",
    "ComponentScore",
    "Detector",
    "DiscopatchError",
    "Discriminator",
    "DiscriminatorEncoder",
    "DivergedError",
    "DownloadError",
    "Explanation",
    "ExportError",
    "Features",
    "FolderTest",
    "FrozenError",
    "HistoryError",
    "HistoryFullError",
    "HubError",
    "ImageError",
    "MissingExtraError",
    "Monitor",
    "MonitorStatus",
    "NoImagesError",
    "NormalImagesWarning",
    "NotFittedError",
    "OutputError",
    "ParameterError",
    "ParityError",
    "PatchNorm2d",
    "Prediction",
    "Predictions",
    "Reason",
    "RunError",
    "Runtime",
    "SchemaError",
    "Scorer",
    "ScoresError",
    "ServiceError",
    "StateError",
    "StoreError",
    "Telling",
    "TooFewImagesError",
    "Transform",
    "TransformError",
    "WatchError",
    "Weights",
    "WeightsError",
    "WorkerError",
    "__version__",
    "folder_test",
    "load",
]


def load(
    path: "Path | str",
    *,
    weights: "str | Sequence[str]" = (),
    device: str = "auto",
    batch_size: int = 8,
    decoder: "Decoder | None" = None,
    max_pixels: int | None = None,
    max_bytes: int | None = None,
) -> "Detector | Runtime":
    """The detector that `Detector.save` wrote to a file, or the export in a folder, which needs no torch.

    It may also lie on the Hugging Face hub, hf://owner/name, which downloads it, or in a folder of the same layout.

    `weights` say where networks from outside, such as dinov2=FOLDER, lie now if they are not where they were.
    Images with more pixels and encoded images of more bytes than the limits, by default those of
    `discopatch.images.Limits`, are refused unread. Another `decoder` than the fit's must have passed its comparison.
    """
    given = {"max_pixels": max_pixels, "max_bytes": max_bytes}
    limits = {name: value for name, value in given.items() if value is not None}
    from discopatch.hub import locate

    path = locate(path).path
    if not path.is_dir():
        from discopatch.detector import Detector

        return Detector.load(path, weights=weights, device=device, batch_size=batch_size, decoder=decoder, **limits)
    if weights:
        raise ParameterError(f"{path} is an export, which has all of its weights: leave weights out")
    if device not in ("auto", "cpu"):
        raise ParameterError(f"{path} is an export, which runs on a CPU: leave the device out")
    from discopatch.export.runtime import Runtime

    runtime = Runtime.load(path, **limits)
    if decoder is not None and decoder != runtime.transform.decoder:
        raise ParameterError(
            f"{path} is an export, which reads images with decoder={runtime.transform.decoder!r}: leave the decoder "
            f"out, or load the detector with decoder={decoder!r} and export it again"
        )
    return runtime


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"discopatch.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'discopatch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
