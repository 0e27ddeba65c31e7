"""The file beside an exported graph: what it was made from, what it takes and gives, how well it agrees."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Self

from discopatch.files import write_json
from discopatch.images import Transform

FORMAT = 1
KIND = "export"
NAME = "detector.json"
FILES = {
    "onnx": ("detector.onnx",),
    "openvino": ("detector.xml", "detector.bin"),
    "torch-export": ("detector.pt2",),
}
NEEDED = {"files", "transform", "transform_digest", "false_alarm_rate", "threshold", "calibration"}
PIXELS, WITH_HEAT = "pixels", "with_heat"
OUTPUTS = SCORE, AT_LEAST, HEAT = "score", "at_least", "heat"


class ExportError(ValueError):
    """A folder that cannot be used as an export, or to which nothing can be exported."""


@dataclass(frozen=True)
class Sidecar:
    """What the file holds, as JSON has it; what a runtime needs of it is at hand by name."""

    content: Mapping[str, Any]

    @property
    def graph(self) -> str:
        """One of the formats."""
        return str(self.content["graph"])

    @property
    def transform(self) -> Transform:
        """Through which pictures go before they come to the graph."""
        return Transform.from_dict(self.content["transform"])

    @property
    def false_alarm_rate(self) -> float:
        """The promised share of normal images that are flagged all the same."""
        return float(self.content["false_alarm_rate"])

    @property
    def threshold(self) -> float:
        """Scores above it are flagged; infinite, null in JSON, where no p-value can be as small as the rate."""
        found = self.content["threshold"]
        return inf if found is None else float(found)

    @property
    def calibration_scores(self) -> int:
        """How many there are: n in p = (1 + at_least) / (1 + n)."""
        return int(self.content["calibration"]["scores"])

    def write(self, folder: Path) -> None:
        """Beside the graph."""
        write_json(folder / NAME, self.content)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Of an export whose files are all there and unchanged, or an error with the remedy."""
        content = read_json(folder)
        check_kind(folder, content)
        check_content(folder, content)
        check_files(folder, content)
        sidecar = cls(content)
        if sidecar.transform.digest != content["transform_digest"]:
            raise ExportError(f"{folder / NAME} names another transform than its digest: export the detector again")
        return sidecar


def read_json(folder: Path) -> dict[str, Any]:
    """The content of the file, whatever it says."""
    path = folder / NAME
    if not path.is_file():
        raise ExportError(f"no export at {folder}: give a folder that `discopatch export` wrote, with {NAME} in it")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ExportError(f"{path} cannot be read as JSON ({error}): copy the folder again") from error
    if not isinstance(content, dict):
        raise ExportError(f"{path} is not one of discopatch: give a folder that `discopatch export` wrote")
    return content


def check_kind(folder: Path, content: Mapping[str, Any]) -> None:
    """Whether this version can read it."""
    path = folder / NAME
    if content.get("kind") != KIND or not isinstance(content.get("format"), int):
        raise ExportError(f"{path} is not one of discopatch: give a folder that `discopatch export` wrote")
    if content["format"] > FORMAT:
        raise ExportError(
            f"{path} has format {content['format']}, this discopatch reads up to {FORMAT}: update discopatch"
        )
    if content.get("graph") not in FILES:
        raise ExportError(
            f"{path} has a graph of the format {content.get('graph')!r}, which this version does not know: "
            f"install discopatch {content.get('discopatch')}, or export again"
        )


def check_content(folder: Path, content: Mapping[str, Any]) -> None:
    """Whether it says all that it takes to run the graph."""
    if missing := NEEDED - content.keys():
        raise ExportError(f"{folder / NAME} does not say {', '.join(sorted(missing))}: export the detector again")


def check_files(folder: Path, content: Mapping[str, Any]) -> None:
    """Whether the files of the graph, which have fixed names in this folder, are those that were measured."""
    expected = FILES[content["graph"]]
    if set(content["files"]) != set(expected):
        raise ExportError(
            f"{folder / NAME} lists {sorted(content['files'])}, but an export to {content['graph']} "
            f"has {sorted(expected)}: it was changed by hand; export again"
        )
    for name in expected:
        if not (folder / name).is_file():
            raise ExportError(f"{folder} has no {name}: copy the whole folder, or export again")
        if sha256(folder / name) != content["files"][name]:
            raise ExportError(f"{folder / name} is not the file that was exported: copy the folder again")


def sha256(path: Path) -> str:
    """Of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
