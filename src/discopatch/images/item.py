"""An image that is known but not decoded yet."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discopatch.images.decode import from_array, from_bytes, from_image, read_file
from discopatch.images.picture import Limits

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif")

Content = Path | bytes | Image.Image | NDArray[Any] | Exception


@dataclass(frozen=True, slots=True)
class Item:
    """One image that is not decoded yet; an exception takes the place of one that could not be reached."""

    name: str
    content: Content

    def decode(self, limits: Limits) -> Image.Image:
        """The image as RGB, or ImageRefused."""
        match self.content:
            case Path():
                return from_bytes(read_file(self.content, limits), limits)
            case bytes():
                return from_bytes(self.content, limits)
            case Image.Image():
                return from_image(self.content, limits)
            case np.ndarray():
                return from_array(self.content, limits)
            case _:
                raise self.content
