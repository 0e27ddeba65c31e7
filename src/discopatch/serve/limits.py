"""Bodies of requests, counted as they arrive: never more bytes, files or time than the settings allow."""

import time
from asyncio import timeout
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Self

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from discopatch.errors import ImageError
from discopatch.images import Limits, check_bytes
from discopatch.images.items import Item
from discopatch.serve.problems import CLIENT_GONE, ProblemError
from discopatch.serve.settings import ServeSettings
from discopatch.utils import escaped

GRACE_SECONDS = 5.0  # in which a body may be slower than the least rate
MAX_PART_HEADER = 4096  # bytes
LONGEST_NAME = 300
FIELDS = ("files", "file")
RAW_TYPES = ("application/octet-stream", "binary/octet-stream")


class Room:
    """Bytes that are held for requests, of which there are never more than `most`."""

    def __init__(self, most: int) -> None:
        self.most, self.used = most, 0
        self._lock = Lock()

    def take(self, count: int) -> bool:
        """Whether there was room for so many more bytes, which are then counted."""
        with self._lock:
            if self.used + count > self.most:
                return False
            self.used += count
            return True

    def give_back(self, count: int) -> None:
        with self._lock:
            self.used -= count


@dataclass
class Held:
    """The bytes that one request holds, which are given back when it ends, or as its images are done."""

    room: Room
    busy: Callable[[], ProblemError]  # what is raised where there is no room
    count: int = 0

    def take(self, count: int) -> None:
        if not self.room.take(count):
            raise self.busy()
        self.count += count

    def give_back(self, count: int) -> None:
        self.room.give_back(count)
        self.count -= count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back(self.count)


async def read_chunks(request: Request, most: int, settings: ServeSettings) -> AsyncIterator[bytes]:
    """The body part by part; 413 beyond `most` bytes, 408 where it comes too slowly, 499 if the client leaves."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > most:
        raise too_large(f"a body of {int(declared):,} bytes", most)
    start, count = time.monotonic(), 0
    stream = request.stream()
    while True:
        allowed = min(settings.body_seconds, GRACE_SECONDS + count / settings.min_rate)
        try:
            async with timeout(max(0.0, start + allowed - time.monotonic())):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise ProblemError(
                408,
                "too-slow",
                f"{count:,} bytes of the body came in {time.monotonic() - start:.0f} seconds: send at least "
                f"{settings.min_rate:,} a second, and all within {settings.body_seconds:g} seconds",
                headers={"Connection": "close"},
            ) from None
        except ClientDisconnect:
            raise client_gone() from None
        if chunk is None:
            return
        count += len(chunk)
        if count > most:
            raise too_large("the body", most)
        if chunk:
            yield chunk


def client_gone() -> ProblemError:
    return ProblemError(CLIENT_GONE, "client-gone", "the client has left")


def too_large(what: str, most: int) -> ProblemError:
    detail = f"{what} is more than the {most:,} bytes that one request may have: send less at once"
    return ProblemError(413, "too-large", detail, headers={"Connection": "close"}, limit=most)


async def read_body(request: Request, most: int, settings: ServeSettings, held: Held) -> bytes:
    parts: list[bytes] = []
    async for chunk in read_chunks(request, most, settings):
        held.take(len(chunk))
        parts.append(chunk)
    return b"".join(parts)


async def read_items(request: Request, settings: ServeSettings, limits: Limits, held: Held) -> list[Item]:
    """The images of a request, not decoded yet: the files of a form, or the body itself."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind == b"multipart/form-data":
        form = Form(options.get(b"boundary", b""), settings, limits, held)
        async for chunk in read_chunks(request, settings.max_request_bytes, settings):
            form.feed(chunk)
        return form.end()
    if not kind.startswith(b"image/") and kind.decode("latin-1") not in ("", *RAW_TYPES):
        raise ProblemError(
            415,
            "unsupported-type",
            f"{kind.decode('latin-1')[:100]} is not taken: send multipart/form-data with `files`, or an image as the "
            "body (image/* or application/octet-stream)",
        )
    data = await read_body(request, settings.max_bytes, settings, held)
    return [Item(clean_name(request.query_params.get("name"), 0), data)]


@dataclass
class Part:
    """One file of a form as far as it has come; beyond the limit its bytes are counted, not kept."""

    number: int
    most: int
    header: bytearray = field(default_factory=bytearray)
    headers: dict[bytes, bytes] = field(default_factory=dict)
    data: list[bytes] = field(default_factory=list)
    size: int = 0

    def item(self, limits: Limits) -> Item:
        _, options = parse_options_header(self.headers.get(b"content-disposition"))
        name = clean_name(options.get(b"filename", b"").decode("utf-8", "replace"), self.number)
        try:
            check_bytes(self.size, limits)
        except ImageError as error:
            return Item(name, error)
        return Item(name, b"".join(self.data))


class Form:
    """The files of a multipart form, in their order; 422 for what is no such form, 413 for too many files."""

    def __init__(self, boundary: bytes, settings: ServeSettings, limits: Limits, held: Held) -> None:
        self._settings, self._limits, self._held = settings, limits, held
        self._parts: list[Part] = []
        self._name = b""  # of the header of a part that is being read
        self._header_size = 0
        self._whole = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._header_field,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._check_field,
                    "on_part_data": self._add,
                    "on_end": self._finish,
                },
            )
        except (MultipartParseError, ValueError) as error:
            raise invalid_form(str(error)) from None

    def feed(self, chunk: bytes) -> None:
        try:
            self._parser.write(chunk)
        except MultipartParseError as error:
            raise invalid_form(str(error)) from None

    def end(self) -> list[Item]:
        """All images, once the last boundary was there."""
        if not self._whole:
            raise invalid_form("its end is missing")
        if not self._parts:
            raise invalid_form("it has no files")
        return [part.item(self._limits) for part in self._parts]

    def _begin(self) -> None:
        if len(self._parts) == self._settings.max_files:
            most = self._settings.max_files
            raise ProblemError(
                413,
                "too-many-files",
                f"more than the {most:,} files that one request may have: send fewer at once",
                headers={"Connection": "close"},
                limit=most,
            )
        self._parts.append(Part(len(self._parts), self._limits.max_bytes))
        self._header_size = 0

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._name += data[start:end].lower()

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._parts[-1].header += data[start:end]

    def _count_header(self, count: int) -> None:
        self._header_size += count
        if self._header_size > MAX_PART_HEADER:
            raise invalid_form(f"a part has a header of more than {MAX_PART_HEADER:,} bytes")

    def _header_end(self) -> None:
        part = self._parts[-1]
        part.headers[self._name] = bytes(part.header)
        part.header.clear()
        self._name = b""

    def _check_field(self) -> None:
        kind, options = parse_options_header(self._parts[-1].headers.get(b"content-disposition"))
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if kind != b"form-data" or name not in FIELDS:
            raise invalid_form(f"it has a field {escaped(name)[:100]!r}; images go into `files`")

    def _add(self, data: bytes, start: int, end: int) -> None:
        part, count = self._parts[-1], end - start
        part.size += count
        if part.size <= part.most:
            self._held.take(count)
            part.data.append(data[start:end])
        elif part.data:
            self._held.give_back(sum(map(len, part.data)))
            part.data.clear()

    def _finish(self) -> None:
        self._whole = True


def invalid_form(reason: str) -> ProblemError:
    return ProblemError(
        422,
        "invalid-form",
        f"the form cannot be read ({reason}): send multipart/form-data, each image as a file in the field `files`",
        headers={"Connection": "close"},
    )


def clean_name(given: str | None, number: int) -> str:
    """A file's name in one line, of a long one the end; results give it back, and nothing else is done with it."""
    return escaped((given or "").strip())[-LONGEST_NAME:] or f"image-{number:06d}"
