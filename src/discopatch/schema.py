"""Files from anyone: JSON within bounds, and dataclasses whose fields say what may stand in them.

A dataclass is its own schema: the type of every field is checked, and the limits beside it in `Annotated`. A new field
of a file is one new line of its class.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from itertools import chain
from re import fullmatch
from reprlib import Repr
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from discopatch.errors import SchemaError

T = TypeVar("T")

MAX_DEPTH = 32  # of lists and objects in each other
LARGEST_INTEGER = 2**63 - 1
LARGEST_FLOAT = sys.float_info.max
NAMES = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false", NoneType: "null"}

shorten = Repr()
shorten.maxstring = shorten.maxother = shorten.maxlong = 60


@dataclass(frozen=True)
class Between:
    """The limits of a number, or of the length of a text, list or object."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"from {self.least} to {self.most}"

    def allows(self, value: Any) -> bool:
        return self.least <= (value if isinstance(value, int | float) else len(value)) <= self.most


@dataclass(frozen=True)
class Matching:
    """The pattern of a text."""

    pattern: str

    def __str__(self) -> str:
        return f"of the form {self.pattern}"

    def allows(self, value: str) -> bool:
        return fullmatch(self.pattern, value) is not None


Count = Annotated[int, Between(0, LARGEST_INTEGER)]
Positive = Annotated[int, Between(1, LARGEST_INTEGER)]
Name = Annotated[str, Between(1, 200)]
Digest = Annotated[str, Matching("[0-9a-f]{16}")]
LongDigest = Annotated[str, Matching("[0-9a-f]{64}")]


def load_json(content: bytes | str) -> Any:
    """What strict JSON holds: SchemaError for names that stand twice, NaN, integers beyond 64 bits, deep nesting.

    The caller bounds the length, and with it the memory: about 25 bytes for each byte of the content.
    """
    try:
        value = json.loads(
            content.decode() if isinstance(content, bytes) else content,
            object_pairs_hook=unique_names,
            parse_int=bounded_integer,
            parse_constant=refuse_constant,
        )
    except SchemaError:
        raise
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"it cannot be read as JSON ({type(error).__name__}: {error})") from None
    check_tree(value)
    return value


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise SchemaError("it names a field twice")
    return found


def bounded_integer(digits: str) -> int:
    if len(digits) > 20 or abs(int(digits)) > LARGEST_INTEGER:
        raise SchemaError(f"it holds the number {shorten.repr(digits)}, which is too large")
    return int(digits)


def refuse_constant(name: str) -> None:
    raise SchemaError(f"it holds {name}, which is no JSON")


def check_tree(value: Any) -> None:
    """Refuses what is nested too deep, and half characters, which could not be printed."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = list(chain.from_iterable(map(children, level)))
        if not level:
            return
    raise SchemaError(f"it holds more than {MAX_DEPTH} lists or objects in each other")


def children(value: Any) -> Iterable[Any]:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise SchemaError(f"it holds {shorten.repr(value)}, which is no Unicode text") from None
    if isinstance(value, dict):
        return chain(value, value.values())
    return value if isinstance(value, list) else ()


def read_fields(
    kind: type[T],
    values: object,
    *,
    where: str,
    ignore_unknown: bool = False,
    names: Mapping[str, Any] | None = None,
) -> T:
    """The dataclass that a JSON object describes, or SchemaError with the field that does not fit.

    With `ignore_unknown` further fields are passed over, and those that have a default may be missing: for the headers
    of files, whose format number rises whenever their meaning changes. `names` resolves types that the module of the
    class does not import.
    """
    if not isinstance(values, Mapping):
        raise SchemaError(f"{where} is {shorten.repr(values)}: expected an object with fields")
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    if not ignore_unknown and (unknown := values.keys() - known.keys()):
        raise SchemaError(f"{where} has the unknown fields {shorten.repr(sorted(map(str, unknown)))}")
    required = {name for name, each in known.items() if not (ignore_unknown and has_default(each))}
    if missing := required - values.keys():
        raise SchemaError(f"{where} lacks {', '.join(sorted(missing))}")
    hints = get_type_hints(kind, localns=dict(names or {}), include_extras=True)
    return kind(**{name: convert(values[name], hints[name], f"{where}.{name}") for name in known if name in values})


def check_fields(value: Any) -> None:
    """Raises SchemaError unless every field of a dataclass, made by whoever, is of its type and within its limits."""
    hints = get_type_hints(type(value), include_extras=True)
    for each in fields(value):
        convert(getattr(value, each.name), hints[each.name], each.name)


def has_default(field: Any) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def convert(value: Any, kind: Any, where: str) -> Any:
    """The value as that type, which may be made of others; SchemaError where it is of another."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        found = convert(value, parts[0], where)
        if all(limit.allows(found) for limit in parts[1:]):
            return found
    elif origin in (Union, UnionType):
        for part in parts:
            try:
                return convert(value, part, where)
            except SchemaError:
                continue
    elif origin is Literal:
        if any(type(value) is type(part) and value == part for part in parts):
            return value
    elif origin in (tuple, list):
        if isinstance(value, list | tuple):
            return origin(convert(each, parts[0], f"{where}[{place}]") for place, each in enumerate(value))
    elif origin is dict:
        if isinstance(value, Mapping):
            return dict(converted_items(value, parts[0], parts[1], where))
    elif is_dataclass(kind):
        if isinstance(value, kind):  # type: ignore[arg-type]  # no instance
            return value
        return kind.from_dict(value) if hasattr(kind, "from_dict") else read_fields(kind, value, where=where)  # type: ignore[arg-type]
    elif issubclass(kind, Enum):
        if value in list(kind):
            return kind(value)
    elif kind is float:
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_FLOAT:
            return float(value)
    elif isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise SchemaError(f"{where} is {shorten.repr(value)}: expected {describe(kind)}")


def converted_items(values: Mapping[Any, Any], key: Any, kind: Any, where: str) -> Iterator[tuple[Any, Any]]:
    for name, value in values.items():
        place = f"{where}.{shorten.repr(name)}"
        yield convert(name, key, place), convert(value, kind, place)


def describe(kind: Any) -> str:
    """The type in words, for an error."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return " ".join([describe(parts[0]), *map(str, parts[1:])])
    if origin in (Union, UnionType):
        return " or ".join(map(describe, parts))
    if origin is Literal:
        return "one of " + ", ".join(map(repr, parts))
    if origin in (tuple, list):
        return "a list"
    if origin is dict:
        return "an object"
    return "one of " + ", ".join(map(str, kind)) if issubclass(kind, Enum) else NAMES.get(kind, kind.__name__)
