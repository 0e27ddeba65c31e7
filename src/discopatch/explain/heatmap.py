"""Heatmaps: an anomaly map in colour over its image."""

from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from discopatch.errors import ParameterError
from discopatch.images import Pixels
from discopatch.utils import write_atomically

AnomalyMap = NDArray[np.float32]  # (h, w), higher where a region is more anomalous

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}  # by suffix
_QUALITY = 92  # of lossy formats
LEAST, MOST = "normal", "most anomalous"  # the two ends of the legend

# Inferno at nine equal steps: lightness rises evenly, also for the colour-blind and in grey print.
_INFERNO = np.array(
    [
        (0, 0, 4),
        (33, 12, 74),
        (87, 16, 110),
        (138, 34, 106),
        (188, 55, 84),
        (228, 90, 49),
        (249, 142, 9),
        (249, 203, 53),
        (252, 255, 164),
    ],
    dtype=np.float64,
)
_STEPS = np.linspace(0, 1, len(_INFERNO))
_TRANSPARENT_BELOW = 0.15  # so that no faint veil covers the whole image
_MOST_OPAQUE = 0.78
_INK, _GREY = "#3c4450", (128, 128, 128, 255)


def overlay(pixels: Pixels, anomaly_map: AnomalyMap, *, ceiling: float | None = None) -> Image.Image:
    """The image under its heatmap, in RGB; `ceiling` is the value that gets the full colour, by default the maximum."""
    image = to_image(pixels)
    layer = colour_layer(anomaly_map, size=image.size, ceiling=ceiling)
    return Image.alpha_composite(image.convert("RGBA"), layer).convert("RGB")


def save_heatmap(path: Path, pixels: Pixels, anomaly_map: AnomalyMap, *, ceiling: float | None = None) -> None:
    """Writes the image beside the same image under its heatmap, with a legend below, in the format of the suffix."""
    format = image_format(path)
    sheet = _side_by_side(to_image(pixels), overlay(pixels, anomaly_map, ceiling=ceiling))
    write_atomically(path, lambda partial: sheet.save(partial, format, quality=_QUALITY))


def image_format(path: Path) -> str:
    """The format of a heatmap by the suffix of its path, or ParameterError with the suffixes there are."""
    try:
        return FORMATS[path.suffix.lower()]
    except KeyError:
        raise ParameterError(
            f"{path}: a heatmap is written to a file whose name ends in one of {', '.join(FORMATS)}"
        ) from None


def to_image(pixels: Pixels) -> Image.Image:
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or not pixels.size:
        raise ParameterError(f"{pixels.dtype} of shape {pixels.shape}: give uint8 of shape (H, W, 3)")
    return Image.fromarray(np.ascontiguousarray(pixels))


def colour_layer(anomaly_map: AnomalyMap, *, size: tuple[int, int], ceiling: float | None = None) -> Image.Image:
    """The heatmap alone as RGBA of this width and height: smooth, and transparent where little is anomalous."""
    share = Image.fromarray(_share_of_ceiling(anomaly_map, ceiling).astype(np.float32))
    smooth = np.asarray(share.resize(size, Image.Resampling.BICUBIC), dtype=np.float64)
    return Image.fromarray(to_colours(np.clip(smooth, 0, 1)))  # bicubic overshoots


def to_colours(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Values (...) from 0 to 1 as (..., 4): red, green, blue and opacity."""
    channels = [np.interp(values, _STEPS, _INFERNO[:, channel]) for channel in range(3)]
    visible = np.clip((values - _TRANSPARENT_BELOW) / (1 - _TRANSPARENT_BELOW), 0, 1)
    opacity = 255 * _MOST_OPAQUE * (1 - (1 - visible) ** 2)
    return np.rint(np.stack([*channels, opacity], axis=-1)).astype(np.uint8)


def css_gradient() -> str:
    """The colours from 0 to 1 as a CSS image, for the legend of the page."""
    stops = (f"rgb({red} {green} {blue} / {alpha / 255:.2f})" for red, green, blue, alpha in to_colours(_STEPS))
    return f"linear-gradient(to right, {', '.join(stops)})"


def _share_of_ceiling(anomaly_map: AnomalyMap, ceiling: float | None) -> NDArray[np.float64]:
    """From 0, where the map is not positive, to 1 at the ceiling and above."""
    if anomaly_map.ndim != 2 or not anomaly_map.size:
        raise ParameterError(f"anomaly map of shape {anomaly_map.shape}: give (h, w), at least (1, 1)")
    if not np.isfinite(anomaly_map).all():
        raise ParameterError("anomaly map with values that are not finite: the model that computed it is broken")
    if ceiling is not None and not (isfinite(ceiling) and ceiling > 0):
        raise ParameterError(f"ceiling {ceiling}: must be finite and above 0")
    positive = np.maximum(anomaly_map.astype(np.float64), 0)
    full = positive.max() if ceiling is None else ceiling
    return np.minimum(positive, full) / full if full else positive


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
