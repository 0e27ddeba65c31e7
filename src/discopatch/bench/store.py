"""Arrays in safetensors files, each with a key of what it depends on, so that a stopped run can be continued."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from discopatch.utils import write_atomically

Arrays = dict[str, NDArray[Any]]


def stored_keys(path: Path) -> dict[str, str]:
    """The key of each array of a file; none where there is no file, or a damaged one."""
    try:
        with safe_open(path, "numpy") as file:
            found: dict[str, str] = json.loads(file.metadata()["keys"])
            return found
    except (FileNotFoundError, SafetensorError):
        return {}


def read_arrays(path: Path, names: Collection[str]) -> Arrays:
    """The named arrays of a file."""
    with safe_open(path, "numpy") as file:
        return {name: file.get_tensor(name) for name in names}


def add_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], keys: Mapping[str, str]) -> None:
    """Adds arrays and their keys to a file; those of the same names are replaced."""
    stored = stored_keys(path)
    old = read_arrays(path, stored) if stored else {}
    merged = {**old, **{name: np.ascontiguousarray(each) for name, each in arrays.items()}}
    metadata = {"keys": json.dumps(stored | {name: keys[name] for name in arrays})}
    write_atomically(path, lambda partial: save_file(merged, partial, metadata))


def scores_path(folder: Path, name: str) -> Path:
    """The file of a set's scores in the folder of a protocol."""
    return folder / f"{name.replace('/', '-')}.safetensors"


def read_scores(folder: Path, name: str) -> dict[str, NDArray[np.float64]]:
    """The scores (images,) of a set by `seed:method`; none where it was not scored."""
    path = scores_path(folder, name)
    names = stored_keys(path)
    return read_arrays(path, names) if names else {}
