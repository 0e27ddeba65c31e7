"""Small files that ask for much: memory, time, or both."""

import gzip
import os
import struct
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from .samples import encoded, noise, photo

MIB = 2**20
PNG = encoded(noise(40, 40), "PNG")
END = b"\0" * 1024


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def with_checksum(block: bytes | bytearray) -> bytes:
    blank = bytes(block[:148]) + b" " * 8 + bytes(block[156:])
    return blank[:148] + b"%06o\0 " % sum(blank) + blank[156:]


def member(name: str, data: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    return header(name, len(data), kind) + data + b"\0" * (-len(data) % 512)


def pax_record(key: bytes, value: bytes) -> bytes:
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest) + 1
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest


GOOD = member("good.png", PNG)


def giant_header(kind: bytes, mebibytes: int = 120) -> Iterator[bytes]:
    yield header("././@LongLink", mebibytes * MIB, kind)
    yield from [b"a" * MIB] * mebibytes


def sparse_map() -> Iterator[bytes]:
    first = bytearray(header("holes.png", len(PNG), tarfile.GNUTYPE_SPARSE))
    first[482] = 1
    yield with_checksum(first)
    pairs = b"".join(b"%011o\0%011o\0" % (512 * number, 1) for number in range(1, 22))
    yield from [(pairs + b"\1" + b"\0" * 7) * 1000] * 100


ARCHIVES = {
    "long_name": lambda: giant_header(tarfile.GNUTYPE_LONGNAME),
    "pax": lambda: giant_header(tarfile.XHDTYPE),
    "headers": lambda: iter([header("././@LongLink", 0, tarfile.GNUTYPE_LONGNAME) * 1000] * 100),
    "sparse_map": sparse_map,
}


def write_archive(path: Path, chunks: Iterator[bytes]) -> Path:
    """An image, then the chunks, then an image again."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(GOOD)
        for chunk in chunks:
            file.write(chunk)
        file.write(GOOD + END)
    return path


def archive_with_a_hole(path: Path) -> Path:
    """A member of a terabyte that takes no room on the disk, between two images."""
    size = 2**40
    big = bytearray(header("hole.png", 0))
    big[124:136] = b"\x80" + size.to_bytes(11)
    with path.open("wb") as file:
        file.write(GOOD + with_checksum(big))
        file.seek(size, os.SEEK_CUR)
        file.write(GOOD + END)
    return path


def overlapping_tags(count: int, *, size: int) -> bytes:
    """A TIFF directory whose tags all point at the same bytes, in a blob of that size."""
    entries = b"".join(struct.pack("<HHLL", 40_000 + number, 7, size - 8, 8) for number in range(count))
    return (b"II*\0" + struct.pack("<LH", 8, count) + entries + b"\0" * 4).ljust(size, b"\0")


def jpeg_with_exif(exif: bytes) -> bytes:
    jpeg, parts = encoded(photo(), "JPEG"), [exif[place : place + 65_000] for place in range(0, len(exif), 65_000)]
    segments = b"".join(b"\xff\xe1" + struct.pack(">H", len(part) + 8) + b"Exif\0\0" + part for part in parts)
    return jpeg[:2] + segments + jpeg[2:]


def jpeg_of_many_scans(scans: int) -> bytes:
    """A progressive JPEG whose last scan comes again and again."""
    whole = encoded(Image.new("RGB", (2000, 2000)), "JPEG", progressive=True)
    last = whole.rindex(b"\xff\xda")
    return whole[:-2] + whole[last:-2] * scans + whole[-2:]


def webp_that_claims(width: int, height: int) -> bytes:
    data = bytearray(encoded(photo(), "WEBP", lossless=True, exif=b"Exif\0\0II*\0\x08\0\0\0\0\0"))
    assert data[12:16] == b"VP8X"
    data[24:30] = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return bytes(data)


def tiff_of_one_tile(side: int) -> bytes:
    """40 x 40 pixels in a tile of `side` x `side`, compressed."""
    tile = zlib.compress(bytes(side * side * 3), 1)
    tags = [(256, 4, 1, 40), (257, 4, 1, 40), (258, 3, 3, 8), (259, 3, 1, 8), (262, 3, 1, 2), (277, 3, 1, 3)]
    tags += [(322, 4, 1, side), (323, 4, 1, side), (324, 4, 1, 16), (325, 4, 1, len(tile))]
    entries = b"".join(struct.pack("<HHLL", *tag) for tag in tags)
    data = b"II*\0" + struct.pack("<L", 16 + len(tile)) + struct.pack("<HHH", 8, 8, 8) + b"\0\0" + tile
    return data + struct.pack("<H", len(tags)) + entries + b"\0" * 4


def images() -> dict[str, bytes]:
    return {
        "exif.jpg": jpeg_with_exif(overlapping_tags(20_000, size=1_000_000)),
        "exif.webp": encoded(photo(), "WEBP", exif=overlapping_tags(20_000, size=1_000_000)),
        "tile.tif": tiff_of_one_tile(9_500),
        "claim.webp": webp_that_claims(16_383, 16_383),
        "scans.jpg": jpeg_of_many_scans(3000),
    }
