"""JPEG files decoded and resized on a GPU, a batch at a time; whatever the GPU does not read is read by Pillow.

A thread reads files ahead, another checks their headers and has them decoded on a stream of its own, and pixels stay
where they are: the network takes them from there, and others fetch them when they ask for them.
"""

import os
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.utils.dlpack
from torch import Tensor

from discopatch.errors import ImageError, ParameterError
from discopatch.images.chunks import ImageBatch, Read, Slot, chunks
from discopatch.images.files import check_bytes
from discopatch.images.headers import check_pixels
from discopatch.images.image import LazyImage, Limits, NamedImage, Pixels, Refusal
from discopatch.images.items import Item
from discopatch.images.jpeg import JpegHeader, read_jpeg_header
from discopatch.images.resample import resize_batch
from discopatch.images.transform import Transform
from discopatch.utils import read_ahead, require

MODULE = "nvidia.nvimgcodec"
BATCHES_AHEAD = 2  # of files that were read, and of images that were decoded
MOST_DECODED = 2**29  # bytes of images of one size that are decoded at once
MOST_KEPT = 2**31  # bytes of buffers that are kept for the next images of the same sizes

# How to turn (B, H, W, C) that is stored in an EXIF orientation: transposed or not, then which sides are reversed.
TURNS: dict[int, tuple[bool, tuple[int, ...]]] = {
    1: (False, ()),
    2: (False, (2,)),
    3: (False, (1, 2)),
    4: (False, (1,)),
    5: (True, ()),
    6: (True, (2,)),
    7: (True, (1, 2)),
    8: (True, (1,)),
}


class JpegDecoder(Protocol):
    """What decodes JPEG files."""

    def decode(self, files: Sequence[bytes], shape: tuple[int, int, int]) -> list[Tensor | None]:
        """Each file as (H, W, C) in uint8 on the device, which is `shape`; none for one that cannot be read.

        They hold until the next call.
        """


class NvImageCodec:
    """nvImageCodec: the JPEG engines of a GPU where it has some, its processors for what these do not read.

    On a CPU, for tests, its libjpeg-turbo. Buffers are used again, as to allocate one takes as long as to fill it.
    """

    def __init__(self, device: torch.device, *, options: str = ":fancy_upsampling=1") -> None:
        require(MODULE, extra="gpu")
        os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")  # a file that cannot be read is told of elsewhere
        from nvidia import nvimgcodec

        self._device, self._kept = device, dict[tuple[int, int, int], list[Any]]()
        if device.type == "cuda":
            number = torch.cuda.current_device() if device.index is None else device.index
            self._decoder = nvimgcodec.Decoder(device_id=number, options=options)
        else:
            only = [nvimgcodec.Backend(nvimgcodec.BackendKind.CPU_ONLY)]
            number = nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY
            self._decoder = nvimgcodec.Decoder(device_id=number, backends=only, options=options)
        self._parameters = {
            channels: nvimgcodec.DecodeParams(apply_exif_orientation=False, color_spec=spec)
            for channels, spec in ((1, nvimgcodec.ColorSpec.GRAY), (3, nvimgcodec.ColorSpec.SRGB))
        }

    def decode(self, files: Sequence[bytes], shape: tuple[int, int, int]) -> list[Tensor | None]:
        kept = self._kept.pop(shape, [])
        known = min(len(files), len(kept))
        found = self._run(files[:known], kept[:known], shape) if known else []
        if known < len(files):
            new = self._run(files[known:], None, shape)
            kept += [image for image in new if image is not None]
            found += new
        self._kept[shape] = kept  # the last that was used
        self._forget()
        stream = self._stream()
        return [None if image is None else self._tensor(image, shape, stream) for image in found]

    def _run(self, files: Sequence[bytes], images: list[Any] | None, shape: tuple[int, int, int]) -> list[Any]:
        parameters = self._parameters[shape[2]]
        found: list[Any] = self._decoder.decode(
            list(files), images=images, params=parameters, cuda_stream=self._stream()
        )
        return found

    def _stream(self) -> int:
        return torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else 0

    def _tensor(self, image: Any, shape: tuple[int, int, int], stream: int) -> Tensor | None:
        """The image's own memory as a tensor; none where the file was of another size than its header says."""
        if tuple(image.shape) != shape:
            return None
        found: Tensor = (
            torch.utils.dlpack.from_dlpack(image.to_dlpack(stream))  # which asks for no stream anew
            if self._device.type == "cuda"
            else torch.from_numpy(np.asarray(image))
        )
        return found

    def _forget(self) -> None:
        sizes = {shape: len(images) * shape[0] * shape[1] * shape[2] for shape, images in self._kept.items()}
        while len(sizes) > 1 and sum(sizes.values()) > MOST_KEPT:
            oldest = next(iter(sizes))
            del sizes[oldest], self._kept[oldest]


@lru_cache(8)
def open_decoder(device: torch.device) -> JpegDecoder:
    """The decoder of a GPU; an error says what is missing."""
    if device.type != "cuda":
        raise ParameterError(
            f"decoder 'nvimgcodec' needs a GPU, and the device is {device.type}: choose a device with CUDA, or another "
            "decoder, which a fitted detector takes if it was compared at fit (also_decoders, --also-decoder)"
        )
    return NvImageCodec(device)


class Group(NamedTuple):
    """JPEG files of one kind, and their places in the batch."""

    places: list[int]
    files: list[bytes]


class Decoded(NamedTuple):
    """A batch, and when it is ready on the GPU."""

    batch: ImageBatch
    ready: torch.cuda.Event | None


def decode_batches(
    items: Iterator[Slot],
    read: Read,
    *,
    transform: Transform,
    limits: Limits,
    size: int,
    workers: int,
    device: torch.device,
) -> Generator[ImageBatch, None, None]:
    """The images of the items, in order, `size` at a time or fewer, their pixels on the device; `read` is Pillow's way.

    Pixels are ready for what the caller's current stream does after a batch was handed out.
    """
    decoder = open_decoder(device)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="discopatch-images")
    reader = GpuReader(decoder, read, transform, limits, device, pool)
    try:
        files = read_ahead(file_batches(items, pool, size, limits), BATCHES_AHEAD)
        for batch, ready in read_ahead(map(reader.decode, files), BATCHES_AHEAD):
            if ready is not None and isinstance(batch.pixels, Tensor):
                current = torch.cuda.current_stream(device)
                current.wait_event(ready)
                batch.pixels.record_stream(current)
            yield batch
    finally:
        pool.shutdown(cancel_futures=True)


def file_batches(
    items: Iterator[Slot], pool: ThreadPoolExecutor, size: int, limits: Limits
) -> Generator[list[Slot], None, None]:
    """The items in chunks, with the bytes of their files."""
    for chunk in chunks(items, size, limits.max_bytes):
        if all(item is None or isinstance(item.content, bytes) for item in chunk):
            yield chunk
        else:
            yield list(pool.map(partial(loaded, limits=limits), chunk))


def loaded(item: Slot, limits: Limits) -> Slot:
    """The item with its file's bytes, or with the reason why they cannot be read."""
    if item is None:
        return None
    try:
        content = item.encoded(limits)
    except ImageError as error:
        return Item(item.name, error)
    return item if content is None else Item(item.name, content)


class GpuReader:
    """Makes batches of images of files, on a stream of its own."""

    def __init__(
        self,
        decoder: JpegDecoder,
        read: Read,
        transform: Transform,
        limits: Limits,
        device: torch.device,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._decoder, self._read, self._transform, self._limits = decoder, read, transform, limits
        self._device, self._pool = device, pool
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._copied = torch.cuda.Event() if device.type == "cuda" else None

    @torch.inference_mode()
    def decode(self, chunk: Sequence[Slot]) -> Decoded:
        """The items of the chunk as a batch, in their order."""
        with torch.cuda.stream(self._stream):  # which does nothing without one
            batch = self._batch([item for item in chunk if item is not None], ends=chunk[-1] is None)
            if self._stream is None:
                return Decoded(batch, None)
            ready = torch.cuda.Event()
            ready.record()
            return Decoded(batch, ready)

    def _batch(self, items: Sequence[Item], *, ends: bool) -> ImageBatch:
        groups, by_pillow = self._grouped(items)
        left: dict[int, Future[NamedImage | Refusal]] = {
            place: self._pool.submit(self._read, items[place]) for place in by_pillow
        }
        squares: list[tuple[list[int], Tensor]] = []
        for header, group in groups.items():
            for part in parts(group, header):
                places, found = self._decoded(header, part)
                left |= {place: self._pool.submit(self._read, items[place]) for place in set(part.places) - set(places)}
                if places:
                    squares.append((places, found))
        others = {place: future.result() for place, future in left.items()}
        images = {place: found.pixels for place, found in others.items() if isinstance(found, NamedImage)}
        if images:
            squares.append((list(images), torch.from_numpy(np.stack(list(images.values()))).to(self._device)))
        pixels, order = joined(squares)
        fetch = Fetch(pixels, self._stream) if pixels is not None else None
        found_items: list[NamedImage | Refusal] = []
        for place, item in enumerate(items):
            other = others.get(place)
            if isinstance(other, Refusal):
                found_items.append(other)
            else:
                assert fetch is not None
                found_items.append(LazyImage(item.name, fetch, order[place]))
        return ImageBatch(found_items, pixels, ends)

    def _grouped(self, items: Sequence[Item]) -> tuple[dict[JpegHeader, Group], list[int]]:
        """Files that can be decoded together, by their headers, and the places of those that are left to Pillow."""
        groups: dict[JpegHeader, Group] = defaultdict(lambda: Group([], []))
        by_pillow = []
        for place, item in enumerate(items):
            header = self._header(item.content)
            if header is None or not isinstance(item.content, bytes):
                by_pillow.append(place)
            else:
                groups[header].places.append(place)
                groups[header].files.append(item.content)
        return groups, by_pillow

    def _header(self, content: object) -> JpegHeader | None:
        """None of what Pillow is to read, or to refuse: all that exceeds a limit, too."""
        if not isinstance(content, bytes) or (header := read_jpeg_header(content)) is None:
            return None
        try:
            check_bytes(len(content), self._limits)
            check_pixels(header.height, header.width, self._limits)
        except ImageError:
            return None
        return header

    def _decoded(self, header: JpegHeader, group: Group) -> tuple[list[int], Tensor]:
        """The places of those that could be decoded, and their squares (n, size, size, 3)."""
        if self._copied is not None:
            self._copied.synchronize()  # the decoder's buffers, from which the last images were copied, are free again
        found = self._decoder.decode(group.files, (header.height, header.width, header.channels))
        read = [(place, image) for place, image in zip(group.places, found, strict=True) if image is not None]
        places = [place for place, _ in read]
        if not read:
            return places, torch.empty(0)
        images = torch.stack([image for _, image in read])
        if self._copied is not None:
            self._copied.record()
        squares = resize_batch(upright(images, header.orientation), self._transform)
        return places, squares.expand(-1, -1, -1, 3)


def parts(group: Group, header: JpegHeader) -> Iterator[Group]:
    """The files in parts that fill no more memory than they may."""
    most = max(1, MOST_DECODED // (header.height * header.width * header.channels))
    for start in range(0, len(group.files), most):
        yield Group(group.places[start : start + most], group.files[start : start + most])


def upright(images: Tensor, orientation: int) -> Tensor:
    """(B, H, W, C) that are stored in an EXIF orientation, as one looks at them."""
    transposed, reversed_sides = TURNS[orientation]
    images = images.transpose(1, 2) if transposed else images
    return images.flip(reversed_sides) if reversed_sides else images


def joined(squares: Sequence[tuple[list[int], Tensor]]) -> tuple[Tensor | None, dict[int, int]]:
    """All images in the order of their places, and the row of each place."""
    if not squares:
        return None, {}
    places = [place for each, _ in squares for place in each]
    pixels = squares[0][1] if len(squares) == 1 else torch.cat([each for _, each in squares])
    order = sorted(range(len(places)), key=places.__getitem__)
    if order != list(range(len(places))):
        index = torch.tensor(order)
        pixels = pixels[index.pin_memory().to(pixels.device, non_blocking=True) if pixels.is_cuda else index]
    return pixels.contiguous(), {places[row]: number for number, row in enumerate(order)}


class Fetch:
    """The images of a batch in ordinary memory, copied when they are first asked for, all at once."""

    def __init__(self, pixels: Tensor, stream: "torch.cuda.Stream | None") -> None:
        self._pixels, self._stream = pixels, stream
        self._host: Pixels | None = None

    def __call__(self) -> Pixels:
        if self._host is None:
            with torch.cuda.stream(self._stream):
                self._host = self._pixels.cpu().numpy()
        return self._host
