"""Stored features and scores, each under a key of what it depends on, so that a stopped run can be continued."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from discopatch.utils import write_atomically

Arrays = dict[str, NDArray[Any]]
Scores = NDArray[np.float64]
Results = dict[str, Any]


@dataclass(frozen=True)
class FeatureStore:
    """A folder with a file for each encoder and each few hundred images, both identified by their digests."""

    folder: Path

    def path(self, encoder: str, images: str) -> Path:
        name = hashlib.sha256(f"{encoder} {images}".encode()).hexdigest()[:32]
        return self.folder / name[:2] / f"{name}.safetensors"

    def holds(self, encoder: str, images: str, kinds: Collection[str]) -> bool:
        """Whether all of those kinds are stored; only the header of the file is read."""
        try:
            with safe_open(self.path(encoder, images), "numpy") as file:
                return set(kinds) <= set(file.keys())
        except (FileNotFoundError, SafetensorError):  # a damaged file is written again
            return False

    def read(self, encoder: str, images: str, kinds: Collection[str]) -> Arrays:
        """Features by kind."""
        with safe_open(self.path(encoder, images), "numpy") as file:
            return {kind: file.get_tensor(kind) for kind in kinds}

    def write(self, encoder: str, images: str, features: Mapping[str, NDArray[Any]]) -> None:
        """Adds to the stored features of the same images, since another run may need other kinds."""
        path = self.path(encoder, images)
        try:
            arrays = load_file(path)
        except (FileNotFoundError, SafetensorError):
            arrays = {}
        arrays |= {kind: np.ascontiguousarray(each) for kind, each in features.items()}
        write_atomically(path, lambda partial: save_file(arrays, partial), durable=False)


@dataclass(frozen=True)
class ScoreStore:
    """A folder with a file for each protocol and image set, which holds the scores (images,) of each `seed:method`."""

    folder: Path

    def path(self, protocol: str, name: str) -> Path:
        return self.folder / protocol / f"{name.replace('/', '-')}.safetensors"

    def read(self, protocol: str, name: str) -> dict[str, Scores]:
        """The scores of a set by `seed:method`; empty where the set was not scored."""
        return self._load(protocol, name)[0]

    def current(self, protocol: str, name: str, keys: Mapping[str, str]) -> set[str]:
        """Each of the given `seed:method` whose stored scores have the given key."""
        stored = self._load(protocol, name)[1]
        return {method for method, key in keys.items() if stored.get(method) == key}

    def add(self, protocol: str, name: str, scores: Mapping[str, Scores], keys: Mapping[str, str]) -> None:
        """Adds to the stored scores, or replaces older ones; `keys` identify what the scores depend on."""
        old, stored = self._load(protocol, name)
        arrays = {method: np.ascontiguousarray(each, np.float64) for method, each in {**old, **scores}.items()}
        metadata = {"keys": json.dumps(stored | {method: keys[method] for method in scores})}
        write_atomically(self.path(protocol, name), lambda partial: save_file(arrays, partial, metadata))

    def _load(self, protocol: str, name: str) -> tuple[dict[str, Scores], dict[str, str]]:
        path = self.path(protocol, name)
        if not path.exists():
            return {}, {}
        with safe_open(path, "numpy") as file:
            keys = json.loads((file.metadata() or {}).get("keys", "{}"))
            return {method: file.get_tensor(method) for method in file.keys()}, keys  # noqa: SIM118 - not a dict
