"""JSON from anyone becomes the declared dataclass, or one SchemaError."""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discopatch.errors import SchemaError
from discopatch.schema import Digest, Name, Positive, between, length, load_json, read_fields


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    sizes: Annotated[tuple[Positive, ...], length(1, 3)]


@dataclass(frozen=True)
class Sample:
    name: Name
    digest: Digest
    share: Annotated[float, between(0, 1)]
    places: Positive | Literal["all"]
    inner: Inner
    counts: dict[Colour, int]
    note: str | None = None
    flag: bool = False


GOOD: dict[str, Any] = {
    "name": "a",
    "digest": "0123456789abcdef",
    "share": 1,
    "places": "all",
    "inner": {"sizes": [1, 2]},
    "counts": {"red": -1},
}


def read(**changes: Any) -> Sample:
    return read_fields(Sample, {**GOOD, **changes}, where="sample", ignore_unknown=True)


def test_what_fits_becomes_the_class_with_its_own_types() -> None:
    found = read(note="n")
    assert found == Sample("a", "0123456789abcdef", 1.0, "all", Inner((1, 2)), {Colour.RED: -1}, "n")
    assert isinstance(found.share, float)
    assert isinstance(next(iter(found.counts)), Colour)


@pytest.mark.parametrize(
    "changes",
    [
        *({"name": ""}, {"name": 3}, {"digest": "0123456789ABCDEF"}, {"digest": "0123456789abcdef\n"}),
        *({"share": 1.1}, {"share": True}, {"share": float("nan")}, {"share": "0.5"}, {"places": "some"}),
        *({"places": True}, {"places": 1.0}, {"inner": [1]}, {"inner": {"sizes": []}}, {"inner": {"sizes": [1, 0]}}),
        *({"inner": {}}, {"counts": {"green": 1}}, {"counts": []}, {"flag": 1}, {"flag": None}),
    ],
)
def test_what_does_not_fit_is_refused_by_its_place(changes: dict[str, Any]) -> None:
    with pytest.raises(SchemaError, match=next(iter(changes))):
        read(**changes)


def test_fields_of_a_newer_version_are_ignored_or_refused_as_the_reader_says() -> None:
    assert read(future=[1]) == read()
    with pytest.raises(SchemaError):
        read_fields(Sample, {**GOOD, "future": 1}, where="sample")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
)


@given(st.dictionaries(st.sampled_from([*GOOD, "note", "flag"]), json_values))
def test_any_json_is_read_or_refused(changes: dict[str, Any]) -> None:
    try:
        found = read(**changes)
    except SchemaError:
        return
    assert isinstance(found, Sample)


@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_read_as_the_standard_library_reads_them_or_refused(content: bytes) -> None:
    try:
        found = load_json(content)
    except SchemaError:
        return
    assert found == json.loads(content)


@pytest.mark.parametrize("content", ["NaN", "[-Infinity]", "[" * 100_000, b"\xff", "", "tru", "[1] 2", '"\\ud800"'])
def test_json_that_is_not_strict_is_refused(content: str | bytes) -> None:
    with pytest.raises(SchemaError):
        load_json(content)
