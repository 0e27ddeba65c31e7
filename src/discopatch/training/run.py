"""The folder of one run: what was asked, what came out, and how to go on."""

import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

import discopatch
from discopatch.files import write_json
from discopatch.training.checkpoint import Checkpoints
from discopatch.training.recipe import Recipe

MAY_CHANGE = {"epochs", "steps"}


class RunError(ValueError):
    """The folder and the request do not go together."""


@dataclass(frozen=True)
class Run:
    """Where everything of a run lies."""

    folder: Path

    @property
    def description(self) -> Path:
        """The run's JSON: recipe, data digest, versions."""
        return self.folder / "run.json"

    @property
    def losses(self) -> Path:
        """The losses, a line a step."""
        return self.folder / "losses.csv"

    @property
    def weights(self) -> Path:
        """The discriminator as of the newest checkpoint."""
        return self.folder / "discriminator.safetensors"

    @property
    def checkpoints(self) -> Checkpoints:
        """All that is needed to go on."""
        return Checkpoints(self.folder / "checkpoints")

    def samples(self, step: int) -> Path:
        """The picture of real, reconstructed and generated patches after that step."""
        return self.folder / "samples" / f"step-{step:09d}.png"

    def read(self) -> dict[str, Any]:
        """The run's JSON, or an error when there is no run here."""
        try:
            description: dict[str, Any] = json.loads(self.description.read_text())
        except FileNotFoundError:
            raise RunError(f"no run in {self.folder} to resume: leave out --resume to start one") from None
        return description

    def check_free(self) -> None:
        """A folder that holds a run already is not overwritten."""
        if self.description.exists():
            raise RunError(f"{self.folder} already holds a run: add --resume to go on with it, or choose another --out")

    def begin(self, recipe: Recipe, data_digest: str) -> dict[str, Any]:
        """Describes a new run."""
        self.check_free()
        description = {
            "run_id": uuid4().hex,
            "recipe": recipe.to_dict(),
            "data_digest": data_digest,
            "transform_digest": recipe.transform.digest,
            **versions(),
        }
        write_json(self.description, description)
        return description

    def resume(self, recipe: Recipe, data_digest: str) -> dict[str, Any]:
        """The description of a run that goes on, if it goes on with the same recipe and the same pictures."""
        description = self.read()
        before, now = description["recipe"], recipe.to_dict()
        changed = {name for name in now if before.get(name) != now[name]} - MAY_CHANGE
        if changed:
            listed = ", ".join(f"{name} was {before.get(name)}, now {now[name]}" for name in sorted(changed))
            raise RunError(f"a resumed run keeps its recipe, but {listed}: drop the flag, or start a new run")
        if description["data_digest"] != data_digest:
            raise RunError(
                f"the pictures are not those that {self.folder} was trained on "
                f"(digest {data_digest[:16]}, not {description['data_digest'][:16]}): "
                "give the same ones, or start a new run"
            )
        description["recipe"] = now
        write_json(self.description, description)
        return description


def versions() -> dict[str, str]:
    """What the run was made with."""
    return {
        "discopatch": discopatch.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
