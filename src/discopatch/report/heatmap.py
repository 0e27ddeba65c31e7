"""Where an image differs: its heat laid over the picture."""

from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from discopatch.files import write_atomically
from discopatch.images.picture import Pixels
from discopatch.report.colours import heat_colours

Heat = NDArray[np.float32]  # (h, w); how strange each part of the picture is

LITTLE, MOST = "as usual", "strangest region"
_INK, _GREY = "#3c4450", (128, 128, 128, 255)


def overlay(pixels: Pixels, heat: Heat, *, ceiling: float | None = None) -> Image.Image:
    """The picture with its heat over it; `ceiling` is the heat that gets the full colour, by default its maximum."""
    layer = heat_layer(heat, size=picture_of(pixels).size, ceiling=ceiling)
    return Image.alpha_composite(picture_of(pixels).convert("RGBA"), layer).convert("RGB")


def save_heatmap(path: Path, pixels: Pixels, heat: Heat, *, ceiling: float | None = None) -> None:
    """A PNG of the picture beside the same picture with its heat, and a legend below."""
    sheet = _side_by_side(picture_of(pixels), overlay(pixels, heat, ceiling=ceiling))
    write_atomically(path, lambda beside: sheet.save(beside, "PNG"))


def picture_of(pixels: Pixels) -> Image.Image:
    """The pixels as Pillow's image; anything but RGB of 8 bits is refused."""
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or not pixels.size:
        raise ValueError(f"{pixels.dtype} of shape {pixels.shape}: give uint8 of shape (H, W, 3)")
    return Image.fromarray(np.ascontiguousarray(pixels))


def heat_layer(heat: Heat, *, size: tuple[int, int], ceiling: float | None = None) -> Image.Image:
    """The heat alone, smooth, of this width and height, in colours that are clear where there is little."""
    share = Image.fromarray(_share_of_ceiling(heat, ceiling).astype(np.float32))
    smooth = np.asarray(share.resize(size, Image.Resampling.BICUBIC), dtype=np.float64)
    return Image.fromarray(heat_colours(np.clip(smooth, 0, 1)))  # bicubic overshoots


def _share_of_ceiling(heat: Heat, ceiling: float | None) -> NDArray[np.float64]:
    """From 0, where there is no heat, to 1 at the ceiling and above."""
    if heat.ndim != 2 or not heat.size:
        raise ValueError(f"heat of shape {heat.shape}: give (h, w), at least (1, 1)")
    if not np.isfinite(heat).all():
        raise ValueError("heat with values that are not finite: the model that made it is broken")
    if ceiling is not None and not (isfinite(ceiling) and ceiling > 0):
        raise ValueError(f"ceiling {ceiling}: must be finite and above 0")
    positive = np.maximum(heat.astype(np.float64), 0)
    full = positive.max() if ceiling is None else ceiling
    return np.minimum(positive, full) / full if full else positive


def _side_by_side(picture: Image.Image, heated: Image.Image) -> Image.Image:
    gap = max(8, picture.width // 32)
    legend = _legend(max(2 * picture.width + gap, 320))
    sheet = Image.new("RGB", (legend.width, picture.height + legend.height), "white")
    left = (sheet.width - 2 * picture.width - gap) // 2
    sheet.paste(picture, (left, 0))
    sheet.paste(heated, (left + picture.width + gap, 0))
    sheet.paste(legend, (0, picture.height))
    return sheet


def _legend(width: int) -> Image.Image:
    """A thin bar of the colours, over grey as over a picture, between its two ends in words."""
    letters = max(12, width // 45)
    font = ImageFont.load_default(size=letters)
    strip = Image.new("RGB", (width, round(letters * 2.4)), "white")
    pen, middle, space = ImageDraw.Draw(strip), strip.height // 2, round(letters * 0.8)
    pen.text((space, middle), LITTLE, fill=_INK, font=font, anchor="lm")
    pen.text((width - space, middle), MOST, fill=_INK, font=font, anchor="rm")
    left, right = round(2 * space + font.getlength(LITTLE)), round(width - 2 * space - font.getlength(MOST))
    strip.paste(_bar(right - left, max(5, round(letters / 2.5))), (left, middle - round(letters / 5)))
    return strip


def _bar(width: int, height: int) -> Image.Image:
    colours = heat_colours(np.tile(np.linspace(0, 1, width), (height, 1)))
    return Image.alpha_composite(Image.new("RGBA", (width, height), _GREY), Image.fromarray(colours)).convert("RGB")
