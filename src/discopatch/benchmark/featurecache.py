"""Features on disk, under what they are features of: ten methods cost one pass, and a run that stopped goes on."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from discopatch.baselines.method import Features
from discopatch.files import write_atomically


@dataclass(frozen=True)
class FeatureCache:
    """A folder with a file for each eye and each few hundred images."""

    folder: Path

    def path(self, eye: str, images: str) -> Path:
        """By the digests of both."""
        name = hashlib.sha256(f"{eye} {images}".encode()).hexdigest()[:32]
        return self.folder / name[:2] / f"{name}.safetensors"

    def holds(self, eye: str, images: str, kinds: Collection[str]) -> bool:
        """Whether all of those kinds are there; nothing but the head of the file is read."""
        try:
            with safe_open(self.path(eye, images), "numpy") as file:
                return set(kinds) <= set(file.keys())
        except (FileNotFoundError, SafetensorError):
            return False

    def read(self, eye: str, images: str, kinds: Collection[str]) -> Features | None:
        """Those kinds, if all of them are there; a damaged file counts as none."""
        try:
            with safe_open(self.path(eye, images), "numpy") as file:
                return {kind: file.get_tensor(kind) for kind in kinds} if set(kinds) <= set(file.keys()) else None
        except (FileNotFoundError, SafetensorError):
            return None

    def write(self, eye: str, images: str, features: Features) -> None:
        """Whole or not at all."""
        arrays = {kind: np.ascontiguousarray(array) for kind, array in features.items()}
        write_atomically(self.path(eye, images), lambda beside: save_file(arrays, beside), lasting=False)
