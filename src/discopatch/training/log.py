"""What a run writes down: losses as CSV always, TensorBoard and Weights & Biases when asked, pictures of patches."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image
from torch import Tensor

from discopatch.files import write_atomically
from discopatch.patches import to_pixels
from discopatch.training.step import Losses

COLUMNS = ("step", *Losses._fields)


class Log(Protocol):
    """Anywhere that losses can go."""

    def write(self, step: int, losses: Sequence[float]) -> None:
        """Notes the losses of one step."""

    def flush(self) -> None:
        """Makes sure that all of it is there."""

    def close(self) -> None:
        """Nothing more will come."""


class Logs:
    """Several logs as one; none at all on a rank that does not write."""

    def __init__(self, logs: Sequence[Log]) -> None:
        self._logs = logs

    def write(self, step: int, losses: Sequence[float]) -> None:
        """Notes the losses of one step."""
        for log in self._logs:
            log.write(step, losses)

    def flush(self) -> None:
        """Makes sure that all of it is there."""
        for log in self._logs:
            log.flush()

    def close(self) -> None:
        """Nothing more will come."""
        for log in self._logs:
            log.close()


class CsvLog:
    """One line a step. What an earlier attempt noted beyond `step` is dropped: those steps are done again."""

    def __init__(self, path: Path, *, step: int) -> None:
        kept = [line for line in read_losses(path) if line[0] <= step] if path.exists() else []
        write_atomically(path, lambda beside: self._begin(beside, kept))
        self._file = path.open("a", newline="")
        self._csv = csv.writer(self._file)

    @staticmethod
    def _begin(path: Path, lines: Sequence[Sequence[float]]) -> None:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *([int(step), *losses] for step, *losses in lines)])

    def write(self, step: int, losses: Sequence[float]) -> None:
        """Notes the losses of one step."""
        self._csv.writerow([step, *losses])

    def flush(self) -> None:
        """Hands the lines over to the system."""
        self._file.flush()

    def close(self) -> None:
        """Nothing more will come."""
        self._file.close()


def read_losses(path: Path) -> list[list[float]]:
    """The whole lines of a CSV of losses; one that a crash cut short is left out."""
    with path.open(newline="") as file:
        lines = list(csv.reader(file))[1:]
    whole = []
    for line in lines:
        try:
            values = [float(value) for value in line]
        except ValueError:
            break
        if len(values) != len(COLUMNS):
            break
        whole.append(values)
    return whole


class TensorBoardLog:
    """The losses as curves for TensorBoard."""

    def __init__(self, folder: Path, *, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=step + 1)

    def write(self, step: int, losses: Sequence[float]) -> None:
        """Notes the losses of one step."""
        for name, value in zip(Losses._fields, losses, strict=True):
            self._writer.add_scalar(f"loss/{name}", value, step)

    def flush(self) -> None:
        """Writes the events to the disk."""
        self._writer.flush()

    def close(self) -> None:
        """Nothing more will come."""
        self._writer.close()


class WandbLog:
    """The losses in a project of Weights & Biases."""

    def __init__(self, project: str, folder: Path, *, config: dict[str, Any], resume: bool) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=project,
            dir=str(folder),
            id=config["run_id"],
            config=config,
            resume="allow" if resume else None,
        )

    def write(self, step: int, losses: Sequence[float]) -> None:
        """Notes the losses of one step."""
        self._run.log({f"loss/{n}": v for n, v in zip(Losses._fields, losses, strict=True)}, step=step)

    def flush(self) -> None:
        """The client sends by itself."""

    def close(self) -> None:
        """Nothing more will come."""
        self._run.finish()


def save_patches(path: Path, rows: Sequence[Tensor]) -> None:
    """A PNG with one row of patches for each tensor (N, 3, S, S) in [-1, 1]: real, reconstructed, generated."""
    picture = np.concatenate(
        [np.concatenate(list(to_pixels(row).permute(0, 2, 3, 1).cpu().numpy()), axis=1) for row in rows], axis=0
    )
    write_atomically(path, lambda beside: Image.fromarray(picture).save(beside, format="PNG"))
