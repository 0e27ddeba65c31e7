"""Where the time of an image goes, decode, transform and model apart, and what faster ways to decode do to its score.

python benchmarks/decode_speed.py                          # mosaics of sample photos as JPEG files
python benchmarks/decode_speed.py --side 2048 --weights natural-v1

A way to decode may replace ours only where scores stay within a thousandth of the calibration scores' spread, as an
exported model has to. simplejpeg is tried where it is installed.
"""

import io
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Annotated

import numpy as np
import typer
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from rich.console import Console
from rich.table import Table

from discopatch import Detector
from discopatch.images import Limits, Picture, Pixels, Transform
from discopatch.images.decode import from_bytes
from discopatch.images.samples import PHOTOS, crops, sample_photos

Way = Callable[[bytes], Pixels]  # a file -> the square that the model sees
TILE = 128


def main(
    side: Annotated[int, typer.Option(help="Of the JPEG files, in pixels.")] = 1024,
    files: Annotated[int, typer.Option(help="How many.")] = 40,
    normal: Annotated[int, typer.Option(help="Pictures to fit on.")] = 160,
    quality: Annotated[int, typer.Option(help="Of the JPEG files.")] = 92,
    weights: Annotated[str, typer.Option(help="Released weights by name.")] = "natural-v1",
    repeats: Annotated[int, typer.Option(help="Of every file; the median counts.")] = 3,
) -> None:
    """Prints two tables: milliseconds by stage, and by way to decode with the difference in scores."""
    pictures = mosaics(normal + files, side)
    jpegs = [encoded(pixels, quality) for pixels in pictures]
    detector = Detector(weights, false_alarm_rate=0.05, device="cpu").fit(jpegs[:normal])
    spread = float(np.std(detector.fitted.calibration))
    transform, held_out = detector.loaded_weights.transform, jpegs[normal:]
    decoded = [from_bytes(jpeg, Limits()) for jpeg in held_out]
    squares = [transform.of_image(image) for image in decoded]
    reference = scores(detector, squares)

    stages = Table("stage", "ms an image", title=f"JPEG of {side} x {side}, quality {quality}; {weights}, CPU")
    stages.add_row("decode", f"{each(lambda jpeg: from_bytes(jpeg, Limits()), held_out, repeats):.1f}")
    stages.add_row("transform", f"{each(transform.of_image, decoded, repeats):.1f}")
    stages.add_row("model and head", f"{each(lambda square: scores(detector, [square]), squares, repeats):.1f}")
    stages.add_row("all, two threads decode ahead", f"{1e3 * seconds(lambda: detector.predict(held_out)) / files:.1f}")
    ways = Table("file to square", "ms an image", "greatest difference of scores, in spreads", "pixels equal")
    for name, way in all_ways(transform).items():
        found = [way(jpeg) for jpeg in held_out]
        apart = np.abs(scores(detector, found) - reference).max() / spread
        same = all(map(np.array_equal, found, squares))
        ways.add_row(name, f"{each(way, held_out, repeats):.1f}", f"{apart:.3g}", "yes" if same else "no")
    console = Console()
    console.print(stages)
    console.print(ways)


def mosaics(count: int, side: int) -> list[Pixels]:
    """Squares of tiles of real photos, so that there is detail at every size."""
    across = -(-side // TILE)
    tiles = crops(sample_photos(PHOTOS), -(-count * across**2 // len(PHOTOS)), size=TILE, seed=0)
    order = np.random.default_rng(0).permutation(len(tiles))[: count * across**2]
    grid = np.stack([tiles[place].pixels for place in order]).reshape(count, across, across, TILE, TILE, 3)
    whole = grid.transpose(0, 1, 3, 2, 4, 5).reshape(count, across * TILE, across * TILE, 3)
    return list(whole[:, :side, :side])


def encoded(pixels: Pixels, quality: int) -> bytes:
    """As a JPEG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return file.getvalue()


def all_ways(transform: Transform) -> dict[str, Way]:
    """Ours, Pillow's draft mode, and simplejpeg's two where there is one."""
    size = transform.size

    def ours(jpeg: bytes) -> Pixels:
        return transform.of_image(from_bytes(jpeg, Limits()))

    def draft(jpeg: bytes) -> Pixels:
        image = JpegImageFile(io.BytesIO(jpeg))
        image.draft("RGB", (size, size))
        return transform.of_image(image.convert("RGB"))

    found: dict[str, Way] = {"Pillow (ours)": ours, "Pillow, draft mode": draft}
    try:
        from simplejpeg import decode_jpeg
    except ImportError:
        return found

    def whole(jpeg: bytes) -> Pixels:
        return transform(decode_jpeg(jpeg))

    def scaled(jpeg: bytes) -> Pixels:
        return transform(decode_jpeg(jpeg, min_height=size, min_width=size))

    return {**found, "simplejpeg": whole, "simplejpeg, scaled": scaled}


def scores(detector: Detector, squares: list[Pixels]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Of pictures that went through the transform already."""
    return detector.score([Picture(str(place), square) for place, square in enumerate(squares)], workers=1)


def each(call: Callable[..., object], items: Sequence[object], repeats: int) -> float:
    """Median milliseconds of a call with one of the items."""
    return median(1e3 * seconds(lambda item=item: call(item)) for _ in range(repeats) for item in items)  # type: ignore[misc]


def seconds(call: Callable[[], object]) -> float:
    """Of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    typer.run(main)
