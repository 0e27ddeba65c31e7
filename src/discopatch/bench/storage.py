"""How image files store their pixels: read off a file, and applied to other images."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile, get_sampling

from discopatch.images import Limits, Pixels
from discopatch.images.decode import decode


@dataclass(frozen=True)
class Storage:
    """Lossless, or JPEG of some quality."""

    quality: int | None = None  # None: lossless
    subsampling: int = 2  # of JPEG's colours: 0 for none, 2 for half the resolution

    @classmethod
    def of(cls, data: bytes) -> Self:
        """The storage of an image file; the quality is that whose quantisation table comes closest to the file's."""
        if not data.startswith(b"\xff\xd8\xff"):
            return cls()
        image = JpegImageFile(io.BytesIO(data))
        return cls(nearest_quality(image.quantization[0]), max(get_sampling(image), 0))

    def store(self, pixels: Pixels) -> Pixels:
        """The image (H, W, 3) after it was written to a file and read again."""
        file = io.BytesIO()
        image = Image.fromarray(pixels)
        if self.quality is None:
            image.save(file, "PNG", compress_level=1)
        else:
            image.save(file, "JPEG", quality=self.quality, subsampling=self.subsampling)
        return decode(file.getvalue(), Limits(min_side=1))


LOSSLESS = Storage()


def nearest_quality(table: Sequence[int]) -> int:
    """The JPEG quality whose luminance table has the sum nearest to that of `table`."""
    total = sum(table)
    return min(_table_sums(), key=lambda quality: (abs(_table_sums()[quality] - total), quality))


@cache
def _table_sums() -> dict[int, int]:
    """The sum of the luminance table of each quality, as Pillow's encoder writes it."""
    sums = {}
    for quality in range(1, 101):
        file = io.BytesIO()
        Image.new("L", (8, 8)).save(file, "JPEG", quality=quality)
        file.seek(0)
        sums[quality] = sum(JpegImageFile(file).quantization[0])
    return sums
