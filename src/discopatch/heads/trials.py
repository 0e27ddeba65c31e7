"""Trials: changed versions of normal images, which show what the parts of a head add on such images."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, cycle, product
from typing import NamedTuple

import numpy as np
import torch

from discopatch.calibration import Index
from discopatch.corruptions.degradations import DEGRADATIONS, degrade
from discopatch.corruptions.places import PLACE_CHANGES, SIZES, Mask, change_place, size_of_share
from discopatch.encoders import Compare, Features
from discopatch.heads.base import Array
from discopatch.heads.parts import COMPONENTS, join_parts
from discopatch.heads.places import WINDOWS, maxima_of
from discopatch.images import Pixels
from discopatch.images.tensors import to_pixels, to_unit

N_ACQUISITION = 2 * len(DEGRADATIONS)  # images that are changed as a whole
N_PLACE = 3 * len(PLACE_CHANGES) * len(SIZES)  # images that are changed in one place
EARNING = 1.5  # standard errors that a part must gain to be added
LOSING, PLAIN_LOSS = 2.0, 0.02  # standard errors, and AUROC, that a part must lose to be removed
MILD = 0.5  # the share of the degraded image in the mixture with the image itself


class Trials(NamedTuple):
    """The features of changed images, and their origin."""

    features: Features
    rows: Index  # of the image among those that are fitted
    of_place: Mask  # whether it was changed in one place, or else as a whole
    maxima: Array  # (trials, windows), of places by models that were fitted without the image; NaN without places


def make_trials(
    extract: Callable[[Iterable[Pixels]], Iterator[Features]],
    pixels: Sequence[Pixels],
    rows: Index,
    *,
    compare: Callable[[int], Compare] | None = None,
    seed: int,
) -> Trials:
    """Trials of all changes on the images (H, W, 3), which are those rows of the fitted ones, in turn.

    compare: the comparison of places for the image of a row.
    """
    order = np.arange(N_ACQUISITION + N_PLACE) % len(pixels)
    whole, local = order[:N_ACQUISITION], order[N_ACQUISITION:]
    changed = chain(degraded([pixels[index] for index in whole], seed=seed), changed_places(pixels, local, seed=seed))
    found, maxima = [], np.full((len(order), len(WINDOWS)), np.nan)
    for number, features in enumerate(extract(changed)):
        found.append(features.without_places())
        if compare is not None:
            maxima[number] = maxima_of(features.places, compare(rows[order[number]]))[0]
    return Trials(Features.concatenate(found), rows[order], np.arange(len(order)) >= N_ACQUISITION, maxima)


def degraded(pixels: Sequence[Pixels], *, seed: int) -> Iterator[Pixels]:
    """The images, mildly degraded in one way after the other."""
    generator = torch.Generator().manual_seed(seed)
    for image, degradation in zip(map(torch.from_numpy, pixels), cycle(DEGRADATIONS.values()), strict=False):
        before = to_unit(image[None]).permute(0, 3, 1, 2)
        after = degrade(before, degradation, generator)
        yield to_pixels(torch.lerp(before, after, MILD)).permute(0, 2, 3, 1)[0].numpy()


def changed_places(pixels: Sequence[Pixels], chosen: Index, *, seed: int) -> Iterator[Pixels]:
    """The chosen images, each changed in one place, in one way and at one size after the other."""
    rng = np.random.default_rng([seed, 14])
    for index, (share, name) in zip(chosen, cycle(product(SIZES, PLACE_CHANGES)), strict=False):
        other = (index + 1 + int(rng.integers(len(pixels) - 1))) % len(pixels) if len(pixels) > 1 else index
        size = size_of_share(name, share, pixels[index], pixels[other])
        yield change_place(name, pixels[index], pixels[other], size=size, rng=rng).pixels


def choose_parts(normal: Array, changed: Array, trials: Trials, parts: Sequence[str]) -> tuple[str, ...]:
    """The parts that count, from cross-fitted rarities (images, parts) of normal images and of the trials.

    The joined score with a part is compared with the score without it. Places are added only if they find more changes
    of one place than chance explains, and lose fewer of the whole image. A part of acquisition stays unless it loses
    plainly, because trials are few. Parts of content and tones stay: no trial has other content or much other light.
    """
    kept = [part for part in parts if part not in COMPONENTS["place"]]
    for part in [part for part in parts if part not in kept and kept]:
        gain, error = gain_of(part, kept, normal, changed, trials, parts, kinds=[trials.of_place])
        if gain > EARNING * error and gain_of(part, kept, normal, changed, trials, parts)[0] > 0:
            kept.append(part)
    while len(kept) > 1:
        gains = {
            part: gain_of(part, kept, normal, changed, trials, parts)
            for part in kept
            if part in COMPONENTS["acquisition"] and part != "tones"
        }
        worst = min(gains, key=lambda part: gains[part][0], default=None)
        if worst is None or gains[worst][0] > -max(PLAIN_LOSS, LOSING * gains[worst][1]):
            break
        kept.remove(worst)
    return tuple(part for part in parts if part in kept) or tuple(parts)


def gain_of(
    part: str,
    kept: Sequence[str],
    normal: Array,
    changed: Array,
    trials: Trials,
    parts: Sequence[str],
    *,
    kinds: Sequence[Mask] | None = None,
) -> tuple[float, float]:
    """The increase in the AUROC of trials against normal images by a part over the others that are kept, and its error.

    It is the mean over these kinds of trials, by default both; the standard error is that of trials paired by their
    images.
    """
    others = [each for each in kept if each != part]

    def shares(counted: Sequence[str]) -> Array:
        columns = [number for number, each in enumerate(parts) if each in counted]
        usual, found = (
            join_parts(torch.from_numpy(each[:, columns]), [parts[column] for column in columns])[0].numpy()
            for each in (normal, changed)
        )
        return share_below(usual, found)

    difference = shares([*others, part]) - shares(others)
    means, squared_errors = [], []
    for own in kinds or (trials.of_place, ~trials.of_place):
        _, image = np.unique(trials.rows[own], return_inverse=True)
        if image.size:
            by_image = np.bincount(image, difference[own]) / np.bincount(image)
            means.append(by_image.mean())
            squared_errors.append(by_image.var() / max(len(by_image) - 1, 1))
    return float(np.mean(means)), float(np.sqrt(np.sum(squared_errors)) / len(means))


def share_below(usual: Array, found: Array) -> Array:
    """(trials,): the share of usual scores (images,) below each score that is found, ties counted half.

    The mean is the AUROC.
    """
    usual = np.sort(usual)
    return (np.searchsorted(usual, found, "left") + np.searchsorted(usual, found, "right")) / (2 * len(usual))
