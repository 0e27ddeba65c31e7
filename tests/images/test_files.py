"""Bytes and open files are one image each, and no more of them is read than the limits allow."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discopatch.errors import ParameterError
from discopatch.images import Limits, NamedImage, Refusal, RefusalReason, Transform, count_images, open_cache

from .samples import encoded, names_of, noise, photo, pixels_of, read, refusal_of

PNG = encoded(photo(), "PNG")


class Upload:
    """As web frameworks hand them over: no file, but with a name and a read of its own."""

    def __init__(self, data: bytes, filename: str = "photo.png") -> None:
        self._file, self.filename, self.taken = io.BytesIO(data), filename, 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.taken += len(data)
        return data

    def __iter__(self) -> Any:
        raise AssertionError("an upload is no list of images")


class AsyncUpload:
    filename = "photo.png"

    async def read(self, size: int = -1) -> bytes:
        return PNG


def test_an_open_file_is_one_image(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    with (tmp_path / "a.png").open("rb") as file:
        for source in (file, [file], iter([file])):
            (item,) = read(source)
            assert isinstance(item, NamedImage)
            assert item.name == f"{tmp_path}/a.png"
            assert np.array_equal(item.pixels, photo())
        assert file.tell() == 0


@pytest.mark.parametrize("make", [io.BytesIO, bytes, bytearray, memoryview, Upload])
def test_bytes_in_any_form_are_one_image(make: Any) -> None:
    assert np.array_equal(pixels_of(make(PNG)), photo())
    assert len(read([make(PNG), make(PNG)])) == 2
    assert count_images(make(PNG)) == 1


def test_an_upload_keeps_its_name() -> None:
    assert names_of(read([Upload(PNG, "a.png"), io.BytesIO(PNG)])) == ["a.png", "image-000000"]


def test_a_buffer_that_is_filled_again_gives_every_image() -> None:
    def frames() -> Any:
        buffer = bytearray(len(PNG))
        for level in range(3):
            data = encoded(np.full((40, 40, 3), level, np.uint8), "PNG")
            buffer[:] = data
            yield buffer

    levels = [item.pixels[0, 0, 0] for item in read(frames()) if isinstance(item, NamedImage)]
    assert levels == [0, 1, 2]


def test_a_file_opened_as_text_says_how_to_open_it(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    with (tmp_path / "a.png").open(encoding="latin1") as file:
        with pytest.raises(ParameterError, match="'rb'"):
            read(file)
        refusal = refusal_of([file])
    assert refusal.reason is RefusalReason.UNSUPPORTED
    assert "'rb'" in refusal.detail
    assert "'rb'" in refusal_of([io.StringIO("text")]).detail


def test_an_upload_that_is_read_asynchronously_says_what_to_give() -> None:
    refusal = refusal_of(AsyncUpload())
    assert refusal.reason is RefusalReason.UNSUPPORTED
    assert "upload.file" in refusal.detail


def test_an_object_that_fails_is_one_refusal() -> None:
    closed = io.BytesIO(PNG)
    closed.close()
    first, second = read([closed, PNG])
    assert isinstance(first, Refusal)
    assert first.reason is RefusalReason.UNREADABLE
    assert isinstance(second, NamedImage)


def test_no_more_is_read_than_the_limit_and_one_byte() -> None:
    upload = Upload(bytes(10_000_000))
    refusal = refusal_of(upload, Limits(max_bytes=2_000_000))
    assert refusal.reason is RefusalReason.TOO_LARGE
    assert upload.taken == 2_000_001
    for source in (bytearray(1001), memoryview(bytes(1001)), bytes(1001), io.BytesIO(bytes(1001))):
        assert refusal_of(source, Limits(max_bytes=1000)).reason is RefusalReason.TOO_LARGE


def test_a_file_that_grows_while_it_is_read_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(PNG + bytes(5_000_000))
    status = os.stat_result((0o100644, 0, 0, 1, 0, 0, len(PNG), 0, 0, 0))
    monkeypatch.setattr(os, "fstat", lambda descriptor: status)
    assert refusal_of([path], Limits(max_bytes=len(PNG))).reason is RefusalReason.TOO_LARGE


def test_a_sparse_file_of_900_mb_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "a.jpg").open("wb") as file:
        file.write(encoded(photo(), "JPEG"))
        file.truncate(900_000_000)
    refusal = refusal_of(tmp_path)
    assert refusal.reason is RefusalReason.TOO_LARGE
    assert "max_bytes (--max-bytes)" in refusal.detail


def test_an_uncompressed_image_of_the_most_pixels_is_not_much_over_the_most_bytes() -> None:
    assert abs(Limits().max_pixels * 3 - Limits().max_bytes) < 10


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "10"])
def test_a_senseless_limit_is_named(limit: Any) -> None:
    with pytest.raises(ParameterError, match="max_bytes"):
        Limits(max_bytes=limit)


def test_open_files_are_cached(tmp_path: Path) -> None:
    images = [noise(40, 40, seed=number) for number in range(3)]
    files = [Upload(encoded(images[0], "PNG")), io.BytesIO(encoded(images[1], "PNG")), encoded(images[2], "PNG")]
    cache = open_cache(files, Transform(40), tmp_path)
    assert np.array_equal(cache.pixels, np.stack(images))
    assert len(open_cache(io.BytesIO(PNG), Transform(32), tmp_path).names) == 1
    assert len(open_cache(Upload(PNG), Transform(32), tmp_path).names) == 1
