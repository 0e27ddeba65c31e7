"""What `benchmarks/studies.py run` left in its folder."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from discopatch.benchmark.studies.ledger import FORMAT, NAME, Report

LOSSES = "losses.csv"


@dataclass(frozen=True)
class Stored:
    """The figures and the losses.csv beside them; empty where there are none."""

    report: Report = field(default_factory=dict)
    losses: Path | None = None

    @classmethod
    def read(cls, place: Path) -> "Stored":
        """From the folder, or from the JSON in it."""
        path = place / NAME if place.is_dir() else place
        if not path.is_file():
            raise ValueError(
                f"no studies in {path}: give the folder that `python benchmarks/studies.py run --out FOLDER` wrote"
            )
        try:
            report = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path} is no JSON ({error}): let `python benchmarks/studies.py run` write it") from error
        if not isinstance(report, dict) or report.get("format") != FORMAT or not {"plan", "made"} <= report.keys():
            raise ValueError(f"{path} holds no studies of this version: run `python benchmarks/studies.py run` again")
        losses = path.with_name(LOSSES)
        return cls(report, losses if losses.is_file() else None)
