"""The JSON file beside an exported graph, and the folder that appears with all of its files or not at all."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.errors import ExportError
from discopatch.images import Transform
from discopatch.utils import (
    check_output,
    file_digest,
    output_errors,
    replace_folder,
    sync_folder,
    workplace,
    write_json,
)

FORMAT = 2
KIND = "export"
METADATA_FILE = "detector.json"
GRAPH_FILES = {
    "onnx": ("detector.onnx",),
    "openvino": ("detector.xml", "detector.bin"),
    "torch-export": ("detector.pt2",),
}
EXPORT_FILES = {METADATA_FILE, *(name for names in GRAPH_FILES.values() for name in names)}
REQUIRED_KEYS = {"files", "transform", "transform_digest", "false_alarm_rate", "calibration"}
PIXELS, WITH_ANOMALY_MAP = "pixels", "with_anomaly_map"
OUTPUTS = SCORE, AT_LEAST, ANOMALY_MAP = "score", "at_least", "anomaly_map"


@dataclass(frozen=True)
class Metadata:
    """The content of the file, as JSON has it, and what a runtime needs of it by name."""

    content: Mapping[str, Any]

    @property
    def graph_format(self) -> str:
        """A key of `GRAPH_FILES`."""
        return str(self.content["graph"])

    @property
    def transform(self) -> Transform:
        return Transform.from_dict(self.content["transform"])

    @property
    def false_alarm_rate(self) -> float:
        return float(self.content["false_alarm_rate"])

    @property
    def calibration_scores(self) -> NDArray[np.float64]:
        """(n,), in increasing order: the scores that the graph counts for `at_least`."""
        return np.array(self.content["calibration"]["scores"], np.float64)

    def write(self, folder: Path) -> None:
        write_json(folder / METADATA_FILE, self.content)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The metadata of an export whose files are all there and unchanged; otherwise ExportError with the remedy."""
        path = folder / METADATA_FILE
        content = read_content(path)
        check_version(path, content)
        if missing := REQUIRED_KEYS - content.keys():
            raise ExportError(f"{path} lacks {', '.join(sorted(missing))}: export the detector again")
        check_files(folder, content)
        metadata = cls(content)
        if metadata.transform.digest != content["transform_digest"]:
            raise ExportError(f"{path} has another transform than its digest says: export the detector again")
        return metadata


def read_content(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ExportError(
            f"no export at {path.parent}: give a folder that `discopatch export` wrote, with {path.name} in it"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ExportError(f"{path} cannot be read as JSON ({error}): copy the folder again") from error
    if not isinstance(content, dict) or content.get("kind") != KIND or not isinstance(content.get("format"), int):
        raise ExportError(f"{path} is not one of discopatch: give a folder that `discopatch export` wrote")
    return content


def check_version(path: Path, content: Mapping[str, Any]) -> None:
    version = content["format"]
    if version > FORMAT:
        raise ExportError(f"{path} has format {version}, this discopatch reads format {FORMAT}: update discopatch")
    if version < FORMAT:
        raise ExportError(
            f"{path} has format {version} of an earlier discopatch, this one reads format {FORMAT}: "
            "export the detector again"
        )
    if content.get("graph") not in GRAPH_FILES:
        raise ExportError(
            f"{path} has a graph of the format {content.get('graph')!r}, which this version does not know: "
            f"install discopatch {content.get('discopatch')}, or export again"
        )


def check_files(folder: Path, content: Mapping[str, Any]) -> None:
    """Raises ExportError unless the graph's files, whose names are fixed, are those that were compared."""
    expected = GRAPH_FILES[content["graph"]]
    if set(content["files"]) != set(expected):
        raise ExportError(
            f"{folder / METADATA_FILE} lists {sorted(content['files'])}, but an export to {content['graph']} "
            f"has {sorted(expected)}: it was changed by hand; export again"
        )
    for name in expected:
        if not (folder / name).is_file():
            raise ExportError(f"{folder} has no {name}: copy the whole folder, or export again")
        if file_digest(folder / name) != content["files"][name]:
            raise ExportError(f"{folder / name} is not the file that was exported: copy the folder again")


@contextmanager
def staged_folder(folder: Path, *, force: bool = False) -> Iterator[Path]:
    """A new folder beside `folder` that takes its place at the end; if something fails, nothing has changed."""
    check_destination(folder, force=force)
    with output_errors(folder, only_full=True):
        with output_errors(folder):
            check_output(folder.parent, folder=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
        with workplace(folder.parent) as place:
            staged = place / "new"
            staged.mkdir()
            yield staged
            for path in staged.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            sync_folder(staged)
            with output_errors(folder):
                replace_folder(staged, folder)


def check_destination(folder: Path, *, force: bool) -> None:
    """Raises ExportError where something exists; with `force` only where that is anything else than an export."""
    if not folder.exists():
        return
    if not force:
        raise ExportError(f"{folder} exists: choose another folder, or force its replacement")
    if not folder.is_dir() or not {path.name for path in folder.iterdir()} <= EXPORT_FILES:
        raise ExportError(f"{folder} holds other things than an export, and is not replaced: choose another folder")
