"""Reads a source of images as a stream, or in batches: lazy, in order, in constant memory, by threads or processes."""

import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from discopatch.errors import ImageError, ParameterError, WorkerError
from discopatch.images.image import DEFAULT_LIMITS, Limits, NamedImage, Pixels, Refusal
from discopatch.images.items import Item
from discopatch.images.source import list_source
from discopatch.images.transform import SCALED, Transform

if TYPE_CHECKING:
    import torch

Made = TypeVar("Made")
T = TypeVar("T")
Slot: TypeAlias = Item | None  # None where a source of several ends
Result: TypeAlias = NamedImage | Refusal | None

DEFAULT_WORKERS = min(8, os.cpu_count() or 1)

_ON_GPU = 32  # images that are decoded at once by `read_images`
_CHUNK = 8  # images of one task of a process


@dataclass(frozen=True, slots=True)
class Processes:
    """A number of processes, for machines with many cores: threads share one lock and stop gaining at about four.

    They start in a second and import the script that starts them: its code must stand below
    `if __name__ == "__main__":`.
    """

    count: int = os.cpu_count() or 1


Workers: TypeAlias = int | Processes  # an int is a number of threads


class ImageBatch(NamedTuple):
    """Images that were read together, and the pixels of those that were not refused."""

    items: list[NamedImage | Refusal]
    pixels: "Pixels | torch.Tensor | None"  # (B, H, W, 3), on a GPU where they were decoded there
    ends: bool  # whether its source has no more; after a full batch this one may be empty


def read_images(
    source: object,
    *,
    transform: Callable[[Pixels], Pixels] | None = None,
    workers: Workers = DEFAULT_WORKERS,
    limits: Limits = DEFAULT_LIMITS,
) -> Generator[NamedImage | Refusal, None, None]:
    """Yields every image of `source` as a NamedImage, or as a Refusal with its reason; one bad file stops nothing.

    `source` is a file, a folder (with all folders below it, by name), a pattern such as `photos/**/*.jpg`, a tar shard,
    a Parquet table (`photos.parquet#column` names the column), a list of names (.txt, .csv), each of these also as the
    URI of a store (s3://, gs://, abfs://, hdfs://), a `Source`, a `Shard`, an encoded image as bytes or as an open
    binary file, a PIL image, an array (H, W), (H, W, C) or (N, H, W, C), a tensor (H, W), (C, H, W) or (N, C, H, W), or
    an iterable of these, even an endless one, or a dataset of torch, of images or (image, label).
    The stream is the same for any number of `workers`, which read, decode and transform a few images ahead. Workers are
    threads; on many cores `Processes` are faster. Images that exceed the `limits` are refused unread.

    EXIF orientation is applied, transparency is composited on white, grey of 16 bits is divided by 257 unless the
    transform has levels, and of an animation the first frame is taken. A path that holds no image raises NoImagesError,
    a store that cannot be reached StoreError.
    """
    if count_of(workers) < 1:
        raise ParameterError(f"workers={workers}: needs at least one worker")
    items = list_source(source).items(limits)
    if isinstance(transform, Transform) and transform.decoder == "nvimgcodec" and transform.levels is None:
        from discopatch.images.gpu_decode import decode_batches

        batches = decode_batches(items, transform, size=_ON_GPU, workers=workers, limits=limits)
        return (item for batch in batches for item in batch.items)
    return _stream(items, transform, workers, limits)  # type: ignore[return-value]  # no ends


def read_batches(
    sources: Iterable[object],
    *,
    transform: Transform,
    size: int,
    workers: Workers = DEFAULT_WORKERS,
    limits: Limits = DEFAULT_LIMITS,
    device: "torch.device | None" = None,
) -> Generator[ImageBatch, None, None]:
    """The images that `read_images` has of one source after another, up to `size` at a time, their pixels together.

    No batch holds images of two sources or of two shapes. Where the transform decodes on a GPU, pixels stay on that
    `device`, or on the current one.
    """
    items = _items_of(sources, limits)
    if transform.decoder == "nvimgcodec" and transform.levels is None:
        from discopatch.images.gpu_decode import decode_batches

        return decode_batches(items, transform, size=size, workers=workers, limits=limits, device=device)
    return _stacked(_stream(items, transform, workers, limits), size)


def count_of(workers: Workers) -> int:
    return workers.count if isinstance(workers, Processes) else workers


def _items_of(sources: Iterable[object], limits: Limits) -> Generator[Slot, None, None]:
    for source in sources:
        yield from list_source(source).items(limits)
        yield None


def _stacked(stream: Generator[Result, None, None], size: int) -> Generator[ImageBatch, None, None]:
    with closing(stream):
        items: list[NamedImage | Refusal] = []
        for item in stream:
            if item is not None:
                items.append(item)
            if item is None or len(items) == size:
                batches = list(of_one_shape(items, lambda each: getattr(each, "pixels", None)))
                for number, batch in enumerate(batches or [[]], 1):
                    pixels = [each.pixels for each in batch if isinstance(each, NamedImage)]
                    ends = item is None and number >= len(batches)
                    yield ImageBatch(batch, np.stack(pixels) if pixels else None, ends)
                items = []


def of_one_shape(items: Iterable[T], image: Callable[[T], "NDArray[Any] | torch.Tensor | None"]) -> Iterator[list[T]]:
    """Successive items whose images have the same shape; an item without image goes with those before it."""
    found: list[T] = []
    shape = None
    for item in items:
        if (pixels := image(item)) is not None:
            if shape not in (None, pixels.shape):
                yield found
                found = []
            shape = pixels.shape
        found.append(item)
    if found:
        yield found


def read_item(item: Item, transform: Callable[[Pixels], Pixels] | None, limits: Limits) -> NamedImage | Refusal:
    """One image through the transform, or the reason why it cannot be read."""
    side, levels = (transform.decoded_side, transform.levels) if isinstance(transform, Transform) else (None, None)
    try:
        image = item.decode(limits, side=side, levels=levels)
    except ImageError as error:
        return Refusal(item.name, error.reason, error.detail)
    if isinstance(transform, Transform):
        before = image.info.get(SCALED)
        size = item.original or (before if isinstance(before, tuple) else (image.height, image.width))
        out_of_range = item.out_of_range or (levels is not None and levels.is_out_of_range(image))
        return NamedImage(item.name, transform.resize(image), size, out_of_range)
    pixels = np.array(image)
    return NamedImage(item.name, pixels if transform is None else transform(pixels))


def _read_chunk(chunk: list[Slot], transform: Callable[[Pixels], Pixels] | None, limits: Limits) -> list[Result]:
    return [None if item is None else read_item(item, transform, limits) for item in chunk]


def chunks(items: Iterable[Slot], size: int, room: int) -> Iterator[list[Slot]]:
    """Up to `size` items at a time, or fewer whose bytes fill an eighth of the room; the end of a source ends a chunk.

    When a source fails, the images before the failure still come first, as with one worker.
    """
    chunk: list[Slot] = []
    failure: list[Slot] = []
    held = 0
    try:
        for item in items:
            chunk.append(item)
            held += item.size if item is not None else 0
            if item is None or len(chunk) == size or held > room // 8:
                yield chunk
                chunk, held = [], 0
    except Exception as error:
        failure = [Item("", error)]
    yield from filter(None, (chunk, failure))


def _stream(
    items: Generator[Slot, None, None],
    transform: Callable[[Pixels], Pixels] | None,
    workers: Workers,
    limits: Limits,
) -> Generator[Result, None, None]:
    """Never more than a few images ahead; of those that come with their bytes, no more than fill `max_bytes`."""
    with closing(items):
        if workers == 1:
            yield from (_read_chunk([item], transform, limits)[0] for item in items)
            return
        count, size = count_of(workers), _CHUNK if isinstance(workers, Processes) else 1
        pool = ProcessPool(count) if isinstance(workers, Processes) else ThreadPoolExecutor(count, "discopatch-images")
        waiting, room = deque[tuple[Future[list[Result]], int]](), limits.max_bytes
        try:
            for chunk in chunks(items, size, room):
                held = sum(item.size for item in chunk if item is not None)
                waiting.append((pool.submit(_read_chunk, chunk, transform, limits), held))
                while len(waiting) >= 2 * count or (len(waiting) > 1 and sum(size for _, size in waiting) > room):
                    yield from waiting.popleft()[0].result()
            for future, _ in waiting:
                yield from future.result()
        except BrokenProcessPool as error:
            raise WorkerError(
                "a process that decodes images has ended: use fewer if memory ran out, or put the code of your script "
                'below `if __name__ == "__main__":`, or use threads'
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


class ProcessPool(ThreadPoolExecutor):
    """A number of processes, started when there is work, each with a thread and a pipe of its own.

    `prepare` is called first in each. The tasks of a process that has ended fail with BrokenProcessPool. Processes end
    with their parent, however that ends. Those of `ProcessPoolExecutor` share one pipe: a process that is killed in the
    midst of an answer would let all others hang.
    """

    def __init__(self, count: int, prepare: Callable[[], object] = int) -> None:
        super().__init__(count, thread_name_prefix="discopatch-processes")
        self._prepare, self._own, self._starting = prepare, threading.local(), threading.Lock()
        self._started: list[tuple[BaseProcess, Connection]] = []

    def submit(self, fn: Callable[..., Made], /, *args: Any, **kwargs: Any) -> Future[Made]:
        return super().submit(self._call, partial(fn, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait, cancel_futures=cancel_futures)
        for _, pipe in self._started:
            pipe.close()
        for process, _ in self._started:
            process.join()
        self._started.clear()

    def _call(self, task: Callable[[], Made]) -> Made:
        try:
            if not hasattr(self._own, "pipe"):
                self._own.pipe = self._start()
            self._own.pipe.send(task)
            found, error = self._own.pipe.recv()
        except (EOFError, OSError) as ended:
            raise BrokenProcessPool("a process has ended") from ended
        if error is not None:
            raise error
        made: Made = found
        return made

    def _start(self) -> Connection:
        """The pipe to a new process, that of the calling thread."""
        context = get_context("spawn")
        near, far = context.Pipe()
        process = context.Process(target=_work, args=(far, self._prepare), daemon=True)
        with far, self._starting:  # closed here, since the pipe ends with the last who holds its other end
            process.start()
            self._started.append((process, near))
        return near


def _work(pipe: Connection, prepare: Callable[[], object]) -> None:
    """Runs each task that comes through the pipe, which ends with the parent; the keyboard is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepare()
    with suppress(EOFError, OSError):
        while True:
            task = pipe.recv()
            try:
                answer = ForkingPickler.dumps((task(), None))
            except Exception as error:  # of the task, or for a result that cannot be pickled
                error.add_note(f"in a process:\n{traceback.format_exc()}")
                answer = ForkingPickler.dumps((None, error))
            pipe.send_bytes(answer)
