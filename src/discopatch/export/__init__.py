"""Export of fitted detectors to ONNX and OpenVINO, and a runtime for such exports that does not need torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from discopatch.export.exporter import Exported, export_detector
    from discopatch.export.parity import Parity
    from discopatch.export.runtime import Runtime

# Imported on first use: `exporter` needs torch, and `runtime` runs without it.
_MODULES = {"Exported": "exporter", "Parity": "parity", "Runtime": "runtime", "export_detector": "exporter"}

__all__ = ["Exported", "Parity", "Runtime", "export_detector"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"discopatch.export.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'discopatch.export' has no attribute {name!r}")
