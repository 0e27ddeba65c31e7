"""Through which sizes and file formats a set of images went before it reached us.

A low-level detector sees the route as well as the content. So the same route is taken by images that are surely normal:
what is found then is the route's alone.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice
from typing import Self

import numpy as np
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile, get_sampling

from discopatch.images import Limits, Pixels, Transform
from discopatch.images.decode import decode

# Square sizes that a set was brought to, one after the other, before it was stored as it is.
SIZES: dict[str, tuple[int, ...]] = {
    "sketches": (227,),
    "cartoons": (227,),
    "photos-227px": (227,),
    "steel": (200, 416),
}


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


@dataclass(frozen=True)
class Route:
    """Resized with antialiasing to squares of these sizes, then stored."""

    sizes: tuple[int, ...]
    storage: Storage

    def __call__(self, pixels: Pixels) -> Pixels:
        """A picture of any size, as it would have reached us."""
        for size in self.sizes:
            pixels = Transform(size=size)(pixels)
        return self.storage.store(pixels)


def routes_of(name: str, files: Sequence[bytes], images: int, *, seed: int) -> list[Route]:
    """A route for each of so many images: each is stored as some file of that set is, so that all its ways occur."""
    order = np.random.default_rng(seed).permutation(len(files))
    storages = [Storage.of(files[place]) for place in order]
    return [Route(SIZES.get(name, ()), storage) for storage in islice(cycle(storages), images)]


def travel(files: Sequence[bytes], routes: Sequence[Route], transform: Transform) -> Pixels:
    """(images, size, size, 3): each file along its route, then through the transform."""
    return np.stack([transform(route(decode(data, Limits()))) for data, route in zip(files, routes, strict=True)])


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
