"""Folders that `save_to_disk` of Hugging Face `datasets` wrote, read without that package."""

import json
from collections.abc import Iterator
from typing import Any

from discopatch.errors import ImageError
from discopatch.images.image import RefusalReason
from discopatch.images.items import Item, Place, Shard, open_place
from discopatch.images.tables import ArrowShard
from discopatch.utils import require

INFO_FILE, STATE_FILE, DICT_FILE = "dataset_info.json", "state.json", "dataset_dict.json"

_MAX_JSON = 2**24  # bytes of a description: names of thousands of classes take some hundred thousand
_DAMAGED = "a damaged description of a dataset: save it again with save_to_disk"


def saved_dataset(folder: Place, column: str | None) -> Iterator[Item | Shard]:
    """The Arrow files of a dataset, or of each split of a dictionary of them, in the order that it keeps."""
    require("pyarrow", extra="parquet")
    try:
        for part in _splits(folder):
            yield from _files(part, column)
    except ImageError as error:
        yield Item(str(folder), error)


def _splits(folder: Place) -> list[Place]:
    if (stored := _read_json(folder / DICT_FILE, missing=None)) is None:
        return [folder]
    splits = stored.get("splits") if isinstance(stored, dict) else None
    return [folder / name for name in _plain_names(splits)]


def _files(folder: Place, column: str | None) -> Iterator[Shard]:
    state, info = _read_json(folder / STATE_FILE), _read_json(folder / INFO_FILE)
    if not isinstance(state, dict) or not isinstance(info, dict):
        raise ImageError(RefusalReason.TRUNCATED, _DAMAGED)
    if state.get("_indices_data_files") or state.get("_indices_files"):
        detail = "a selection of rows that was saved by an old version: save it again with flatten_indices()"
        raise ImageError(RefusalReason.UNSUPPORTED, detail)
    files = state.get("_data_files")
    names = [each.get("filename") for each in files if isinstance(each, dict)] if isinstance(files, list) else None
    feature = _image_feature(info.get("features"))
    for name in _plain_names(names):
        yield ArrowShard(folder / name, column, feature)


def _image_feature(features: Any) -> str | None:
    """The only column that the dataset itself calls one of images."""
    if not isinstance(features, dict):
        return None
    named = [name for name, kind in features.items() if isinstance(kind, dict) and kind.get("_type") == "Image"]
    return named[0] if len(named) == 1 else None


def _plain_names(names: Any) -> list[str]:
    """Names of files or folders beside the description; one that leads elsewhere is refused."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ImageError(RefusalReason.TRUNCATED, _DAMAGED)
    if any(not name or name.startswith(".") or set(name) & set("/\\\0") for name in names):
        detail = "a description of a dataset that names files elsewhere: save it again with save_to_disk"
        raise ImageError(RefusalReason.UNSUPPORTED, detail)
    return names


def _read_json(place: Place, *, missing: Any = ...) -> Any:
    """What the file holds; `missing` where there is none, if that is given."""
    try:
        with open_place(place) as file:
            data = file.read(_MAX_JSON + 1)
    except ImageError as error:
        if error.reason is RefusalReason.MISSING and missing is not ...:
            return missing
        raise
    if len(data) > _MAX_JSON:
        raise ImageError(RefusalReason.TOO_LARGE, f"more than {_MAX_JSON:,} bytes of description of a dataset")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise ImageError(RefusalReason.TRUNCATED, _DAMAGED) from None
