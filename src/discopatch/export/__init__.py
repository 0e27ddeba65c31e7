"""A fitted detector as a graph for other runtimes, and a runtime for such graphs that needs no torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from discopatch.export.exporter import Exported, export_detector
    from discopatch.export.parity import Parity
    from discopatch.export.runtime import Runtime

# Imported on first use: an export is run where there is no torch.
_MODULES = {
    "Exported": "discopatch.export.exporter",
    "Parity": "discopatch.export.parity",
    "Runtime": "discopatch.export.runtime",
    "export_detector": "discopatch.export.exporter",
}

__all__ = ["Exported", "Parity", "Runtime", "export_detector"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'discopatch.export' has no attribute {name!r}")
