"""Storing gives images the traces that a set's own files have."""

import io

import numpy as np
import pytest
from PIL import Image

from discopatch.bench.preprocessing import LOSSLESS, Storage, nearest_quality
from discopatch.images import Pixels
from discopatch.images.samples import sample_photos


@pytest.fixture(scope="module")
def photo() -> Pixels:
    return sample_photos(["cat"])["cat"]


def encoded(pixels: Pixels, kind: str, **options: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("quality", [10, 50, 75, 92, 95, 100])
@pytest.mark.parametrize("subsampling", [0, 2])
def test_the_quality_of_a_file_is_read_off_its_tables(photo: Pixels, quality: int, subsampling: int) -> None:
    data = encoded(photo, "JPEG", quality=quality, subsampling=subsampling)
    assert Storage.of(data) == Storage(quality, subsampling)


def test_tables_of_no_quality_are_read_as_the_nearest() -> None:
    table = Image.open(io.BytesIO(encoded(np.zeros((8, 8, 3), np.uint8), "JPEG", quality=80))).quantization[0]  # type: ignore[attr-defined]
    assert nearest_quality([*table[:-1], table[-1] + 3]) == 80


def test_png_is_without_loss(photo: Pixels) -> None:
    assert Storage.of(encoded(photo, "PNG")) == LOSSLESS
    assert np.array_equal(LOSSLESS.store(photo), photo)


def test_storing_is_what_pillow_writes(photo: Pixels) -> None:
    expected = np.asarray(Image.open(io.BytesIO(encoded(photo, "JPEG", quality=75))).convert("RGB"))
    assert np.array_equal(Storage(75).store(photo), expected)
