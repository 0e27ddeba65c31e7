"""Whatever cannot become a picture is refused with the reason and, where there is one, the remedy."""

import io
import os
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, scalar_dtypes
from numpy.typing import NDArray
from PIL import Image

from discopatch import images
from discopatch.images import Limits, NoImagesError, Picture, Reason, Refusal, RefusalReport, accepted

from .samples import encoded, noise, photo, read, read_one, refusal_of

KINDS = ["JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF"]


def png_that_claims(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_truncated_files_are_refused_as_truncated(kind: str, share: float) -> None:
    data = encoded(noise(80, 80), kind)
    refusal = refusal_of(data[: max(12, int(len(data) * share))])
    assert refusal.reason is Reason.TRUNCATED
    assert "copy it again" in refusal.detail


def test_an_empty_file_is_refused_as_empty(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    assert refusal_of(tmp_path / "a.jpg").reason is Reason.EMPTY


@pytest.mark.parametrize("data", [b"hello", b"%PDF-1.7 ...", b"RIFF\x10\0\0\0WAVEfmt ", b"\0" * 100])
def test_other_files_are_refused_as_not_an_image(data: bytes) -> None:
    refusal = refusal_of(data)
    assert refusal.reason is Reason.NOT_AN_IMAGE
    assert "JPEG" in refusal.detail


def test_a_format_outside_the_six_is_not_an_image() -> None:
    assert refusal_of(encoded(photo(), "PPM")).reason is Reason.NOT_AN_IMAGE


def test_a_missing_entry_of_a_list_is_refused_as_missing(tmp_path: Path) -> None:
    assert refusal_of([tmp_path / "nowhere.jpg"]).reason is Reason.MISSING


def test_a_broken_link_is_refused_as_missing(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").symlink_to(tmp_path / "nowhere.jpg")
    assert refusal_of(tmp_path).reason is Reason.MISSING


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file_is_refused_as_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encoded(photo(), "PNG"))
    path.chmod(0)
    assert refusal_of(path).reason is Reason.UNREADABLE


def test_a_pipe_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jpg")
    assert refusal_of(tmp_path).reason is Reason.UNREADABLE


def test_a_path_that_the_system_rejects_is_refused_as_unreadable() -> None:
    assert refusal_of(["a" * 5000 + ".jpg"]).reason is Reason.UNREADABLE


def test_a_declared_size_beyond_the_limit_is_refused_before_decoding() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refusal = refusal_of(png_that_claims(60_000, 60_000))
    assert refusal.reason is Reason.TOO_LARGE
    assert "max_pixels" in refusal.detail


def test_a_file_of_too_many_bytes_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encoded(photo(), "PNG"))
    os.truncate(path, 2**40)
    refusal = refusal_of(path)
    assert refusal.reason is Reason.TOO_LARGE
    assert "max_bytes" in refusal.detail


@pytest.mark.parametrize(("height", "width"), [(31, 64), (64, 31)])
def test_a_picture_with_a_short_side_is_refused_as_too_small(height: int, width: int) -> None:
    assert refusal_of(encoded(photo(height, width), "PNG")).reason is Reason.TOO_SMALL
    assert isinstance(read_one(photo(height, width), Limits(min_side=31)), Picture)


def test_integers_of_32_bits_are_refused_as_unsupported() -> None:
    image = Image.fromarray(np.full((48, 48), 70_000, np.int32))
    for source in (image, encoded(image, "TIFF")):
        assert refusal_of(source).reason is Reason.UNSUPPORTED


@pytest.mark.parametrize("value", [-0.1, 1.5, 255.0, np.nan, np.inf])
def test_floats_outside_0_and_1_are_refused_as_unsupported(value: float) -> None:
    array = np.full((48, 48), 0.5, np.float32)
    array[3, 4] = value
    for source in (array, Image.fromarray(array), encoded(Image.fromarray(array), "TIFF")):
        refusal = refusal_of(source)
        assert refusal.reason is Reason.UNSUPPORTED
        assert "[0, 1]" in refusal.detail


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint32", "complex64", "S3", "datetime64[s]"])
def test_arrays_whose_range_is_unknown_are_refused_as_unsupported(dtype: str) -> None:
    refusal = refusal_of(np.zeros((48, 48), dtype))
    assert refusal.reason is Reason.UNSUPPORTED
    assert "uint8" in refusal.detail


@pytest.mark.parametrize("shape", [(), (48,), (3, 48, 48), (48, 48, 2), (2, 2, 48, 48, 3)])
def test_arrays_of_odd_shape_are_refused_as_unsupported(shape: tuple[int, ...]) -> None:
    assert refusal_of(np.zeros(shape, np.uint8)).reason is Reason.UNSUPPORTED


def test_what_is_no_image_at_all_is_refused_as_unsupported() -> None:
    assert [item.reason for item in read([3, None]) if isinstance(item, Refusal)] == [Reason.UNSUPPORTED] * 2


def test_a_tiff_of_an_exotic_pixel_type_is_refused_as_unsupported() -> None:
    data = bytearray(encoded(Image.new("F", (48, 48)), "TIFF"))
    bits_per_sample = data.index(struct.pack("<HHI", 258, 3, 1)) + 8
    data[bits_per_sample : bits_per_sample + 2] = struct.pack("<H", 24)
    assert refusal_of(bytes(data)).reason is Reason.UNSUPPORTED


@given(
    st.binary(max_size=300),
    st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"II*\0", b"GIF89a", b"BM"]),
)
@settings(max_examples=200, deadline=None)
def test_random_bytes_never_crash(data: bytes, beginning: bytes) -> None:
    assert isinstance(read_one(beginning + data), Picture | Refusal)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_never_crash(kind: str) -> None:
    whole = encoded(noise(40, 40), kind)
    random = np.random.default_rng(1)
    for _ in range(150):
        data = bytearray(whole)
        for place in random.integers(0, min(len(data), 200), 4):
            data[place] = random.integers(256)
        assert isinstance(read_one(bytes(data), Limits(max_pixels=10**6)), Picture | Refusal)


@given(arrays(scalar_dtypes(), array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6)))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_arrays_of_any_type_and_shape_never_crash(array: NDArray[np.generic]) -> None:
    assert all(isinstance(item, Picture | Refusal) for item in read(array, Limits(min_side=1)))


@given(st.lists(st.text(max_size=20)))
@settings(max_examples=50, deadline=None)
def test_entries_of_any_text_never_crash(names: list[str]) -> None:
    absent = [f"{name}/nowhere*.jpg" for name in names]
    assert len(read(absent)) == len(names)


def test_one_bad_file_among_good_ones_is_one_refusal() -> None:
    stream = read([photo(), b"broken", photo()])
    assert [type(item) for item in stream] == [Picture, Refusal, Picture]


def test_the_report_counts_reasons_and_names_the_first_few() -> None:
    report = RefusalReport()
    stream: list[Picture | Refusal] = [
        *(Picture(str(number), photo()) for number in range(117)),
        Refusal("c.png", Reason.EMPTY, "0 bytes"),
        Refusal("a.jpg", Reason.TRUNCATED, "cut"),
        Refusal("b.jpg", Reason.TRUNCATED, "cut"),
    ]
    assert len(list(accepted(stream, report))) == 117
    assert report
    assert report.count == 3
    assert report.summary() == "3 of 120 images refused: 2 truncated (a.jpg, b.jpg), 1 empty (c.png)"


def test_the_report_stays_small_however_many_are_refused() -> None:
    report = RefusalReport()
    for number in range(10_000):
        report.add(Refusal(f"{number}.jpg", Reason.NOT_AN_IMAGE, "text"))
    assert (
        report.summary() == "10000 of 10000 images refused: 10000 not an image (0.jpg, 1.jpg, 2.jpg, 3.jpg, 4.jpg, ...)"
    )
    assert sum(map(len, report.examples.values())) == 5


def test_a_report_without_refusals_is_false() -> None:
    report = RefusalReport()
    assert len(list(accepted(images.open([photo()]), report))) == 1
    assert not report
    assert report.summary() == "0 of 1 images refused"


def test_a_report_survives_json() -> None:
    report = RefusalReport(accepted=4)
    report.add(Refusal("a", Reason.TOO_SMALL, "1 x 1"))
    assert RefusalReport.from_dict(report.to_dict()) == report


def test_only_when_nothing_is_left_it_is_an_error() -> None:
    with pytest.raises(NoImagesError, match=r"2 of 2 images refused: 1 empty .*1 not an image"):
        list(accepted(images.open([b"", b"text"]), RefusalReport()))


def test_limits_below_1_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Limits(min_side=0)


def test_an_unloadable_pil_image_is_refused_as_truncated() -> None:
    data = encoded(noise(), "JPEG")
    assert refusal_of(Image.open(io.BytesIO(data[: len(data) // 2]))).reason is Reason.TRUNCATED
