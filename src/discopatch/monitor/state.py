"""What a monitor remembers, as bytes: a line with a digest of the rest, and JSON with arrays in it.

They hold no score but the highest and those of a few images, and no more however long the stream is.
"""

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from discopatch.errors import SchemaError, StateError
from discopatch.monitor.evidence import Direction
from discopatch.schema import Count, LongDigest, between, length, load_json, read_fields

FORMAT = b"discopatch-monitor-1 "
MOST_BYTES = 2**20
REMEDY = "begin a new one with Monitor(detector)"

Text = Annotated[str, length(0, 400)]
Array = Annotated[str, length(0, 2**18)]


class Telling(NamedTuple):
    """An image that tells of the change."""

    name: str
    image: int  # its number in the stream, from 1
    score: float
    p_value: float


@dataclass(frozen=True)
class StoredTelling:
    """The same, as it is stored."""

    name: Text
    image: Count
    score: float
    p_value: Annotated[float, between(0, 1)]


@dataclass(frozen=True, kw_only=True)
class State:
    """The fields of a stored monitor; arrays are little-endian bytes in base64."""

    detector: LongDigest  # of the calibration scores and what else the evidence depends on
    false_alarm_rate: Annotated[float, between(0, 1)]
    seed: int
    groups: Literal["folder", "name"] | None
    number: Count
    images: Count
    counted: Count
    refused: Count
    ranked: Count  # images over all streams, which number the random numbers
    last_group: LongDigest | None
    alarm_at: Count | None
    since: Annotated[list[Count], length(3, 3)] | None
    direction: Direction | None
    component: Text | None
    last_band: Count | None
    urn: Array
    log_sums: Array
    highest: Array
    highest_ties: Array
    numbers: Array
    bands: Array
    records: Array
    z_scores: Array
    higher: Annotated[list[StoredTelling], length(0, 64)]
    lower: Annotated[list[StoredTelling], length(0, 64)]
    latest: Annotated[list[StoredTelling], length(0, 64)]


def to_bytes(state: State) -> bytes:
    content = json.dumps(asdict(state), separators=(",", ":")).encode()
    return FORMAT + hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def from_bytes(stored: bytes, *, where: str) -> State:
    """What was stored, if it is whole; StateError otherwise."""
    line, _, content = stored.partition(b"\n")
    if not line.startswith(FORMAT) or len(stored) > MOST_BYTES:
        raise StateError(f"{where} is not the state of a monitor, or of another version: {REMEDY}")
    if line.removeprefix(FORMAT) != hashlib.sha256(content).hexdigest().encode():
        raise StateError(f"{where} is damaged: take an older copy, or {REMEDY}")
    try:
        return read_fields(State, load_json(content), where=where)
    except SchemaError as error:
        raise StateError(f"{where} cannot be the state of a monitor ({error}): {REMEDY}") from error


def pack(values: NDArray[Any]) -> str:
    return b64encode(values.astype(values.dtype.newbyteorder("<")).tobytes()).decode()


def unpack(text: str, kind: DTypeLike, shape: tuple[int, ...], *, where: str) -> NDArray[Any]:
    """The array of that shape, in which -1 stands for any length."""
    try:
        raw = np.frombuffer(b64decode(text, validate=True), np.dtype(kind).newbyteorder("<"))
        return raw.astype(kind).reshape(shape)
    except ValueError as error:
        raise StateError(f"{where} holds an array of the wrong size: {REMEDY}") from error


def stored(images: Iterable[Telling]) -> list[StoredTelling]:
    return [StoredTelling(*each) for each in images]


def detector_digest(calibration: NDArray[np.float64], names: Iterable[str]) -> str:
    """Of the calibration scores and the names of the components: the state of one detector is no other's."""
    content = json.dumps([*names]).encode() + b"\0" + np.ascontiguousarray(calibration, "<f8").tobytes()
    return hashlib.sha256(content).hexdigest()
