"""Training: the paper's algorithm, step by step, and a run around it that survives interruption."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from discopatch.training.config import Hardware, RunOptions, TrainingConfig
    from discopatch.training.loop import Ending, TrainingResult, train
    from discopatch.training.presets import PRESETS, get_preset

# Imported on first use: the command line reads `config` for its flags, and must not wait for torch.
_MODULES = {
    "Ending": "loop",
    "Hardware": "config",
    "PRESETS": "presets",
    "RunOptions": "config",
    "TrainingConfig": "config",
    "TrainingResult": "loop",
    "get_preset": "presets",
    "train": "loop",
}

__all__ = ["PRESETS", "Ending", "Hardware", "RunOptions", "TrainingConfig", "TrainingResult", "get_preset", "train"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"discopatch.training.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'discopatch.training' has no attribute {name!r}")
