"""Bytes and open files are one image each, and no more of them is read than the limits allow."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discopatch.errors import ParameterError
from discopatch.images import NamedImage, Refusal, RefusalReason, list_source

from .samples import encoded, photo, pixels_of, read, refusal_of

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
    assert list_source(make(PNG)).count == 1


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


def test_a_sparse_file_of_900_mb_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "a.jpg").open("wb") as file:
        file.write(encoded(photo(), "JPEG"))
        file.truncate(900_000_000)
    refusal = refusal_of(tmp_path)
    assert refusal.reason is RefusalReason.TOO_LARGE
    assert "max_bytes (--max-bytes)" in refusal.detail
