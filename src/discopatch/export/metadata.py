"""The JSON file beside an exported graph, and the folder that appears with all of its files or not at all."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.calibration import check_calibration
from discopatch.errors import DiscopatchError, ExportError, SchemaError
from discopatch.images import Transform
from discopatch.results import COMPONENT_WORDS
from discopatch.schema import Digest, LongDigest, Name, Positive, between, load_json, read_fields, shorten
from discopatch.seal import UNSEALED, seal, sealed_digest
from discopatch.utils import (
    check_output,
    file_digest,
    output_errors,
    replace_folder,
    sync_file,
    sync_folder,
    workplace,
    write_json,
)

FORMAT = 2
DECODERS = ("pillow", "scaled")  # those that work where exports do
KIND = "export"
METADATA_FILE = "detector.json"
GRAPH_FILES = {
    "onnx": ("detector.onnx",),
    "openvino": ("detector.xml", "detector.bin"),
    "torch-export": ("detector.pt2",),
}
EXPORT_FILES = {METADATA_FILE, *(name for names in GRAPH_FILES.values() for name in names)}
MAX_METADATA_BYTES = 2**23  # about 290,000 calibration scores; as JSON from anyone it takes up to 200 MB of memory
MAX_GRAPH_BYTES = 2**28
PIXELS, WITH_ANOMALY_MAP = "pixels", "with_anomaly_map"
SCORE, AT_LEAST, ANOMALY_MAP = "score", "at_least", "anomaly_map"  # outputs of every graph
COMPONENTS, PLACE_MAP = "components", "place_map"  # those of a head of components, and where places count
PLACE = "place"  # the component of places


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

    @property
    def component_names(self) -> tuple[str, ...]:
        """Of the components that the graph tells of, in the order of its output."""
        return tuple(self.content["components"]["names"]) if self.content.get("components") else ()

    @property
    def significance_level(self) -> float:
        """The z-score above which a component significant."""
        return float(self.content["components"]["significance_level"]) if self.component_names else np.inf

    def write(self, folder: Path) -> None:
        path = folder / METADATA_FILE
        unsealed = {"file_digest": UNSEALED}
        write_json(path, {**unsealed, **self.content, **unsealed})  # first of all fields
        seal(path)
        if path.stat().st_size > MAX_METADATA_BYTES:
            raise ExportError(
                f"{len(self.calibration_scores):,} calibration scores take more than {MAX_METADATA_BYTES:,} bytes: "
                "calibrate with fewer images"
            )

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The metadata of an export whose files are all there and unchanged; otherwise ExportError with the remedy."""
        path = folder / METADATA_FILE
        content = read_content(path)
        try:
            header = read_fields(ExportHeader, content, where="metadata", ignore_unknown=True)
            check_scores(header.calibration.scores, header.false_alarm_rate)
            check_components(header.components)
        except DiscopatchError as error:
            raise ExportError(f"{path}: {error}; copy the folder again, or export again") from None
        if sealed_digest(path, header.file_digest) != header.file_digest:
            raise ExportError(f"{path} is damaged, its digest is another: copy the folder again, or export again")
        if header.transform.decoder not in DECODERS:
            raise ExportError(f"{path}: images are read with {header.transform.decoder!r}, on a GPU: export again")
        check_files(folder, header)
        if header.transform.digest != header.transform_digest:
            raise ExportError(f"{path} has another transform than its digest says: export the detector again")
        return cls(content)


@dataclass(frozen=True)
class Calibration:
    """Whose scores of normal images these are, in ascending order."""

    by: Literal["detector", "export"]
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Components:
    """The components that a graph tells of, and the z-score above which one significant."""

    names: tuple[Name, ...]
    significance_level: float


@dataclass(frozen=True, kw_only=True)
class ExportHeader:
    """What of the content is used; fields that this version does not know are ignored, for others to read.

    Whatever changes the meaning of the file raises its format.
    """

    file_digest: LongDigest
    graph: Literal["onnx", "openvino", "torch-export"]
    discopatch: Name
    files: dict[Name, LongDigest]
    transform: Transform
    transform_digest: Digest
    false_alarm_rate: Annotated[float, between(1e-9, 1 - 1e-9)]
    calibration: Calibration
    components: Components | None = None
    images: Positive
    groups: Name | None = None
    n_groups: Positive | None = None
    cautions: tuple[str, ...] = ()


def read_content(path: Path) -> dict[str, Any]:
    """The JSON of the file, if it is of this version's format."""
    if not path.is_file():
        raise ExportError(
            f"no export at {path.parent}: give a folder that `discopatch export` wrote, with {path.name} in it"
        )
    check_bytes(path, MAX_METADATA_BYTES)
    try:
        content = load_json(path.read_bytes())
    except SchemaError as error:
        raise ExportError(f"{path}: {error}; copy the folder again") from None
    if not isinstance(content, dict) or content.get("kind") != KIND or type(content.get("format")) is not int:
        raise ExportError(f"{path} is not one of discopatch: give a folder that `discopatch export` wrote")
    check_version(path, content)
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


def check_scores(scores: Sequence[float], rate: float) -> None:
    """Raises an error unless the scores are in ascending order, and as many as the rate needs."""
    if any(one > other for one, other in pairwise(scores)):
        raise SchemaError("the calibration scores are not in ascending order")
    check_calibration(len(scores), rate)


def check_components(components: Components | None) -> None:
    """Raises an error unless all are known, and none stands twice."""
    if components is None:
        return
    known = [name for name in COMPONENT_WORDS if name in components.names]
    if not known or sorted(known) != sorted(components.names):
        expected = ", ".join(COMPONENT_WORDS)
        raise SchemaError(
            f"components.names is {shorten.repr(components.names)}: expected some of {expected}, once each"
        )


def check_files(folder: Path, header: ExportHeader) -> None:
    """Raises ExportError unless the graph's files, whose names are fixed, are those that were compared."""
    expected = GRAPH_FILES[header.graph]
    if set(header.files) != set(expected):
        raise ExportError(
            f"{folder / METADATA_FILE} lists {shorten.repr(sorted(header.files))}, but an export to {header.graph} "
            f"has {sorted(expected)}: it was changed by hand; export again"
        )
    for name in expected:
        if not (folder / name).is_file():
            raise ExportError(f"{folder} has no {name}: copy the whole folder, or export again")
        check_bytes(folder / name, MAX_GRAPH_BYTES)
        if file_digest(folder / name) != header.files[name]:
            raise ExportError(f"{folder / name} is not the file that was exported: copy the folder again")


def check_bytes(path: Path, most: int) -> None:
    """Raises ExportError where a file is larger than any that an export has."""
    if (size := path.stat().st_size) > most:
        raise ExportError(f"{path} has {size:,} bytes, where {most:,} are the most: copy the folder again")


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
                sync_file(path)
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
