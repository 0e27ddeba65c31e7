"""A source of images becomes a stream of pictures: lazy, in order, in constant memory."""

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import partial
from itertools import islice
from typing import TypeAlias, TypeVar

import numpy as np

from discopatch.images.item import Item
from discopatch.images.picture import ImageRefused, Limits, Picture, Pixels, Refusal
from discopatch.images.sources import entries, images
from discopatch.images.transform import Transform
from discopatch.images.workers import DEFAULT_WORKERS, LOST, Crew, Processes, Workers
from discopatch.streams import behind

T = TypeVar("T")
Stream: TypeAlias = Generator[T, None, None]
Read: TypeAlias = Callable[[Item], Picture | Refusal]


def open(
    source: object,
    *,
    transform: Callable[[Pixels], Pixels] | None = None,
    workers: Workers = DEFAULT_WORKERS,
    skip: int = 0,
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> Stream[Picture | Refusal]:
    """Read every image of `source` as a Picture, or as a Refusal with its reason; one bad file stops nothing.

    `source` is a file, a folder (to its bottom, by name), a pattern such as `photos/**/*.jpg`, a tar shard,
    an encoded image as bytes, a PIL image, an array (H, W), (H, W, C) or (N, H, W, C), a tensor (H, W),
    (C, H, W) or (N, C, H, W), or an iterable of these, even an endless one. The stream is the same for any
    number of `workers`, which decode and transform a few images ahead; `skip` leaves out the first images.
    Workers are threads; on many cores `Processes` are faster.

    EXIF orientation is applied, transparency is composited on white, grey of 16 bits is divided by 257, and
    of an animation the first frame is taken. A path that holds no image raises NoImagesError.
    """
    if (workers.count if isinstance(workers, Processes) else workers) < 1 or skip < 0:
        raise ValueError(f"workers={workers}, skip={skip}: needs at least one worker, and skips no less than 0")
    read = partial(_read, transform=transform, limits=limits)
    return _stream(images(entries(source), limits), read, skip=skip, workers=workers)


def _read(item: Item, transform: Callable[[Pixels], Pixels] | None, limits: Limits) -> Picture | Refusal:
    try:
        image = item.decode(limits)
    except ImageRefused as refused:
        return Refusal(item.name, refused.reason, refused.detail)
    if isinstance(transform, Transform):
        return Picture(item.name, transform.of_image(image))
    pixels = np.array(image)
    return Picture(item.name, pixels if transform is None else transform(pixels))


def _read_part(part: list[Item], read: Read) -> list[Picture | Refusal]:
    return list(map(read, part))


def _stream(items: Stream[Item], read: Read, *, skip: int, workers: Workers) -> Stream[Picture | Refusal]:
    with closing(items):
        wanted = islice(items, skip, None)
        yield from map(read, wanted) if workers == 1 else _read_ahead(wanted, read, Crew.of(workers))


def _read_ahead(items: Iterable[Item], read: Read, crew: Crew) -> Stream[Picture | Refusal]:
    """Never more than a few images ahead."""
    try:
        futures = (crew.pool.submit(_read_part, part, read) for part in _in_parts(items, crew.part))
        for future in behind(futures, 2 * crew.count - 1):
            yield from future.result()
    except BrokenProcessPool as error:
        raise RuntimeError(LOST) from error
    finally:
        crew.pool.shutdown(cancel_futures=True)


def _in_parts(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """When a source fails, the images before it still come first, as they do with one worker."""
    part: list[Item] = []
    failure: list[Item] = []
    try:
        for item in items:
            part.append(item)
            if len(part) == size:
                yield part
                part = []
    except Exception as error:
        failure = [Item("", error)]
    yield from filter(None, (part, failure))
