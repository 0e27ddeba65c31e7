"""Training: the paper's algorithm in `step.py`, and a resumable run around it in `loop.py`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from discopatch.training.config import PRESETS as PRESETS
    from discopatch.training.config import RunOptions as RunOptions
    from discopatch.training.config import TrainingConfig as TrainingConfig
    from discopatch.training.config import get_preset as get_preset
    from discopatch.training.loop import Ending as Ending
    from discopatch.training.loop import TrainingResult as TrainingResult
    from discopatch.training.loop import train as train

# Names are imported on first use: the command line reads `config` without torch.
_MODULES = {
    "config": ("PRESETS", "RunOptions", "TrainingConfig", "get_preset"),
    "loop": ("Ending", "TrainingResult", "train"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"discopatch.training.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
