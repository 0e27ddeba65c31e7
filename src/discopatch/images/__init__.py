"""Files, shards, tables, stores, arrays and tensors become RGB images of one size, or refusals with their reason."""

from discopatch.images.cache import PixelCache, cache_root, find_cache, open_cache
from discopatch.images.chunks import ImageBatch
from discopatch.images.image import (
    DEFAULT_LIMITS,
    Limits,
    NamedImage,
    Pixels,
    Refusal,
    RefusalReason,
    RefusalReport,
    accepted,
    single,
)
from discopatch.images.source import check_single, count_images
from discopatch.images.tar_index import ShardIndex, open_index, tar_shards
from discopatch.images.transform import Decoder, PixelRange, Transform, check_same_transform
from discopatch.images.workers import DEFAULT_WORKERS, Processes, Workers, read_batches, read_images

__all__ = [
    "DEFAULT_LIMITS",
    "DEFAULT_WORKERS",
    "Decoder",
    "ImageBatch",
    "Limits",
    "NamedImage",
    "PixelCache",
    "PixelRange",
    "Pixels",
    "Processes",
    "Refusal",
    "RefusalReason",
    "RefusalReport",
    "ShardIndex",
    "Transform",
    "Workers",
    "accepted",
    "cache_root",
    "check_same_transform",
    "check_single",
    "count_images",
    "find_cache",
    "open_cache",
    "open_index",
    "read_batches",
    "read_images",
    "single",
    "tar_shards",
]
