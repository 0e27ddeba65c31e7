"""Small real images, and short forms of reading one."""

import io
import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import skimage.data
from PIL import Image

from discopatch.images import Limits, NamedImage, Pixels, Refusal, read_images


@cache
def _astronaut() -> Image.Image:
    return Image.fromarray(skimage.data.astronaut())


def photo(height: int = 48, width: int = 64) -> Pixels:
    return np.array(_astronaut().resize((width, height)))


def noise(height: int = 48, width: int = 64, *, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encoded(image: Image.Image | Pixels, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    opened = image if isinstance(image, Image.Image) else Image.fromarray(image)
    opened.save(buffer, kind, **options)
    return buffer.getvalue()


def read(source: object, limits: Limits = Limits()) -> list[NamedImage | Refusal]:  # noqa: B008 - frozen
    return list(read_images(source, workers=1, limits=limits))


def read_one(source: object, limits: Limits = Limits()) -> NamedImage | Refusal:  # noqa: B008 - frozen
    (result,) = read(source, limits)
    return result


def pixels_of(source: object, limits: Limits = Limits()) -> Pixels:  # noqa: B008 - frozen
    result = read_one(source, limits)
    assert isinstance(result, NamedImage), result
    assert result.pixels.dtype == np.uint8
    assert result.pixels.shape[2] == 3
    assert result.pixels.flags.c_contiguous
    assert result.pixels.flags.writeable
    return result.pixels


def refusal_of(source: object, limits: Limits = Limits()) -> Refusal:  # noqa: B008 - frozen
    result = read_one(source, limits)
    assert isinstance(result, Refusal), result
    return result


def names_of(stream: list[NamedImage | Refusal]) -> list[str]:
    return [item.name for item in stream]


def difference(one: Pixels, other: Pixels) -> int:
    """Largest difference of two images, in grey levels."""
    return int(np.abs(one.astype(int) - other.astype(int)).max())


def endless(consumed: list[int]) -> Iterator[Pixels]:
    for number in itertools.count():
        consumed.append(number)
        yield np.full((32, 32, 3), number % 256, np.uint8)


def as_bytes(stream: Iterator[NamedImage | Refusal]) -> list[tuple[str, bytes] | Refusal]:
    return [item if isinstance(item, Refusal) else (item.name, item.pixels.tobytes()) for item in stream]
