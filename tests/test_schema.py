"""JSON from anyone: what a class declares comes out, or one SchemaError."""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discopatch.errors import SchemaError
from discopatch.schema import MAX_DEPTH, Between, Digest, Name, Positive, load_json, read_fields


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    sizes: Annotated[tuple[Positive, ...], Between(1, 3)]


@dataclass(frozen=True)
class Sample:
    name: Name
    digest: Digest
    share: Annotated[float, Between(0, 1)]
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
    ("changes", "named"),
    [
        ({"name": ""}, "sample.name"),
        ({"name": 3}, "sample.name is 3"),
        ({"digest": "0123456789ABCDEF"}, "sample.digest"),
        ({"share": 1.1}, "from 0 to 1"),
        ({"share": True}, "sample.share is True"),
        ({"share": float("nan")}, "sample.share is nan"),
        ({"share": "0.5"}, "a finite number"),
        ({"places": "some"}, "'all'"),
        ({"places": True}, "sample.places"),
        ({"places": 1.0}, "sample.places"),
        ({"inner": [1]}, "sample.inner"),
        ({"inner": {"sizes": []}}, "sample.inner.sizes"),
        ({"inner": {"sizes": [1, 0]}}, r"sample.inner.sizes\[1\] is 0"),
        ({"inner": {"sizes": [1], "depth": 1}}, "depth"),
        ({"inner": {}}, "lacks sizes"),
        ({"counts": {"green": 1}}, "green"),
        ({"counts": []}, "an object"),
        ({"flag": 1}, "true or false"),
        ({"flag": None}, "sample.flag"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_place(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(SchemaError, match=named):
        read(**changes)


def test_fields_of_a_newer_version_are_ignored_or_refused_as_the_reader_says() -> None:
    assert read(future=[1]) == read()
    with pytest.raises(SchemaError, match="future"):
        read_fields(Sample, {**GOOD, "note": None, "flag": False, "future": 1}, where="sample")
    with pytest.raises(SchemaError, match="lacks flag, note"):
        read_fields(Sample, GOOD, where="sample")


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


@given(json_values)
def test_strict_json_comes_back_as_the_library_reads_it(value: Any) -> None:
    text = json.dumps(value)
    try:
        found = load_json(text)
    except SchemaError:
        return
    assert found == json.loads(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    try:
        load_json(content)
    except SchemaError:
        return


@pytest.mark.parametrize(
    "content",
    [
        *('{"a": 1, "a": 1}', "NaN", "[-Infinity]", "9223372036854775808", "1" * 5000, '"\\ud800"', '{"\\udfff": 1}'),
        *("[" * 100_000, "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), b"\xff", "", "tru", "[1] 2"),
    ],
)
def test_json_that_is_not_strict_is_refused(content: str | bytes) -> None:
    with pytest.raises(SchemaError):
        load_json(content)
