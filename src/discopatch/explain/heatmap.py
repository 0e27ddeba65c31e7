"""Heatmaps: an anomaly map in colour over its image."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw, ImageFont

from discopatch.errors import ParameterError
from discopatch.explain.regions import UNUSUAL, find_regions
from discopatch.images import Pixels
from discopatch.utils import write_atomically

AnomalyMap = NDArray[np.float32]  # (h, w), above 1 where a region is unusual

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}  # by suffix
_QUALITY = 92  # of lossy formats
LEAST, MOST = "normal", "most anomalous"  # the two ends of the legend

# Inferno at nine equal steps: lightness rises evenly, also for the colour-blind and in grey print.
_INFERNO = "#000004 #210c4a #57106e #8a226a #bc3754 #e45a31 #f98e09 #f9cb35 #fcffa4"
_COLOURS = np.array([ImageColor.getrgb(colour) for colour in _INFERNO.split()], dtype=np.float64)
_STEPS = np.linspace(0, 1, len(_COLOURS))
_MOST_OPAQUE = 0.78
_INK, _GREY = "#3c4450", (128, 128, 128, 255)
_OUTLINE = ((0, 0, 0, 150), 3), ((255, 255, 255, 255), 1)  # colours and widths, the lower first


def overlay(pixels: Pixels, anomaly_map: AnomalyMap) -> Image.Image:
    """The image under its heatmap, in RGB."""
    image = to_image(pixels)
    layer = colour_layer(anomaly_map, size=image.size)
    return Image.alpha_composite(image.convert("RGBA"), layer).convert("RGB")


def save_heatmap(path: Path, pixels: Pixels, anomaly_map: AnomalyMap) -> None:
    """Writes the image beside the same image under its heatmap, with a legend below, in the format of the suffix."""
    format = image_format(path)
    sheet = _side_by_side(to_image(pixels), overlay(pixels, anomaly_map))
    write_atomically(path, lambda partial: sheet.save(partial, format, quality=_QUALITY))


def image_format(path: Path) -> str:
    """The format of a heatmap by the suffix of its path, or ParameterError with the suffixes there are."""
    if path.suffix.lower() not in FORMATS:
        raise ParameterError(f"{path}: a heatmap is written to a file whose name ends in one of {', '.join(FORMATS)}")
    return FORMATS[path.suffix.lower()]


def to_image(pixels: Pixels) -> Image.Image:
    """The image of an array (H, W, 3) in uint8."""
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or not pixels.size:
        raise ParameterError(f"{pixels.dtype} of shape {pixels.shape}: give uint8 of shape (H, W, 3)")
    return Image.fromarray(np.ascontiguousarray(pixels))


def colour_layer(anomaly_map: AnomalyMap, *, size: tuple[int, int]) -> Image.Image:
    """The heatmap alone, RGBA of this width and height, with the outlines of regions.

    Smooth, full colour at the maximum, transparent up to 1, which normal images reach.
    """
    if anomaly_map.ndim != 2 or not np.isfinite(anomaly_map).all():
        raise ParameterError(f"anomaly map of shape {anomaly_map.shape}: give finite numbers of shape (h, w)")
    unusual = np.maximum(anomaly_map.astype(np.float64) - UNUSUAL, 0)
    share = Image.fromarray((unusual / (unusual.max(initial=0) or 1)).astype(np.float32))
    smooth = np.asarray(share.resize(size, Image.Resampling.BICUBIC), dtype=np.float64)
    layer = Image.fromarray(to_colours(np.clip(smooth, 0, 1)))  # bicubic overshoots
    pen, thickness = ImageDraw.Draw(layer), max(1, round(max(size) / 320))
    contours = [each.contour for each in find_regions(anomaly_map, size[::-1])]
    for colour, width in _OUTLINE:
        for contour in contours:
            pen.line((*contour, *contour[:2]), fill=colour, width=thickness * width, joint="curve")
    return layer


def to_colours(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Values (...) from 0 to 1 as (..., 4): red, green, blue and opacity."""
    channels = [np.interp(values, _STEPS, _COLOURS[:, channel]) for channel in range(3)]
    opacity = 255 * _MOST_OPAQUE * (1 - (1 - np.clip(values, 0, 1)) ** 2)
    return np.rint(np.stack([*channels, opacity], axis=-1)).astype(np.uint8)


def css_gradient() -> str:
    """The colours from 0 to 1 as a CSS image, for the legend of the page."""
    stops = (f"rgb({red} {green} {blue} / {alpha / 255:.2f})" for red, green, blue, alpha in to_colours(_STEPS))
    return f"linear-gradient(to right, {', '.join(stops)})"


def _side_by_side(image: Image.Image, heatmap: Image.Image) -> Image.Image:
    gap = max(8, image.width // 32)
    legend = _legend(max(2 * image.width + gap, 320))
    sheet = Image.new("RGB", (legend.width, image.height + legend.height), "white")
    left = (sheet.width - 2 * image.width - gap) // 2
    sheet.paste(image, (left, 0))
    sheet.paste(heatmap, (left + image.width + gap, 0))
    sheet.paste(legend, (0, image.height))
    return sheet


def _legend(width: int) -> Image.Image:
    """A thin bar of the colours, over grey as over an image, with a label at each end."""
    letters = max(12, width // 45)
    font = ImageFont.load_default(size=letters)
    strip = Image.new("RGB", (width, round(letters * 2.4)), "white")
    pen, middle, space = ImageDraw.Draw(strip), strip.height // 2, round(letters * 0.8)
    pen.text((space, middle), LEAST, fill=_INK, font=font, anchor="lm")
    pen.text((width - space, middle), MOST, fill=_INK, font=font, anchor="rm")
    left, right = round(2 * space + font.getlength(LEAST)), round(width - 2 * space - font.getlength(MOST))
    size = right - left, max(5, round(letters / 2.5))
    colours = Image.fromarray(to_colours(np.tile(np.linspace(0, 1, size[0]), (size[1], 1))))
    bar = Image.alpha_composite(Image.new("RGBA", size, _GREY), colours).convert("RGB")
    strip.paste(bar, (left, middle - round(letters / 5)))
    return strip
