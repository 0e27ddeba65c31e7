"""Whether images may be read by another decoder than a detector was fitted with: measured at fit, kept with it."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from discopatch.corruptions import CORRUPTIONS, corrupt
from discopatch.errors import ParameterError, TransformError
from discopatch.images import Decoder, Limits, NamedImage, PixelCache, Pixels, Transform, Workers, read_images
from discopatch.images.items import Item, open_shards
from discopatch.images.source import held, list_entries
from discopatch.metrics import auroc
from discopatch.schema import Count, between
from discopatch.scorer import Scorer

DECODERS: tuple[Decoder, ...] = get_args(Decoder)
N_COMPARED, MIN_COMPARED = 64, 8  # images that both decoders read, and not alike
MOST_READ = 4 * N_COMPARED  # images of a source among which they are looked for
MAX_DIFFERENCE = 1e-2  # of scores, in standard deviations of normal scores
MAX_AUROC_DIFFERENCE = 0.002
SEVERITY = 1  # of the corruptions that both should tell from normal images equally well
AT_ONCE = 16  # images that are in memory as files

NonNegative = Annotated[float, between(0, 1e300)]
Share = Annotated[float, between(0, 1)]


@dataclass(frozen=True, kw_only=True)
class DecoderParity:
    """How far scores are apart when the same files are read by another decoder; in spreads of the calibration scores.

    Images that both read alike, such as PNG files, say nothing: they are looked at, but not compared.
    """

    decoder: Decoder
    read: Count  # images that were looked at
    compared: Count  # of those, images with other pixels
    passed: bool
    max_difference: NonNegative | None = None
    mean_difference: NonNegative | None = None
    auroc_fitted: Share | None = None  # of corrupted images against these, read as in the fit
    auroc_other: Share | None = None  # the same, read by this decoder

    @property
    def text(self) -> str:
        """One sentence for people."""
        if self.max_difference is None:
            return (
                f"decoder {self.decoder!r} reads {self.compared} of {self.read} reference images otherwise, and "
                f"{MIN_COMPARED} are needed to compare (others are no JPEG files, or too small to be scaled): it was "
                "not compared"
            )
        return (
            f"decoder {self.decoder!r} moves the scores of {self.compared} reference images by "
            f"{self.mean_difference:.2g} of their spread on average and by {self.max_difference:.2g} at most (limit "
            f"{MAX_DIFFERENCE:g}), and the AUROC of corruptions from {self.auroc_fitted:.4f} to {self.auroc_other:.4f} "
            f"(limit {MAX_AUROC_DIFFERENCE:g}): {'passed' if self.passed else 'not passed'}"
        )


def check_decoders(names: Sequence[str]) -> None:
    """Raises ParameterError where one is unknown."""
    for name in names:
        if name not in DECODERS:
            raise ParameterError(f"unknown decoder {name!r}: choose one of {', '.join(DECODERS)}")


def check_available(names: Sequence[Decoder], device: torch.device) -> None:
    """Raises an error, with what to install or to choose, where one cannot work on this machine and device."""
    if "nvimgcodec" in names:
        from discopatch.images.gpu_decode import open_decoder

        open_decoder(device)


def check_allowed(fitted: Decoder, wanted: Decoder, measured: Sequence[DecoderParity]) -> None:
    """Raises TransformError unless images may be read by that decoder, with the numbers and the remedy."""
    check_decoders([wanted])
    if wanted == fitted:
        return
    found = next((each for each in measured if each.decoder == wanted), None)
    if found is not None and found.passed:
        return
    fit_again = f"fit again with decoder={wanted!r} (--decoder {wanted})"
    if found is None:
        compare = f"with also_decoders=[{wanted!r}] (--also-decoder {wanted}), which compares the two"
        raise TransformError(
            f"this detector was fitted with decoder={fitted!r}, and decoder {wanted!r} was not compared with it: "
            f"{fit_again}, or {compare}"
        )
    raise TransformError(
        f"this detector was fitted with decoder={fitted!r}, and {found.text}. Leave the decoder out, or {fit_again}"
    )


def readable_twice(source: object, limits: Limits) -> object:
    """The same images as a source that can be read again; ParameterError where they are pixels already."""
    if isinstance(source, PixelCache):
        raise ParameterError("a cache has no files that another decoder could read: give the images themselves")
    return held(source, limits)


def measure_decoder(
    decoder: Decoder,
    scorer: Scorer,
    source: object,
    calibration_scores: NDArray[np.float64],
    *,
    workers: Workers,
    limits: Limits,
) -> DecoderParity:
    """Reads images of the source by both decoders, and scores them, and corrupted versions of them, as both have them.

    The scorer's own decoder is the one that was fitted.
    """
    fitted = scorer.encoder.transform
    pairs: list[tuple[Pixels, Pixels]] = []
    read = 0
    for one, other in read_by_both(source, fitted, replace(fitted, decoder=decoder), workers=workers, limits=limits):
        read += 1
        if not np.array_equal(one, other):
            pairs.append((one, other))
        if len(pairs) == N_COMPARED:
            break
    compared = len(pairs)
    spread = float(calibration_scores.std())
    if compared < MIN_COMPARED or not spread > 0:
        return DecoderParity(decoder=decoder, read=read, compared=compared, passed=False)
    expected, found = (scores_of(scorer, [pair[side] for pair in pairs]) for side in (0, 1))
    difference = np.abs(found - expected) / spread
    worse, worse_found = (
        scores_of(scorer, [degraded(pair[side], place) for place, pair in enumerate(pairs)]) for side in (0, 1)
    )
    before, after = auroc(expected, worse), auroc(found, worse_found)
    largest = float(difference.max())
    return DecoderParity(
        decoder=decoder,
        read=read,
        compared=compared,
        passed=largest <= MAX_DIFFERENCE and abs(after - before) <= MAX_AUROC_DIFFERENCE,
        max_difference=largest,
        mean_difference=float(difference.mean()),
        auroc_fitted=before,
        auroc_other=after,
    )


def read_by_both(
    source: object, one: Transform, other: Transform, *, workers: Workers, limits: Limits
) -> Iterator[tuple[Pixels, Pixels]]:
    """Of the first images of the source those that can be read, by both transforms."""
    with closing(open_shards(list_entries(source, limits), limits)) as entries:
        items = islice(entries, MOST_READ)
        while chunk := list(islice(items, AT_ONCE)):
            yield from zip(*(read_all(chunk, each, workers, limits) for each in (one, other)), strict=True)


def read_all(items: Sequence[Item], transform: Transform, workers: Workers, limits: Limits) -> Iterator[Pixels]:
    """Those that can be read: no decoder refuses what another reads."""
    with closing(read_images(items, transform=transform, workers=workers, limits=limits)) as stream:
        yield from (image.pixels for image in stream if isinstance(image, NamedImage))


def scores_of(scorer: Scorer, images: Sequence[Pixels]) -> NDArray[np.float64]:
    """(images,), of images that came through the transform."""
    size = max(1, scorer.encoder.batch_size)
    parts = (np.stack(images[start : start + size]) for start in range(0, len(images), size))
    return np.concatenate([scorer.score_features(scorer.encoder.extract_pixels(part)) for part in parts])


def degraded(pixels: Pixels, place: int) -> Pixels:
    """The image with the corruption whose turn it is, always the same."""
    names = list(CORRUPTIONS)
    return corrupt(pixels, names[place % len(names)], SEVERITY, seed=place)
