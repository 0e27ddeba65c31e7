"""How files hold their pixels, read off them, and done again to others."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self

import numpy as np
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile, get_sampling

from discopatch.images import Limits, Pixels
from discopatch.images.decode import decode


@dataclass(frozen=True)
class Storage:
    """How a file holds its pixels: without loss, or as JPEG of some quality."""

    quality: int | None = None  # none: without loss
    subsampling: int = 2  # of JPEG's colours: 0 for none, 2 for half the resolution

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Read off a file; the quality is that of the tables which come closest to its own."""
        if not data.startswith(b"\xff\xd8\xff"):
            return cls()
        image = JpegImageFile(io.BytesIO(data))
        return cls(nearest_quality(image.quantization[0]), max(get_sampling(image), 0))

    def store(self, pixels: Pixels) -> Pixels:
        """Written and read again."""
        file = io.BytesIO()
        image = Image.fromarray(pixels)
        if self.quality is None:
            image.save(file, "PNG", compress_level=1)
        else:
            image.save(file, "JPEG", quality=self.quality, subsampling=self.subsampling)
        return decode(file.getvalue(), Limits(min_side=1))

    def store_all(self, pictures: Pixels) -> Pixels:
        """(N, H, W, 3) -> the same, each written and read again."""
        return pictures if self.quality is None else np.stack([self.store(pixels) for pixels in pictures])


LOSSLESS = Storage()


def nearest_quality(table: Sequence[int]) -> int:
    """The quality whose luminance table sums nearest to this one's."""
    total = sum(table)
    return min(table_sums(), key=lambda quality: (abs(table_sums()[quality] - total), quality))


@cache
def table_sums() -> dict[int, int]:
    """By quality, as Pillow's encoder makes them."""
    found = {}
    for quality in range(1, 101):
        file = io.BytesIO()
        Image.new("L", (8, 8)).save(file, "JPEG", quality=quality)
        file.seek(0)
        found[quality] = sum(JpegImageFile(file).quantization[0])
    return found
