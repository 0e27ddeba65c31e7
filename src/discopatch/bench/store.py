"""Results on disk: features, scores and JSON, each under a key of what it depends on, so that a stopped run goes on."""

import hashlib
import json
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from discopatch.utils import write_atomically, write_json

Arrays = dict[str, NDArray[Any]]
Scores = NDArray[np.float64]
Results = dict[str, Any]


@dataclass(frozen=True)
class FeatureStore:
    """A folder with a file for each encoder and each few hundred images, both known by their digests."""

    folder: Path

    def path(self, encoder: str, images: str) -> Path:
        name = hashlib.sha256(f"{encoder} {images}".encode()).hexdigest()[:32]
        return self.folder / name[:2] / f"{name}.safetensors"

    def holds(self, encoder: str, images: str, kinds: Collection[str]) -> bool:
        """Whether all of those kinds are stored; nothing but the head of the file is read."""
        try:
            with safe_open(self.path(encoder, images), "numpy") as file:
                return set(kinds) <= set(file.keys())
        except (FileNotFoundError, SafetensorError):
            return False

    def read(self, encoder: str, images: str, kinds: Collection[str]) -> Arrays | None:
        """Features by kind, or None unless all of them are stored; a damaged file counts as none."""
        if not self.holds(encoder, images, kinds):
            return None
        with safe_open(self.path(encoder, images), "numpy") as file:
            return {kind: file.get_tensor(kind) for kind in kinds}

    def _stored(self, encoder: str, images: str) -> Arrays:
        try:
            return load_file(self.path(encoder, images))
        except (FileNotFoundError, SafetensorError):
            return {}

    def write(self, encoder: str, images: str, features: Mapping[str, NDArray[Any]]) -> None:
        """Adds to what is stored of the same images: another run may need other kinds."""
        arrays = self._stored(encoder, images) | {kind: np.ascontiguousarray(each) for kind, each in features.items()}
        write_atomically(self.path(encoder, images), lambda partial: save_file(arrays, partial), durable=False)


@dataclass(frozen=True)
class ScoreStore:
    """A folder with a file for each protocol and image set, in it the scores (images,) of each `seed:method`."""

    folder: Path

    def path(self, protocol: str, name: str) -> Path:
        return self.folder / protocol / f"{name.replace('/', '-')}.safetensors"

    def read(self, protocol: str, name: str) -> dict[str, Scores]:
        """The scores of a set by `seed:method`; empty where the set was not scored."""
        return self._load(protocol, name)[0]

    def current(self, protocol: str, name: str, keys: Mapping[str, str]) -> set[str]:
        """Those of the given `seed:method` whose stored scores have the given key."""
        stored = self._load(protocol, name)[1]
        return {method for method, key in keys.items() if stored.get(method) == key}

    def add(self, protocol: str, name: str, scores: Mapping[str, Scores], keys: Mapping[str, str]) -> None:
        """Adds to the stored scores, or replaces older ones; `keys` stand for what the scores depend on."""
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


class ResultStore:
    """Results as one JSON, written again after each piece; a piece that is stored under its key is not computed again.

    results: everything that is written, read from the first of `paths` if it exists.
    stop: errors that end the run; after any other the error of a piece is noted and the next piece is computed.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        stop: tuple[type[Exception], ...] = (),
        log: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.paths, self._stop, self._log = tuple(paths), stop, log
        self.results: Results = json.loads(self.paths[0].read_text()) if self.paths[0].exists() else {}

    def keep(self, section: str, name: str, key: str, make: Callable[[], Results]) -> None:
        """Stores what `make` returns, unless it is stored already and `key` is the same."""
        pieces = self.results.setdefault(section, {})
        if pieces.get(name, {}).get("key") == key:
            return
        with self.attempt(f"{section}, {name}"):
            start = time.monotonic()
            result = make()
            pieces[name] = {"key": key, "seconds": round(time.monotonic() - start, 1), **result}
            self.write()

    @contextmanager
    def attempt(self, piece: str) -> Iterator[None]:
        """Notes an error of the block under `failed` and goes on: one failure must not cost the other pieces."""
        failed = self.results.setdefault("failed", {})
        try:
            yield
            failed.pop(piece, None)
        except self._stop:
            raise
        except Exception as error:
            failed[piece] = "".join(traceback.format_exception(error))
            self._log(f"{piece} FAILED: {error}")
            self.write()

    def write(self) -> None:
        for path in self.paths:
            write_json(path, self.results)
