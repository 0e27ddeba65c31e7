"""Training: the paper's algorithm in `step.py`, and a resumable run around it in `loop.py`."""

from discopatch.training.config import PRESETS as PRESETS
from discopatch.training.config import RunOptions as RunOptions
from discopatch.training.config import TrainingConfig as TrainingConfig
from discopatch.training.config import get_preset as get_preset
from discopatch.training.loop import Ending as Ending
from discopatch.training.loop import TrainingResult as TrainingResult
from discopatch.training.loop import train as train
