"""Files, shards, tables, stores, arrays and tensors become RGB images of one size, or refusals with their reason.

>>> from discopatch.images import list_source, read_images
>>> source = list_source("photos")  # listed once
>>> source.count  # None where shards or an iterator hide it
>>> for image in read_images(source.draw(20_000)):
...     ...  # NamedImage or Refusal
"""

from discopatch.images.cache import PixelCache, cache_root, open_cache
from discopatch.images.image import (
    DEFAULT_LIMITS,
    Limits,
    NamedImage,
    Pixels,
    Refusal,
    RefusalReason,
    RefusalReport,
    accepted,
    check_bytes,
    single,
)
from discopatch.images.items import Item
from discopatch.images.shards import Shard
from discopatch.images.source import Source, list_source
from discopatch.images.transform import Decoder, PixelRange, Transform, check_same_transform
from discopatch.images.workers import DEFAULT_WORKERS, ImageBatch, Processes, Workers, read_batches, read_images

__all__ = [
    "DEFAULT_LIMITS",
    "DEFAULT_WORKERS",
    "Decoder",
    "ImageBatch",
    "Item",
    "Limits",
    "NamedImage",
    "PixelCache",
    "PixelRange",
    "Pixels",
    "Processes",
    "Refusal",
    "RefusalReason",
    "RefusalReport",
    "Shard",
    "Source",
    "Transform",
    "Workers",
    "accepted",
    "cache_root",
    "check_bytes",
    "check_same_transform",
    "list_source",
    "open_cache",
    "read_batches",
    "read_images",
    "single",
]
