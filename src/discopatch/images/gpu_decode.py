"""JPEG files decoded and resized on a GPU, a batch at a time; files that the GPU does not decode are read by Pillow.

One thread reads files ahead, another has them decoded on a CUDA stream of its own, and pixels stay on the GPU.
"""

import io
import os
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.utils.dlpack
from PIL import ExifTags
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor

from discopatch.errors import ImageError, ParameterError
from discopatch.images.decode import check_scans
from discopatch.images.image import Limits, NamedImage, Pixels, Refusal, check_pixels
from discopatch.images.items import Item
from discopatch.images.tensors import resize_batch
from discopatch.images.transform import Transform
from discopatch.images.workers import ImageBatch, Slot, Workers, chunks, count_of, of_one_shape, read_item
from discopatch.utils import read_ahead, require

MODULE = "nvidia.nvimgcodec"
BATCHES_AHEAD = 2  # of files that were read, and of images that were decoded
MOST_DECODED = 2**29  # bytes of images of one size that are decoded at once
MOST_KEPT = 2**31  # bytes of buffers that are kept for the next images of the same sizes

# The sides of (B, H, W, C) that are reversed for the EXIF orientations 1 to 4 and, after a transposition, 5 to 8.
REVERSED = ((), (2,), (1, 2), (1,))


class JpegHeader(NamedTuple):
    """Size, channels (1 or 3), and the EXIF orientation (1 to 8) in which the image is stored."""

    height: int
    width: int
    channels: int
    orientation: int

    @property
    def upright_size(self) -> tuple[int, int]:
        """Height and width as the image is shown."""
        return (self.width, self.height) if self.orientation > 4 else (self.height, self.width)


def read_jpeg_header(data: bytes) -> JpegHeader | None:
    """The header of a whole JPEG file in grey or YCbCr of 8 bits; None for any other file, left to Pillow."""
    if not data.startswith(b"\xff\xd8\xff") or not data.endswith(b"\xff\xd9"):
        return None
    try:
        image = JpegImageFile(io.BytesIO(data))
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged files raise any exception; Pillow's own reading gives the reason
        return None
    if image.info.get("progressive"):
        check_scans(data)
    is_plain = image.mode in ("L", "RGB") and image.info.get("adobe_transform", 1) == 1
    if not is_plain or orientation not in range(1, 9) or [layer[0] for layer in image.layer] == [*b"RGB"]:
        return None
    return JpegHeader(image.height, image.width, len(image.mode), orientation)


LoadedFile: TypeAlias = tuple[Item, JpegHeader | None]  # with its bytes; the header if the GPU decodes it


class NvImageCodec:
    """nvImageCodec: the JPEG engines of a GPU where it has some, and its processors for other files.

    Buffers are used again: allocating one takes as long as filling it.
    """

    def __init__(self, device: torch.device) -> None:
        require(MODULE, extra="gpu")
        os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")  # refusals name the files that cannot be read
        from nvidia import nvimgcodec

        self._device, self._kept = device, dict[tuple[int, int, int], list[Any]]()
        number = torch.cuda.current_device() if device.index is None else device.index
        self._decoder = nvimgcodec.Decoder(device_id=number, options=":fancy_upsampling=1")
        self._parameters = {
            channels: nvimgcodec.DecodeParams(apply_exif_orientation=False, color_spec=spec)
            for channels, spec in ((1, nvimgcodec.ColorSpec.GRAY), (3, nvimgcodec.ColorSpec.SRGB))
        }

    def decode(self, files: Sequence[bytes], shape: tuple[int, int, int]) -> list[Tensor | None]:
        """Each file as (H, W, C) = `shape` in uint8 on the GPU, or None; they are valid until the next call."""
        stream = torch.cuda.current_stream(self._device).cuda_stream
        run = partial(self._decoder.decode, params=self._parameters[shape[2]], cuda_stream=stream)
        kept = self._kept.pop(shape, [])
        known = min(len(files), len(kept))
        found: list[Any] = list(run(list(files[:known]), images=kept[:known])) if known else []
        if known < len(files):
            new = run(list(files[known:]), images=None)
            kept += [image for image in new if image is not None]
            found += new
        self._kept[shape] = kept  # the last that was used
        sizes = {shape: len(images) * shape[0] * shape[1] * shape[2] for shape, images in self._kept.items()}
        while len(sizes) > 1 and sum(sizes.values()) > MOST_KEPT:
            oldest = next(iter(sizes))
            del sizes[oldest], self._kept[oldest]
        return [
            torch.utils.dlpack.from_dlpack(image.to_dlpack(stream))  # the image's own memory
            if image is not None and tuple(image.shape) == shape
            else None
            for image in found
        ]


@lru_cache(8)
def open_decoder(device: torch.device) -> NvImageCodec:
    """The decoder of a GPU; an error says what is missing."""
    if device.type != "cuda":
        raise ParameterError(f"decoder 'nvimgcodec' needs a GPU, not {device.type}: choose CUDA, or another decoder")
    return NvImageCodec(device)


def decode_batches(
    items: Generator[Slot, None, None],
    transform: Transform,
    *,
    limits: Limits,
    size: int,
    workers: Workers,
    device: torch.device | None = None,
) -> Generator[ImageBatch, None, None]:
    """The images of the items in order, up to `size` at a time, their pixels on the device.

    Pixels are ready for all that the caller's current stream does after a batch was handed out.
    """
    if device is None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pool = ThreadPoolExecutor(count_of(workers), "discopatch-images")
    with closing(items):
        try:
            reader = GpuReader(transform, limits, device, pool)
            files = (
                list(pool.map(partial(load, limits=limits), chunk)) for chunk in chunks(items, size, limits.max_bytes)
            )
            for batches, ready in read_ahead(map(reader.decode, read_ahead(files, BATCHES_AHEAD)), BATCHES_AHEAD):
                for batch in batches:
                    if ready is not None and isinstance(batch.pixels, Tensor):
                        current = torch.cuda.current_stream(device)
                        current.wait_event(ready)
                        batch.pixels.record_stream(current)
                    yield batch
        finally:
            pool.shutdown(cancel_futures=True)


def load(item: Slot, limits: Limits) -> LoadedFile | None:
    """Reads the file; the item holds the reason where that fails."""
    if item is None:
        return None
    try:
        content = item.encoded(limits)
        header = None if content is None else read_jpeg_header(content)
        if header is not None:
            check_pixels(header.height, header.width, limits)
    except ImageError as error:
        return Item(item.name, error), None
    return item if content is None else Item(item.name, content), header


class GpuReader:
    """Makes batches of images of files, on a CUDA stream of its own."""

    def __init__(self, transform: Transform, limits: Limits, device: torch.device, pool: ThreadPoolExecutor) -> None:
        self._decoder, self._device = open_decoder(device), device
        self._transform, self._limits, self._pool = transform, limits, pool
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._copied = torch.cuda.Event() if device.type == "cuda" else None

    @torch.inference_mode()
    def decode(self, chunk: Sequence[LoadedFile | None]) -> tuple[list[ImageBatch], torch.cuda.Event | None]:
        """The files of the chunk in their order, in batches of one shape, and the event after which they are ready."""
        with torch.cuda.stream(self._stream):  # no effect without one
            batches = self._batches([file for file in chunk if file is not None], ends=chunk[-1] is None)
            if self._stream is None:
                return batches, None
            ready = torch.cuda.Event()
            ready.record()
            return batches, ready

    def _by_pillow(self, item: Item) -> Future[NamedImage | Refusal]:
        return self._pool.submit(read_item, item, self._transform, self._limits)

    def _batches(self, files: Sequence[LoadedFile], *, ends: bool) -> list[ImageBatch]:
        groups: dict[JpegHeader, list[int]] = defaultdict(list)
        others: dict[int, Future[NamedImage | Refusal]] = {}
        for place, (item, header) in enumerate(files):
            if header is None:
                others[place] = self._by_pillow(item)
            else:
                groups[header].append(place)
        images: dict[int, Tensor] = {}  # (H, W, 3) by place
        for header, places in groups.items():
            most = max(1, MOST_DECODED // (header.height * header.width * header.channels))
            for start in range(0, len(places), most):
                part = places[start : start + most]
                images |= self._decoded(header, part, [files[place][0].content for place in part])
        unread = {*range(len(files))} - images.keys() - others.keys()
        others |= {place: self._by_pillow(files[place][0]) for place in unread}
        found = {place: future.result() for place, future in others.items()}
        sizes = {place: header.upright_size for header, places in groups.items() for place in places}
        for place, read in found.items():
            if isinstance(read, NamedImage):
                images[place], sizes[place] = torch.from_numpy(read.pixels).to(self._device), read.size
        batches = []
        for alike in of_one_shape(range(len(files)), images.get):
            rows = [place for place in alike if place in images]
            pixels = torch.stack([images[place] for place in rows]) if rows else None
            if pixels is not None:
                fetch = lru_cache(1)(partial(fetch_pixels, pixels, self._stream))
                for row, place in enumerate(rows):
                    found[place] = LazyImage(files[place][0].name, sizes[place], fetch, row)
            batches.append(ImageBatch([found[place] for place in alike], pixels, ends=False))
        return [*batches[:-1], batches[-1]._replace(ends=ends)] if batches else [ImageBatch([], None, ends)]

    def _decoded(self, header: JpegHeader, places: list[int], files: Sequence[Any]) -> dict[int, Tensor]:
        """The images after the transform of the files that could be decoded, by place."""
        if self._copied is not None:
            self._copied.synchronize()  # the decoder's buffers are free again
        found = self._decoder.decode(files, (header.height, header.width, header.channels))
        read = {place: image for place, image in zip(places, found, strict=True) if image is not None}
        if not read:
            return {}
        images = torch.stack(list(read.values()))
        if self._copied is not None:
            self._copied.record()
        resized = resize_batch(upright(images, header.orientation), self._transform).expand(-1, -1, -1, 3)
        return dict(zip(read, resized, strict=True))


def upright(images: Tensor, orientation: int) -> Tensor:
    """(B, H, W, C) of an EXIF orientation, turned upright."""
    images = images.transpose(1, 2) if orientation > 4 else images
    sides = REVERSED[(orientation - 1) % 4]
    return images.flip(sides) if sides else images


def fetch_pixels(pixels: Tensor, stream: "torch.cuda.Stream | None") -> Pixels:
    with torch.cuda.stream(stream):
        return pixels.cpu().numpy()


class LazyImage(NamedImage):
    """An image that is still on the GPU where it was decoded: its pixels are copied when they are asked for."""

    __slots__ = ("_fetch", "_row")
    _fetch: Callable[[], Pixels]
    _row: int

    def __init__(self, name: str, size: tuple[int, int], fetch: Callable[[], Pixels], row: int) -> None:
        """`fetch` gives the images of a batch, of which this one has the number `row`."""
        fixed = ("name", name), ("original", size), ("out_of_range", False)
        for key, value in (*fixed, ("_fetch", fetch), ("_row", row)):
            object.__setattr__(self, key, value)

    @property
    def pixels(self) -> Pixels:
        found: Pixels = self._fetch()[self._row]
        return found
