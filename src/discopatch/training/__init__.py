"""Training: the paper's algorithm in `step.py`, and a resumable run around it in `loop.py`."""

from typing import TYPE_CHECKING, Any

from discopatch.training.config import PRESETS as PRESETS
from discopatch.training.config import RunOptions as RunOptions
from discopatch.training.config import TrainingConfig as TrainingConfig
from discopatch.training.config import get_preset as get_preset

if TYPE_CHECKING:
    from discopatch.training.loop import Ending as Ending
    from discopatch.training.loop import TrainingResult as TrainingResult
    from discopatch.training.loop import train as train


def __getattr__(name: str) -> Any:
    """Imports the loop, and torch with it, on first use: the command line reads `config` without torch."""
    if name not in ("Ending", "TrainingResult", "train"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from discopatch.training import loop

    return getattr(loop, name)
