"""A source of images becomes a stream of pictures: lazy, in order, in constant memory."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import islice
from typing import TypeAlias, TypeVar

from discopatch.images.item import Item
from discopatch.images.picture import ImageRefused, Limits, Picture, Pixels, Refusal
from discopatch.images.sources import entries, images

T = TypeVar("T")
Stream: TypeAlias = Generator[T, None, None]
Read: TypeAlias = Callable[[Item], Picture | Refusal]

DEFAULT_WORKERS = min(8, os.cpu_count() or 1)


def open(
    source: object,
    *,
    transform: Callable[[Pixels], Pixels] | None = None,
    workers: int = DEFAULT_WORKERS,
    skip: int = 0,
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> Stream[Picture | Refusal]:
    """Read every image of `source` as a Picture, or as a Refusal with its reason; one bad file stops nothing.

    `source` is a file, a folder (to its bottom, by name), a pattern such as `photos/**/*.jpg`, a tar shard,
    an encoded image as bytes, a PIL image, an array (H, W), (H, W, C) or (N, H, W, C), a tensor (H, W),
    (C, H, W) or (N, C, H, W), or an iterable of these, even an endless one. The stream is the same for any
    number of `workers`, which decode and transform a few images ahead; `skip` leaves out the first images.

    EXIF orientation is applied, transparency is composited on white, grey of 16 bits is divided by 257, and
    of an animation the first frame is taken. A path that holds no image raises NoImagesError.
    """
    if workers < 1 or skip < 0:
        raise ValueError(f"workers={workers}, skip={skip}: needs at least one worker, and skips no less than 0")
    read = partial(_read, transform=transform, limits=limits)
    return _stream(images(entries(source), limits), read, skip=skip, workers=workers)


def _read(item: Item, transform: Callable[[Pixels], Pixels] | None, limits: Limits) -> Picture | Refusal:
    try:
        pixels = item.decode(limits)
    except ImageRefused as refused:
        return Refusal(item.name, refused.reason, refused.detail)
    return Picture(item.name, pixels if transform is None else transform(pixels))


def _stream(items: Stream[Item], read: Read, *, skip: int, workers: int) -> Stream[Picture | Refusal]:
    with closing(items):
        wanted = islice(items, skip, None)
        yield from map(read, wanted) if workers == 1 else _read_ahead(wanted, read, workers)


def _read_ahead(items: Iterable[Item], read: Read, workers: int) -> Stream[Picture | Refusal]:
    """Decode in threads, which Pillow lets run in parallel, never more than a few images ahead."""
    pending: deque[Future[Picture | Refusal]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="discopatch-images")
    try:
        for item in _errors_in_turn(items):
            pending.append(pool.submit(read, item))
            if len(pending) >= 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _errors_in_turn(items: Iterable[Item]) -> Iterator[Item]:
    """When a source fails, the images before it still come first, as they do with one worker."""
    try:
        yield from items
    except Exception as error:
        yield Item("", error)
