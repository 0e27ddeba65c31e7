"""What a JPEG file says of itself before its pixels, for decoders that do not say it themselves."""

import struct
from typing import NamedTuple

from discopatch.images.headers import MAX_SCANS, orientation_of

_START, _END = b"\xff\xd8\xff", b"\xff\xd9"
_BASELINE, _EXTENDED, _PROGRESSIVE = 0xC0, 0xC1, 0xC2
_OTHER_FRAMES = {*range(0xC3, 0xD0)} - {0xC4, 0xC8, 0xCC}  # lossless, hierarchical and arithmetic ones
_SCAN, _APP1, _APP14 = 0xDA, 0xE1, 0xEE
_EXIF, _ADOBE = b"Exif\0\0", b"Adobe"
_RGB_IDS = b"RGB"


class JpegHeader(NamedTuple):
    """Size, channels (1 or 3), and the EXIF orientation (1 to 8) in which the image is stored."""

    height: int
    width: int
    channels: int
    orientation: int


def read_jpeg_header(data: bytes) -> JpegHeader | None:
    """The header of a plain JPEG file in grey or YCbCr of 8 bits; none of a file that is anything else, or unusual.

    What is unusual may be whole or not: those who get none leave the file to a decoder that tells. That goes for files
    that do not end where their image does, too, as those that are cut short.
    """
    if not data.startswith(_START) or not data.endswith(_END):
        return None
    place, orientation, frame, progressive = 2, 1, None, False
    try:
        while True:
            fill, marker, length = struct.unpack_from(">BBH", data, place)
            if fill != 0xFF or length < 2:
                return None
            body, place = place + 4, place + 2 + length
            if marker == _SCAN:
                break
            if marker in (_BASELINE, _EXTENDED, _PROGRESSIVE):
                if frame is not None:
                    return None
                frame, progressive = data[body:place], marker == _PROGRESSIVE
            elif marker in _OTHER_FRAMES:
                return None
            elif marker == _APP14 and data.startswith(_ADOBE, body):
                if data[body + 11] != 1:  # no YCbCr
                    return None
            elif marker == _APP1:
                found = _orientation(data[body:place], before=orientation)
                if found is None:
                    return None
                orientation = found
            elif not 0xC4 <= marker <= 0xFE or 0xD0 <= marker <= 0xD9:
                return None
    except (struct.error, IndexError):
        return None
    if frame is None or (progressive and data.count(b"\xff\xda") > MAX_SCANS):
        return None
    precision, height, width, channels = struct.unpack_from(">BHHB", frame) if len(frame) >= 6 else (0, 0, 0, 0)
    if precision != 8 or channels not in (1, 3) or not height or not width or frame[6::3][:3] == _RGB_IDS:
        return None
    return JpegHeader(height, width, channels, orientation)


def _orientation(segment: bytes, *, before: int) -> int | None:
    """The orientation after a segment of metadata; none where two could contradict each other."""
    if segment.startswith(_EXIF):
        return orientation_of(segment) if before == 1 else None
    return None if b"Orientation" in segment else before  # XMP may have one, too
