"""Scores on disk: a file for each set, in it an array for each method and seed, with what it was made from."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from discopatch.files import write_atomically

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class ScoreStore:
    """What is there is not computed again; what was made from something else does not count."""

    folder: Path

    def path(self, protocol: str, name: str) -> Path:
        """Of the set of that name."""
        return self.folder / protocol / f"{name.replace('/', '-')}.safetensors"

    def read(self, protocol: str, name: str) -> dict[str, Scores]:
        """By seed and method."""
        return self._load(protocol, name)[0]

    def current(self, protocol: str, name: str, made_from: Mapping[str, str]) -> set[str]:
        """Those that are there and were made from just this."""
        there = self._load(protocol, name)[1]
        return {key for key, origin in made_from.items() if there.get(key) == origin}

    def add(self, protocol: str, name: str, scores: Mapping[str, Scores], made_from: Mapping[str, str]) -> None:
        """Beside those that are there, or in the place of older ones."""
        old, origins = self._load(protocol, name)
        arrays = {key: np.ascontiguousarray(each, np.float64) for key, each in {**old, **scores}.items()}
        origins |= {key: made_from[key] for key in scores}
        metadata = {"made_from": json.dumps(origins)}
        write_atomically(self.path(protocol, name), lambda beside: save_file(arrays, beside, metadata))

    def _load(self, protocol: str, name: str) -> tuple[dict[str, Scores], dict[str, str]]:
        path = self.path(protocol, name)
        if not path.exists():
            return {}, {}
        with safe_open(path, "numpy") as file:
            origins = json.loads((file.metadata() or {}).get("made_from", "{}"))
            return {key: file.get_tensor(key) for key in file.keys()}, origins  # noqa: SIM118 - not a dict
