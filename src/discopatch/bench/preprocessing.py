"""Preprocessing of benchmark images, step by step, and the protocols that say which set takes which steps.

A low-level detector reacts to the preprocessing as well as to the content. So the pipeline of each set is written down,
enters the digest of the set, and is also applied to normal images, as a control: what is detected there is an effect
of the preprocessing alone.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Self

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile, get_sampling

from discopatch.corruptions import corrupt, describe_corruption
from discopatch.images import Limits, Pixels, Transform
from discopatch.images.decode import decode


class Storage(NamedTuple):
    """How an image file stores its pixels: lossless, or as JPEG of some quality."""

    quality: int = 0  # 0: lossless
    subsampling: int = 2  # of JPEG's colours: 0 for none, 2 for half the resolution

    @classmethod
    def of(cls, data: bytes) -> Self:
        """The storage of an image file; the quality is that of the nearest quantisation table."""
        if not data.startswith(b"\xff\xd8\xff"):
            return cls()
        image = JpegImageFile(io.BytesIO(data))
        total = sum(image.quantization[0])  # of the luminance
        nearest = min(range(1, 101), key=lambda quality: abs(table_sum(quality) - total))
        return cls(nearest, max(get_sampling(image), 0))

    def store(self, pixels: Pixels) -> Pixels:
        """The image (H, W, 3) after it was written to a file and read again."""
        if not self.quality:
            return pixels
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=self.quality, subsampling=self.subsampling)
        return decode(file.getvalue(), Limits(min_side=1))


LOSSLESS = Storage()


@cache
def table_sum(quality: int) -> int:
    """The sum of the luminance table that Pillow's encoder writes."""
    file = io.BytesIO()
    Image.new("L", (8, 8)).save(file, "JPEG", quality=quality)
    file.seek(0)
    return sum(JpegImageFile(file).quantization[0])


class Crop(NamedTuple):
    """Crops the central square."""

    size: int


class Corrupt(NamedTuple):
    """Applies a corruption of ImageNet-C, seeded by the image's index."""

    name: str
    severity: int


class Store(NamedTuple):
    """Writes the image to a file and reads it again, with one storage after the other as the index goes up."""

    storages: tuple[Storage, ...]


Step = Transform | Crop | Corrupt | Store  # a transform resizes to a square
Pipeline = tuple[Step, ...]


def apply_step(step: Step, pixels: Pixels, index: int) -> Pixels:
    """The image after one step; anything random in it depends on the index of the image in its set alone."""
    match step:
        case Transform():
            return step(pixels)
        case Crop(size):
            top, left = ((side - size) // 2 for side in pixels.shape[:2])
            return pixels[top : top + size, left : left + size]
        case Corrupt(name, severity):
            return corrupt(pixels, name, severity, seed=index)
        case Store(storages):
            return storages[index % len(storages)].store(pixels)


def describe_step(step: Step) -> dict[str, Any]:
    """Everything that decides what the step does, for JSON and for digests."""
    match step:
        case Transform():
            return {"resize": step.to_dict()}
        case Corrupt():
            return describe_corruption(step.name, step.severity)
        case _:
            return {type(step).__name__.lower(): step[0]}


IMAGENET_C_CROP: Pipeline = (Transform(size=256, resample="bilinear"), Crop(224))
IMAGENET_C_STORE = Store((Storage(85),))
PAPER_STORE = Store((Storage(92),))  # of the unpublished 256-pixel data set that the authors trained and tested on


@dataclass(frozen=True)
class Protocol:
    """The pipelines of each kind of images.

    Corrupted images are made from test images, with `before` and `after` around the corruption, or lie in files of
    their own, which are another set.
    """

    fit: Pipeline
    normal: Pipeline
    other: Pipeline
    before: Pipeline
    after: Pipeline

    def corrupted(self, name: str, severity: int) -> Pipeline:
        """For test images that are corrupted during the run."""
        return (*self.before, Corrupt(name, severity), *self.after)

    def uncorrupted(self, *, files: bool) -> Pipeline:
        """The control of corrupted images, made here or in `files`: all of their steps but the corruption."""
        if files:
            return (*IMAGENET_C_CROP, IMAGENET_C_STORE, *self.other)
        return (*self.before, *self.after)

    def control(self, sizes: tuple[int, ...], storages: tuple[Storage, ...]) -> Pipeline:
        """The control of another set: what its publisher did to its files, then the steps that these take here."""
        return (*(Transform(size=size) for size in sizes), Store(storages), *self.other)


def matched(transform: Transform, stored: Storage = LOSSLESS) -> Protocol:
    """One transform for all images, and `stored`, the storage that the images to fit on already have, at the end."""
    load: Pipeline = (transform,)
    finish: Pipeline = () if stored == LOSSLESS else (Store((stored,)),)
    whole = (*load, *finish)
    return Protocol(fit=load, normal=whole, other=whole, before=load, after=finish)


def paper(transform: Transform, stored: Storage = LOSSLESS) -> Protocol:
    """The preprocessing of the authors' code: in-distribution images are resized unlike all others.

    They are cropped with a Lanczos filter and stored once more; others are squashed with a bilinear filter, and
    ImageNet-C is cropped at 224 pixels, stored, and enlarged.
    """
    resize = Transform(size=transform.size, resample="lanczos")
    squash = Transform(size=transform.size, fit="squash", resample="bilinear")
    normal = (resize, PAPER_STORE if stored == LOSSLESS else Store((stored,)))
    return Protocol(
        fit=normal if stored == LOSSLESS else (resize,),
        normal=normal,
        other=(squash,),
        before=IMAGENET_C_CROP,
        after=(IMAGENET_C_STORE, squash),
    )


PROTOCOLS: dict[str, Callable[[Transform, Storage], Protocol]] = {"matched": matched, "paper": paper}
