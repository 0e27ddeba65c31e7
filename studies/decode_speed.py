"""Where the time of an image goes: decoding, transform and model apart; and what faster decoders do to its score.

python studies/decode_speed.py                          # mosaics of sample photos as JPEG files
python studies/decode_speed.py --side 2048 --weights natural-small-v1

The table of docs/performance.md: milliseconds of one core, and how far a decoder moves the scores of a detector that
was fitted without it. `studies/decoders.py` has the AUROC of detectors that were fitted with it. simplejpeg is tried
where it is installed.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.table import Table

from common import seconds_of
from discopatch import Detector
from discopatch.images import Limits, NamedImage, Pixels, Transform
from discopatch.images.decode import rgb_from_bytes
from discopatch.images.samples import PHOTOS, crops, sample_photos
from discopatch.pretrained import DEFAULT_WEIGHTS

Decoder = Callable[[bytes], Pixels]  # a file -> the square image that the model scores
TILE = 128


def main(
    side: Annotated[int, typer.Option(help="Of the JPEG files, in pixels.")] = 1024,
    files: Annotated[int, typer.Option(help="How many.")] = 40,
    normal: Annotated[int, typer.Option(help="Images to fit on.")] = 160,
    quality: Annotated[int, typer.Option(help="Of the JPEG files.")] = 92,
    weights: Annotated[str, typer.Option(help="Pretrained weights by name.")] = DEFAULT_WEIGHTS,
    repeats: Annotated[int, typer.Option(help="Of every file; the fastest counts.")] = 5,
) -> None:
    """Prints two tables: milliseconds by stage, and by decoder with the difference in scores."""
    jpegs = [to_jpeg(pixels, quality) for pixels in mosaics(normal + files, side)]
    detector = Detector(weights, false_alarm_rate=0.05, device="cpu").fit(jpegs[:normal])
    spread = float(np.std(detector.calibration_scores_))
    transform, held_out = detector.weights_.transform, jpegs[normal:]
    decoded = [rgb_from_bytes(jpeg, Limits()) for jpeg in held_out]
    squares = [transform.resize(image) for image in decoded]
    reference = score_squares(detector, squares)

    stages = Table("stage", "ms an image", title=f"JPEG of {side} x {side}, quality {quality}; {weights}, CPU")
    stages.add_row("decode", f"{each(lambda jpeg: rgb_from_bytes(jpeg, Limits()), held_out, repeats):.1f}")
    stages.add_row("transform", f"{each(transform.resize, decoded, repeats):.1f}")
    stages.add_row("model and head", f"{each(lambda square: score_squares(detector, [square]), squares, repeats):.1f}")
    stages.add_row("all, decoding ahead", f"{1e3 * seconds_of(lambda: detector.predict(held_out)) / files:.1f}")
    decoders = Table("decoder", "ms an image", "greatest difference of scores, in spreads", "pixels equal")
    for name, decoder in all_decoders(transform).items():
        images = [decoder(jpeg) for jpeg in held_out]
        difference = np.abs(score_squares(detector, images) - reference).max() / spread
        same = all(map(np.array_equal, images, squares))
        decoders.add_row(name, f"{each(decoder, held_out, repeats):.1f}", f"{difference:.3g}", "yes" if same else "no")
    console = Console()
    console.print(stages)
    console.print(decoders)


def mosaics(count: int, side: int) -> list[Pixels]:
    """Squares of tiles of real photos, (side, side, 3), so that there is detail at every size."""
    across = -(-side // TILE)
    tiles = crops(sample_photos(PHOTOS), -(-count * across**2 // len(PHOTOS)), size=TILE, seed=0)
    order = np.random.default_rng(0).permutation(len(tiles))[: count * across**2]
    grid = np.stack([tiles[place].pixels for place in order]).reshape(count, across, across, TILE, TILE, 3)
    whole = grid.transpose(0, 1, 3, 2, 4, 5).reshape(count, across * TILE, across * TILE, 3)
    return list(whole[:, :side, :side])


def to_jpeg(pixels: Pixels, quality: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return file.getvalue()


def all_decoders(transform: Transform) -> dict[str, Decoder]:
    """Ours, one that scales down to the square itself, and simplejpeg's two where it is installed."""
    size = transform.size

    def scaled_to(side: int | None, *, usual: bool = False) -> Decoder:
        def decode(jpeg: bytes) -> Pixels:
            image = rgb_from_bytes(jpeg, Limits(), side=side)
            if usual:
                image.info.clear()
            return transform.resize(image)

        return decode

    twice = replace(transform, decoder="scaled").decoded_side
    decoders = {
        "pillow": scaled_to(None),
        "scaled": scaled_to(twice),
        "scaled, the usual filter": scaled_to(twice, usual=True),
        "scaled to the square": scaled_to(size),
    }
    try:
        from simplejpeg import decode_jpeg
    except ImportError:
        return decoders

    def whole(jpeg: bytes) -> Pixels:
        return transform(decode_jpeg(jpeg))

    def scaled(jpeg: bytes) -> Pixels:
        return transform(decode_jpeg(jpeg, min_height=size, min_width=size))

    return {**decoders, "simplejpeg": whole, "simplejpeg, scaled to the square": scaled}


def score_squares(detector: Detector, squares: Sequence[Pixels]) -> NDArray[np.float64]:
    """(N,): the scores of images that went through the transform already."""
    return detector.score([NamedImage(str(place), square) for place, square in enumerate(squares)], workers=1)


def each(call: Callable[..., object], items: Sequence[object], repeats: int) -> float:
    """Median milliseconds of a call with one of the items, each the fastest of its repeats."""
    return median(min(1e3 * seconds_of(lambda item=item: call(item)) for _ in range(repeats)) for item in items)  # type: ignore[misc]


if __name__ == "__main__":
    typer.run(main)
