"""Checked reading of stored JSON: dataclasses whose annotations are their schema, validated by msgspec."""

from collections.abc import Mapping
from dataclasses import fields
from reprlib import Repr
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

from discopatch.errors import SchemaError

T = TypeVar("T")

shorten = Repr()
shorten.maxstring = shorten.maxother = shorten.maxlong = 60


def between(least: float, most: float) -> Meta:
    return Meta(ge=least, le=most)


def length(least: int, most: int) -> Meta:
    """Limits of the length of a text, list or mapping."""
    return Meta(min_length=least, max_length=most)


Count = Annotated[int, between(0, 2**63 - 1)]
Positive = Annotated[int, between(1, 2**63 - 1)]
Name = Annotated[str, length(1, 200)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{16}\\Z")]
LongDigest = Annotated[str, Meta(pattern="^[0-9a-f]{64}\\Z")]


def load_json(content: bytes | str) -> Any:
    """The value that strict JSON holds, or SchemaError; the caller bounds the length."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise SchemaError(f"not readable as JSON ({error})") from None


def read_fields(kind: type[T], values: object, *, where: str, ignore_unknown: bool = False) -> T:
    """The dataclass that a JSON object describes, or SchemaError with the field that does not fit.

    Nested classes with a `from_dict` are read by it. With `ignore_unknown` further fields are ignored: for headers of
    files, whose format number rises whenever their meaning changes.
    """
    if not isinstance(values, Mapping):
        raise SchemaError(f"{where} is {shorten.repr(values)}: expected an object with fields")
    hints = get_type_hints(kind)
    if not ignore_unknown and (unknown := values.keys() - hints.keys()):
        raise SchemaError(f"{where} has the unknown fields {shorten.repr(sorted(map(str, unknown)))}")
    found = dict(values)
    for name, hint in hints.items():
        reader = next((each for each in (hint, *get_args(hint)) if hasattr(each, "from_dict")), None)
        if reader is not None and found.get(name) is not None:
            found[name] = reader.from_dict(found[name])
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise SchemaError(f"{where}: {error}") from None


def check_fields(value: Any) -> None:
    """Raises SchemaError unless every field of a dataclass instance has its type and lies within its limits."""
    hints = get_type_hints(type(value), include_extras=True)
    for each in fields(value):
        found = getattr(value, each.name)
        try:
            msgspec.convert(found, hints[each.name])
        except msgspec.ValidationError as error:
            raise SchemaError(f"{each.name} is {shorten.repr(found)}: {error}") from None
