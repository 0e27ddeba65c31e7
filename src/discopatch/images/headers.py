"""What files declare of themselves, checked before Pillow believes it: a few bytes can ask for gigabytes or hours."""

import re
import struct
from typing import NamedTuple

from discopatch.errors import ImageError
from discopatch.images.formats import RAW_FILE
from discopatch.images.image import Limits, RefusalReason

_EXIF = b"Exif\0\0"
_UNIT_SIZES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8)  # bytes of each TIFF type
_SUB_DIRECTORIES = (34665, 34853, 40965)  # Exif, GPS, interoperability
_TILE_WIDTH, _TILE_LENGTH, _SUBFILE, _SUB_IMAGES, _DNG = 322, 323, 254, 330, 50706
_ORIENTATION = 274
_MAX_EXIF = 2**22  # bytes; a segment of a JPEG holds 65 thousand, and more than one of them is rare
MAX_SCANS = 64  # of a progressive JPEG; writers make about ten, and each is a pass over all pixels
_NEXT_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")


def checked(kind: str, data: bytes, limits: Limits) -> bytes:
    """The data, without metadata that only a hostile file has; ImageError where it is not worth decoding."""
    match kind:
        case "JPEG":
            return _checked_jpeg(data)
        case "TIFF":
            _check_tiff(data, limits)
        case "WebP":
            _check_webp(data, limits)
    return data


def check_pixels(height: int, width: int, limits: Limits) -> None:
    """ImageError where an image has too many pixels, or a side too few."""
    _check_not_more(height, width, limits)
    if min(height, width) < limits.min_side:
        raise ImageError(
            RefusalReason.TOO_SMALL,
            f"{width} x {height} pixels; each side needs at least {limits.min_side}: use a larger image",
        )


def _check_not_more(height: int, width: int, limits: Limits) -> None:
    if height * width > limits.max_pixels:
        raise ImageError(
            RefusalReason.TOO_LARGE,
            f"{width} x {height} pixels; at most {limits.max_pixels:,} in all: "
            "shrink it or raise max_pixels (--max-pixels)",
        )


class Directory(NamedTuple):
    """The tags of a TIFF directory, each with its number or the place of its values, and the bytes they declare."""

    tags: dict[int, int]
    declared: int


def tags_fit(exif: bytes) -> bool:
    """Whether metadata declare no more bytes than they have; Pillow copies them for every tag that points there."""
    data = exif.removeprefix(_EXIF)
    try:
        declared, places, seen = 0, [_first_place(data)], set()
        while places:
            place = places.pop()
            if place in seen:
                continue
            seen.add(place)
            directory = _directory(data, place)
            declared += directory.declared
            places += [directory.tags[tag] for tag in _SUB_DIRECTORIES if tag in directory.tags]
    except (struct.error, ValueError):
        return True  # too broken to be followed, by Pillow too
    return declared <= 2 * len(data)


def orientation_of(exif: bytes) -> int | None:
    """The orientation, 1 to 8, that metadata declare, 1 where they declare none; none where they are not sound."""
    data = exif.removeprefix(_EXIF)
    try:
        found = _directory(data, _first_place(data)).tags.get(_ORIENTATION, 1)
    except (struct.error, ValueError):
        return None
    return found if found == 1 or (2 <= found <= 8 and tags_fit(exif)) else None


def _checked_jpeg(data: bytes) -> bytes:
    """Without metadata that would take much to read; ImageError where there are very many scans."""
    place, scans, progressive = 2, 0, False
    exif: list[bytes] = []
    while (match := _NEXT_MARKER.search(data, place)) is not None:
        marker, place = match.group()[1], match.end()
        if marker == 0xD9 or place + 2 > len(data):
            break
        if marker in (0x01, 0xD8):
            continue
        if marker == 0xDA:
            scans += 1
            if not progressive:  # then no scan is cheaper than its bytes
                break
            if scans > MAX_SCANS:
                detail = f"a JPEG of more than {MAX_SCANS} scans, which would take very long: save it again"
                raise ImageError(RefusalReason.UNSUPPORTED, detail)
        progressive |= marker in (0xC2, 0xC6, 0xCA, 0xCE)
        end = place + int.from_bytes(data[place : place + 2])
        if marker == 0xE1 and data.startswith(_EXIF, place + 2):
            exif.append(data[place + 2 + len(_EXIF) : end])
        place = end
    if not exif or (sum(map(len, exif)) <= _MAX_EXIF and tags_fit(b"".join(exif))):
        return data
    return data.replace(_EXIF, b"\0" * len(_EXIF))


def _check_webp(data: bytes, limits: Limits) -> None:
    """The size, which Pillow allocates as it opens the file."""
    chunk, body = data[12:16], data[20:30].ljust(10, b"\0")
    if chunk == b"VP8X":
        width, height = (1 + int.from_bytes(body[place : place + 3], "little") for place in (4, 7))
    elif chunk == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    else:
        width, height = (0x3FFF & int.from_bytes(body[place : place + 2], "little") for place in (6, 8))
    _check_not_more(height, width, limits)


def _check_tiff(data: bytes, limits: Limits) -> None:
    try:
        tags = _directory(data, _first_place(data)).tags
    except (struct.error, ValueError) as error:
        raise ImageError(RefusalReason.TRUNCATED, f"TIFF cut short or damaged ({error}): copy it again") from error
    if data[8:10] == b"CR" or _DNG in tags or (_SUB_IMAGES in tags and _SUBFILE in tags and tags[_SUBFILE] & 1):
        raise ImageError(RefusalReason.UNSUPPORTED, RAW_FILE)
    if not tags_fit(data):
        detail = "TIFF whose tags declare more bytes than it has: copy it again"
        raise ImageError(RefusalReason.TRUNCATED, detail)
    if _TILE_WIDTH in tags and _TILE_LENGTH in tags:
        _check_not_more(tags[_TILE_LENGTH], tags[_TILE_WIDTH], limits)


def _first_place(data: bytes) -> int:
    order = _order(data)
    if data[2:4] in (b"+\0", b"\0+"):
        return int(struct.unpack_from(order + "Q", data, 8)[0])
    return int(struct.unpack_from(order + "L", data, 4)[0])


def _order(data: bytes) -> str:
    if data[:2] not in (b"II", b"MM"):
        raise ValueError("no order of bytes")
    return "<" if data[:2] == b"II" else ">"


def _directory(data: bytes, place: int) -> Directory:
    """The directory at that place; of a tag that stands there twice the first counts, as for Pillow."""
    order, big = _order(data), data[2:4] in (b"+\0", b"\0+")
    counted, entry, room, pointer = ("Q", "HHQ", 8, "Q") if big else ("H", "HHL", 4, "L")
    size, start = struct.calcsize(order + entry) + room, place + struct.calcsize(order + counted)
    (count,) = struct.unpack_from(order + counted, data, place)
    if start + count * size > len(data):
        raise ValueError("a directory beyond the end")
    tags: dict[int, int] = {}
    declared = 0
    for number in range(count):
        here = start + number * size
        tag, kind, values = struct.unpack_from(order + entry, data, here)
        if tag in tags:
            continue
        unit = _UNIT_SIZES[kind] if kind < len(_UNIT_SIZES) else 0
        form = {1: "B", 2: "H"}.get(unit if unit * values <= room else 0, pointer)
        (tags[tag],) = struct.unpack_from(order + form, data, here + size - room)
        declared += unit * values
    return Directory(tags, declared)
