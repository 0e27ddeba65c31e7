"""Slips of the authors' evaluation in how the discriminator gets its patches; see `SLIPS` in `preprocessing.py`."""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from discopatch.bench.baselines import STATISTICS, Array, Baseline, FeatureDict
from discopatch.bench.methods import LOGITS, BenchEncoder, DiscriminatorBenchEncoder, MethodName
from discopatch.bench.preprocessing import AS_TRAINED, Protocol, Reading
from discopatch.encoders import DiscriminatorEncoder
from discopatch.encoders.discriminator import FeatureExtractor
from discopatch.errors import ParameterError
from discopatch.images import Pixels

PATCH_METHODS = ("logit", "sigmoid")  # the paper's score, which patches have by themselves


def effective_reading(encoder: BenchEncoder, reading: Reading) -> Reading:
    """What of a reading is unusual for an encoder: nothing but for the discriminator; a dense pass has no patches."""
    if not isinstance(encoder, DiscriminatorBenchEncoder):
        return AS_TRAINED
    own = encoder.encoder.transform.pixels
    pixels = None if reading.pixels == own else reading.pixels
    return replace(reading, pixels=pixels) if has_patches(encoder) else Reading(pixels=pixels)


def has_patches(encoder: BenchEncoder) -> bool:
    return isinstance(encoder, DiscriminatorBenchEncoder) and encoder.encoder.extractor.corners is not None


def encoder_reading(encoder: BenchEncoder, reading: Reading) -> BenchEncoder:
    """The encoder that gets images in this way; the given one if that changes nothing for it."""
    reading = effective_reading(encoder, reading)
    if reading == AS_TRAINED:
        return encoder
    assert isinstance(encoder, DiscriminatorBenchEncoder)
    return SlippedEncoder(encoder, reading)


class SlippedEncoder(DiscriminatorBenchEncoder):
    """The discriminator of another encoder, which gets images in another way."""

    def __init__(self, encoder: DiscriminatorBenchEncoder, reading: Reading) -> None:
        vars(self).update(vars(encoder))
        self.encoder = slipped(encoder.encoder, reading)
        self.reading = reading
        self.forget()  # what was measured on images that are read as they should be

    def extract(self, pixels: Pixels, kinds: Collection[str]) -> FeatureDict:
        """Logits (images, patches) of patches by themselves have no statistics, which are many, beside them."""
        if not self.reading.single:
            return super().extract(pixels, kinds)
        features = super().extract(pixels, (LOGITS,))
        return {LOGITS: features[LOGITS].reshape(len(pixels), -1), STATISTICS: np.zeros((len(pixels), 1), np.float32)}


def slipped(encoder: DiscriminatorEncoder, reading: Reading) -> DiscriminatorEncoder:
    """A copy of the encoder with another range of pixels, other corners, or every patch as an image of its own."""
    corners = encoder.extractor.corners
    if corners is not None and reading.short:
        corners = away_from_the_end(corners, encoder.transform.size - encoder.patch_size)
    other = copy(encoder)
    other.extractor = FeatureExtractor(
        encoder.extractor.discriminator,
        pixel_range=reading.pixels or encoder.transform.pixels,
        corners=corners,
        group=1 if reading.single else encoder.extractor.group,
    ).to(encoder.device)
    return other


def away_from_the_end(corners: Tensor, last: int) -> Tensor:
    """Corners drawn evenly from 0 to last, as corners drawn evenly from 0 to last - 1: only those at `last` move."""
    drawn = torch.randint(max(last, 1), corners.shape, generator=torch.Generator().manual_seed(0))
    return torch.where(corners == last, drawn.to(corners.device), corners)


def patch_scores(method: Baseline, features: FeatureDict) -> Array:
    """(images, patches): each patch as if it were an image."""
    logits = features[LOGITS]
    alone = {LOGITS: logits.reshape(-1, 1), STATISTICS: np.zeros((logits.size, 1), np.float32)}
    return method.score(alone).reshape(logits.shape)


def concerned_methods(
    slips: Sequence[str], methods: Sequence[MethodName], encoders: Mapping[str, BenchEncoder]
) -> dict[str, list[str]]:
    """By slip: the methods whose scores it changes."""
    found: dict[str, list[str]] = {slip: [] for slip in slips}
    for slip in slips:
        for name in methods:
            encoder = encoders[name.encoder]
            if has_patches(encoder) or (slip == "pixel-range" and isinstance(encoder, DiscriminatorBenchEncoder)):
                found[slip].append(str(name))
    return found


def check_slips(protocol: Protocol, methods: Sequence[MethodName], encoders: Mapping[str, BenchEncoder]) -> None:
    """Raises ParameterError where a slip concerns no method, or one that has no score for single patches."""
    concerned = concerned_methods(protocol.slips, methods, encoders)
    for slip, names in concerned.items():
        if not names:
            raise ParameterError(
                f"the slip {slip} concerns none of the methods: add discopatch-64/sigmoid, the paper's score"
            )
    for name in methods:
        if str(name) in concerned.get("single-patches", ()) and name.method not in PATCH_METHODS:
            raise ParameterError(f"{name} has no score for single patches: leave it out, or the slip single-patches")
