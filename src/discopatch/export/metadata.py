"""The folder of an export: detector.json and the files of its graph."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
import numpy as np

from discopatch.calibration import MAX_CLASSES, Calibration, DetectionRate, NormalClass
from discopatch.errors import DiscopatchError, ExportError, SchemaError
from discopatch.images import Transform
from discopatch.results import COMPONENT_WORDS
from discopatch.schema import Digest, LongDigest, Name, Positive, between, length, load_json, read_fields
from discopatch.utils import (
    check_output,
    file_digest,
    write_json,
)

FORMAT = 4
KIND = "export"
METADATA_FILE = "detector.json"
GRAPH_FILES = {"onnx": ["detector.onnx"], "openvino": ["detector.xml", "detector.bin"]}  # an engine opens the first
SIGNATURE_FILE = f"{METADATA_FILE}.minisig"  # of minisign, if there is one
EXPORT_FILES = {METADATA_FILE, SIGNATURE_FILE, *(name for names in GRAPH_FILES.values() for name in names)}
MAX_BYTES = 2**28  # of a file
DECODERS = ("pillow", "scaled")  # image decoders that do not need a GPU
REMEDY = "copy the folder again, or export again"

PIXELS = "pixels"  # the input of a graph
SCORE, COMPONENTS, PLACE_MAP, NUMBER = "score", "components", "place_map", "class_number"  # outputs


@dataclass(frozen=True, kw_only=True)
class StoredSettings:
    """The fields of `FittedDetector.settings()` that a runtime needs."""

    transform: Transform
    transform_digest: Digest
    false_alarm_rate: Annotated[float, between(1e-9, 1 - 1e-9)]
    images: Positive
    n_groups: Positive | None = None
    classes: Annotated[tuple[NormalClass, ...], length(0, MAX_CLASSES)] = ()
    confidence: float | None = None
    promised_rate: float | None = None
    detection_rates: tuple[DetectionRate, ...] = ()
    aspects: tuple[float, float] | None = None  # ratios of width to height of normal images


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """The content of detector.json.

    `files` has the SHA-256 of each file of the graph. `calibrated_by` says whether the calibration scores come from
    the detector or from the export itself.
    """

    graph: Literal["onnx", "openvino"]
    int8: bool
    settings: dict[str, Any]
    calibration_scores: tuple[float, ...]
    calibrated_by: Literal["detector", "export"] = "detector"
    components: Annotated[tuple[Name, ...], length(0, len(COMPONENT_WORDS))] = ()
    significance_level: float = 0.0  # z-score above which a component is significant
    place_level: Annotated[float, between(1e-9, 1e9)]  # z-score of a place that is 1 in the anomaly map
    files: dict[Name, LongDigest]
    parity: dict[str, Any]

    @property
    def fitted(self) -> StoredSettings:
        return read_fields(StoredSettings, self.settings, where="settings", ignore_unknown=True)

    @property
    def calibration(self) -> Calibration:
        fitted, scores = self.fitted, np.array(self.calibration_scores, np.float64)
        promise = {"confidence": fitted.confidence, "promised": fitted.promised_rate}
        return Calibration.of_classes(scores, fitted.false_alarm_rate, fitted.classes, **promise)

    def write(self, folder: Path) -> None:
        content = {"format": FORMAT, "kind": KIND, **asdict(self)}
        write_json(folder / METADATA_FILE, {"digest": digest_of(content), **content})

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The metadata of an export whose files are complete and unchanged, or ExportError."""
        path = folder / METADATA_FILE
        if not path.is_file():
            raise ExportError(f"no export at {folder}: give a folder that `discopatch export` wrote")
        check_size(path)
        try:
            content = load_json(path.read_bytes())
            check_format(content)
            found = read_fields(cls, content, where="metadata", ignore_unknown=True)
            found.check()
        except DiscopatchError as error:
            raise ExportError(f"{path}: {error}; {REMEDY}") from None
        for name, digest in found.files.items():
            if not (folder / name).is_file():
                raise ExportError(f"{folder} has no {name}: {REMEDY}")
            check_size(folder / name)
            if file_digest(folder / name) != digest:
                raise ExportError(f"{folder / name} was changed after the export: {REMEDY}")
        return found

    def check(self) -> None:
        """Raises an error where fields do not fit together."""
        fitted = self.fitted
        self.calibration.check()
        if set(self.components) - COMPONENT_WORDS.keys() or len(set(self.components)) < len(self.components):
            raise SchemaError(f"components are {self.components}: expected some of {', '.join(COMPONENT_WORDS)}")
        if fitted.transform.decoder not in DECODERS:
            raise SchemaError(f"transform.decoder is {fitted.transform.decoder!r}: expected {' or '.join(DECODERS)}")
        if fitted.transform.digest != fitted.transform_digest:
            raise SchemaError("transform has another digest than transform_digest")
        if set(self.files) != set(GRAPH_FILES[self.graph]):
            raise SchemaError(f"files are {sorted(self.files)}: expected {sorted(GRAPH_FILES[self.graph])}")


def check_format(content: Any) -> None:
    """Raises SchemaError unless this is the unchanged metadata of an export in the format of this version."""
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise SchemaError("this is not the metadata of an export")
    if content.get("format") != FORMAT:
        raise SchemaError(f"format is {content.get('format')!r}, and this version of discopatch reads format {FORMAT}")
    if content.get("digest") != digest_of({name: value for name, value in content.items() if name != "digest"}):
        raise SchemaError("digest does not fit the content: the file was changed or damaged")


def digest_of(content: Mapping[str, Any]) -> str:
    """SHA-256 of the fields, whatever their order."""
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()


def check_size(path: Path) -> None:
    """Raises ExportError where a file is larger than any file of an export."""
    if (size := path.stat().st_size) > MAX_BYTES:
        raise ExportError(f"{path} has {size:,} bytes, and at most {MAX_BYTES:,} are read: {REMEDY}")


def check_destination(folder: Path, *, force: bool) -> None:
    """Raises an error where something exists, with `force` only where it is not an export; or where nothing can be."""
    check_output(folder.parent, folder=True)
    if not folder.exists():
        return
    if not force:
        raise ExportError(f"{folder} exists: choose another folder, or force its replacement")
    if not folder.is_dir() or not {path.name for path in folder.iterdir()} <= EXPORT_FILES:
        raise ExportError(f"{folder} is not an export and is not replaced: choose another folder")
