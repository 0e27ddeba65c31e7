"""A file becomes a picture: every source of images, one transform, and a reason for every refusal."""

from discopatch.images.cache import open_cache
from discopatch.images.cachebuild import CacheFullError
from discopatch.images.open import open
from discopatch.images.picture import ImageRefused, Limits, NoImagesError, Picture, Pixels, Reason, Refusal
from discopatch.images.pixelcache import PixelCache
from discopatch.images.refusals import RefusalReport, accepted, single
from discopatch.images.transform import Transform, TransformMismatch, check_same
from discopatch.images.workers import Processes, Workers

__all__ = [
    "CacheFullError",
    "ImageRefused",
    "Limits",
    "NoImagesError",
    "Picture",
    "PixelCache",
    "Pixels",
    "Processes",
    "Reason",
    "Refusal",
    "RefusalReport",
    "Transform",
    "TransformMismatch",
    "Workers",
    "accepted",
    "check_same",
    "open",
    "open_cache",
    "single",
]
