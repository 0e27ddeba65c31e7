"""The header of a JPEG file is what Pillow reads of it, or nothing where it is not plain."""

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image

from discopatch.images.gpu_decode import JpegHeader, read_jpeg_header

from .samples import encoded, photo


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"subsampling": 0}, {"subsampling": 2}, {"restart_marker_blocks": 2}]
)
def test_size_and_channels_are_read(mode: str, options: dict[str, Any]) -> None:
    data = encoded(Image.fromarray(photo(50, 70)).convert(mode), "JPEG", comment=b"a comment", **options)
    assert read_jpeg_header(data) == JpegHeader(50, 70, len(mode), 1)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_is_read(orientation: int) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Make] = "a camera"
    exif[ExifTags.Base.Orientation] = orientation
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.UserComment] = b"x" * 300
    assert read_jpeg_header(encoded(photo(50, 70), "JPEG", exif=exif)) == JpegHeader(50, 70, 3, orientation)


def with_segment(data: bytes, marker: int, body: bytes) -> bytes:
    return data[:2] + bytes((0xFF, marker)) + (len(body) + 2).to_bytes(2) + body + data[2:]


PLAIN = encoded(photo(50, 70), "JPEG")
UNUSUAL = {
    "CMYK": encoded(Image.fromarray(photo()).convert("CMYK"), "JPEG"),
    "RGB without a conversion": encoded(photo(), "JPEG", keep_rgb=True),
    "Adobe's RGB": with_segment(PLAIN, 0xEE, b"Adobe\0\x64\0\0\0\0\0"),
    "an orientation in XMP": with_segment(PLAIN, 0xE1, b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="6"/>'),
    "broken metadata": with_segment(PLAIN, 0xE1, b"Exif\0\0II*\0\xff\xff\xff\xff"),
    "cut short": PLAIN[:-30],
    "something behind its end": PLAIN + b"\0",
    "another format": encoded(photo(), "PNG"),
    "nothing but a start": b"\xff\xd8\xff\xe0\xff\xd9",
    "empty": b"",
    "a lossless frame": PLAIN.replace(b"\xff\xc0", b"\xff\xc3"),
    "no height": PLAIN.replace(b"\xff\xc0\0\x11\x08\0\x32", b"\xff\xc0\0\x11\x08\0\0"),
    "12 bits": PLAIN.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"),
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_what_is_unusual_is_left_to_others(kind: str) -> None:
    assert UNUSUAL[kind] != PLAIN
    assert read_jpeg_header(UNUSUAL[kind]) is None


def test_very_many_scans_are_left_to_others() -> None:
    data = encoded(photo(), "JPEG", progressive=True)
    start = data.index(b"\xff\xda")
    scan = data[start : data.index(b"\xff\xda", start + 2)]
    assert read_jpeg_header(data) is not None
    assert read_jpeg_header(data[:start] + 70 * scan + data[start:]) is None


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_file_has_the_size_that_pillow_finds_or_none(data: st.DataObject) -> None:
    damaged = bytearray(PLAIN)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(2, 700))] = data.draw(st.integers(0, 255))
    found = read_jpeg_header(bytes(damaged))
    if found is not None:
        try:
            image = Image.open(io.BytesIO(damaged))
        except Exception:
            return  # the decoder will find out, too
        assert (image.height, image.width, np.asarray(image.getbands()).size) == found[:3]
