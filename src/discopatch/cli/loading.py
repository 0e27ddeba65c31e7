"""What `--detector` may be: a file that `discopatch fit` wrote, or a folder that `discopatch export` wrote."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from discopatch.deploy.runtime import Runtime
    from discopatch.detector import Detector


def load(path: Path, *, device: str = "auto", batch_size: int = 8) -> "Detector | Runtime":
    """Either of them; of an export torch is not needed."""
    if not path.is_dir():
        from discopatch.detector import Detector

        return Detector.load(path, device=device, batch_size=batch_size)
    if device not in ("auto", "cpu"):
        raise typer.BadParameter(f"{path} is an export, which runs on a CPU: leave --device out")
    from discopatch.deploy.runtime import Runtime

    return Runtime.load(path)
