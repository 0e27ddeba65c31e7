"""How the model learns: one step of the paper's algorithm, and a run that survives what happens around it."""

from discopatch.training.loop import Ending, Habits, Outcome, TrainingDiverged, train
from discopatch.training.machine import Machine
from discopatch.training.recipe import Recipe

__all__ = ["Ending", "Habits", "Machine", "Outcome", "Recipe", "TrainingDiverged", "train"]
