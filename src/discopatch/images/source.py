"""Where images come from: paths, URIs, PIL images, arrays, tensors, shards, and mixtures."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discopatch.errors import ImageError, MissingExtraError, NoImagesError, ParameterError, StoreError
from discopatch.images.files import Readable, check_binary, check_bytes, is_readable, is_seekable, read_object
from discopatch.images.formats import is_collection
from discopatch.images.image import ONE_IMAGE, Limits, NamedImage, Refusal, RefusalReason
from discopatch.images.items import Content, Item, Shard
from discopatch.images.listing import entries_at, is_folder
from discopatch.images.stores import is_uri, without_options

if TYPE_CHECKING:
    import torch

Encoded = bytes | bytearray | memoryview


def list_entries(source: object, limits: Limits) -> Iterator[Item | Shard]:
    """Every image and every shard of the source, in order; shards stay closed, file objects are read.

    A path or pattern without any image raises NoImagesError at once, and a store that cannot be reached StoreError; in
    an iterable it is one refused entry.
    """
    if isinstance(source, str | os.PathLike):
        found = entries_at(os.fspath(source))
        first = next(found)
        match first:
            case Item(content=ImageError(reason=RefusalReason.MISSING) as error):
                raise NoImagesError(error.detail)
        return chain([first], found)
    if is_readable(source):
        check_binary(source)
    elif not isinstance(source, NamedImage | Item | Shard | Iterable | Image.Image) and not _is_tensor(source):
        raise ParameterError(
            f"cannot read images from {type(source).__name__}: give a path, folder, pattern, URI, shard, bytes, "
            "open file, PIL image, array, tensor, or an iterable of these"
        )
    return _from_anything(source, count(), limits)


def check_single(source: object) -> None:
    """ParameterError for a folder, an archive or a table, where one image is to be explained; nothing is read."""
    if isinstance(source, str | os.PathLike):
        name = without_options(os.fspath(source))
        if is_collection(name) or (name.endswith("/") if is_uri(name) else is_folder(Path(name))):
            raise ParameterError(f"{name} is no image: {ONE_IMAGE}")
    elif isinstance(source, Shard):
        raise ParameterError(f"{source.name} is no image: {ONE_IMAGE}")


def held(source: object, limits: Limits) -> object:
    """The same images as a source that can be read twice."""
    if is_readable(source) and not is_seekable(source):
        return list(_from_anything(source, count(), limits))
    if isinstance(source, list | tuple) or (isinstance(source, Iterator) and not is_readable(source)):
        return [held(one, limits) for one in source]
    return source


def count_images(source: object) -> int | None:
    """How many images the source holds, as far as that is known without reading it.

    Shards, stores and iterators hide it.
    """
    if isinstance(source, str | os.PathLike):
        if is_uri(os.fspath(source)):
            return None
        found = 0
        for entry in entries_at(os.fspath(source)):
            if isinstance(entry, Shard):
                return None
            found += 1
        return found
    if isinstance(source, np.ndarray) or _is_tensor(source):
        return len(source) if source.ndim == 4 else 1
    if isinstance(source, NamedImage | Refusal | Encoded | Image.Image | Item) or is_readable(source):
        return 1
    if isinstance(source, Sequence):
        counts = [count_images(one) for one in source]
        return None if None in counts else sum(filter(None, counts))
    return None


def _from_anything(source: object, numbers: "count[int]", limits: Limits) -> Iterator[Item | Shard]:
    if isinstance(source, str | os.PathLike):
        try:
            yield from entries_at(os.fspath(source))
        except (StoreError, MissingExtraError, ParameterError) as error:
            yield Item(without_options(os.fspath(source)), ImageError(RefusalReason.UNREADABLE, str(error)))
    elif isinstance(source, NamedImage):
        yield Item(source.name, source.pixels)
    elif isinstance(source, Refusal):
        yield Item(source.name, ImageError(source.reason, source.detail))
    elif isinstance(source, Item | Shard):
        yield source
    elif isinstance(source, bytes | Image.Image):
        yield _unnamed(source, numbers)
    elif isinstance(source, bytearray | memoryview):
        yield _unnamed(_copied(source, limits), numbers)
    elif is_readable(source):
        yield _from_object(source, numbers, limits)
    elif isinstance(source, np.ndarray):
        yield from (_unnamed(array, numbers) for array in _arrays(source))
    elif _is_tensor(source):
        yield from (_unnamed(array, numbers) for array in _tensor_arrays(source))
    elif isinstance(source, Iterable):
        for one in source:
            yield from _from_anything(one, numbers, limits)
    else:
        detail = f"{type(source).__name__} is no image: give a path, PIL image, array or tensor"
        yield _unnamed(ImageError(RefusalReason.UNSUPPORTED, detail), numbers)


def _unnamed(content: Content, numbers: "count[int]") -> Item:
    return Item(f"image-{next(numbers):06d}", content)


def _copied(source: bytearray | memoryview, limits: Limits) -> bytes | ImageError:
    """The bytes as they are now, since a buffer may be filled again."""
    try:
        check_bytes(memoryview(source).nbytes, limits)
    except ImageError as error:
        return error
    return bytes(source)


def _from_object(source: Readable, numbers: "count[int]", limits: Limits) -> Item:
    """An open file, named after the file or the upload where it has a name."""
    content: bytes | ImageError
    try:
        content = read_object(source, limits)
    except ImageError as error:
        content = error
    for attribute in ("filename", "name"):
        name = getattr(source, attribute, None)
        if isinstance(name, str) and name:
            return Item(name, content)
    return _unnamed(content, numbers)


def _is_tensor(source: object) -> "TypeGuard[torch.Tensor]":
    """Without importing torch: who holds a tensor has imported it already."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.Tensor)


def _arrays(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """(H, W), (H, W, C) or each of (N, H, W, C); copies, since generators may refill one buffer."""
    for one in array if array.ndim == 4 else [array]:
        yield one.copy()


def _tensor_arrays(tensor: "torch.Tensor") -> Iterator[NDArray[Any]]:
    """(H, W), (C, H, W) or each of (N, C, H, W), as arrays with channels last."""
    for one in tensor.detach() if tensor.ndim == 4 else [tensor.detach()]:
        exact = one.float() if one.is_floating_point() else one  # numpy knows no bfloat16
        array = exact.cpu().numpy()
        yield from _arrays(np.moveaxis(array, 0, -1) if array.ndim == 3 else array)
