"""The stages of the fast pass as Triton kernels. Imported only where there is a GPU: Triton is not there otherwise.

Feature maps lie channel by channel within a pixel, an image's pixels one after another: (images, pixels, channels).
Offsets of an image are 64-bit numbers, those inside one are not. The stages are explained in `network.Stages`.
"""

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

jit: Callable[[Any], Any] = triton.jit


@jit
def windows_of(
    image_data: tl.tensor,
    corners: tl.tensor,
    pixel: tl.tensor,
    pixels: tl.tensor,
    size: tl.constexpr,
    patch: tl.constexpr,
    side: tl.constexpr,
    before: tl.constexpr,
) -> tl.tensor:
    """(block, 32) in float32 of one image: for each output pixel 27 integers 2 k - 255, a 1, zeros.

    Of zeros around a patch `before` rows and columns come before its first.
    """
    tap = tl.arange(0, 32)
    known = pixel < pixels
    which, inside = pixel // (side * side), pixel % (side * side)
    top = tl.load(corners + 2 * which, mask=known, other=0)
    left = tl.load(corners + 2 * which + 1, mask=known, other=0)
    row = 2 * (inside // side)[:, None] - before + (tap // 9)[None, :]
    column = 2 * (inside % side)[:, None] - before + (tap // 3 % 3)[None, :]
    there = (row >= 0) & (row < patch) & (column >= 0) & (column < patch) & (tap < 27)[None, :] & known[:, None]
    offset = ((top[:, None] + row) * size + left[:, None] + column) * 3 + (tap % 3)[None, :]
    value = tl.load(image_data + offset, mask=there, other=0).to(tl.float32)
    value = tl.where(there, 2 * value - 255, 0.0)
    return tl.where((tap == 27)[None, :] & known[:, None], 1.0, value)


@jit
def moments_kernel(
    image_data: tl.tensor,
    corners: tl.tensor,
    moments: tl.tensor,
    pixels: tl.tensor,
    chunk: tl.tensor,
    parts: tl.tensor,
    size: tl.constexpr,
    patch: tl.constexpr,
    side: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """A part of an image's windows; up to 257 of them the products of their integers sum up exactly in float32."""
    part, image = tl.program_id(0), tl.program_id(1)
    image_data += image.to(tl.int64) * (size * size * 3)
    total = tl.zeros((32, 32), tl.float64)
    first = part * chunk
    for start in range(first, tl.minimum(first + chunk, pixels), block):
        rows = windows_of(image_data, corners, start + tl.arange(0, block), pixels, size, patch, side, 1)
        rows = rows.to(tl.bfloat16)
        total += tl.dot(tl.trans(rows), rows).to(tl.float64)
    place = tl.arange(0, 32)
    where = (image.to(tl.int64) * parts + part) * 1024 + place[:, None] * 32 + place[None, :]
    tl.store(moments + where, total)


@jit
def first_layer_kernel(
    image_data: tl.tensor,
    corners: tl.tensor,
    kernel: tl.tensor,
    scale: tl.tensor,
    shift: tl.tensor,
    out: tl.tensor,
    pixels: tl.tensor,
    chunk: tl.tensor,
    slope: tl.constexpr,
    channels: tl.constexpr,
    size: tl.constexpr,
    patch: tl.constexpr,
    side: tl.constexpr,
    block: tl.constexpr,
    across: tl.constexpr,
) -> None:
    """The first layer from pixels to activated features, written once; its normalisation is part of the kernel.

    The kernel is the sum of two in bfloat16: rounded once, a filter that should not see evenly bright areas would.
    """
    image, first = tl.program_id(2), tl.program_id(0) * chunk
    image_data += image.to(tl.int64) * (size * size * 3)
    out += (image.to(tl.int64) * pixels + first) * channels
    place, tap = tl.arange(0, block), tl.arange(0, 32)
    channel = tl.program_id(1) * across + tl.arange(0, across)
    known = channel < channels
    factor = tl.load(scale + image * channels + channel, mask=known, other=0.0)
    term = tl.load(shift + image * channels + channel, mask=known, other=0.0)
    weight = tl.load(kernel + tap[:, None] * channels + channel[None, :], mask=known[None, :], other=0.0)
    weight = tl.where((tap == 27)[:, None], term[None, :], weight * factor[None, :])
    coarse = weight.to(tl.bfloat16)
    fine = (weight - coarse.to(tl.float32)).to(tl.bfloat16)
    for start in range(first, tl.minimum(first + chunk, pixels), block):
        rows = windows_of(image_data, corners, start + place, pixels, size, patch, side, 1).to(tl.bfloat16)
        value = tl.dot(rows, coarse, tl.dot(rows, fine))
        value = tl.maximum(value, slope * value)
        inside = (start + place < pixels)[:, None] & known[None, :]
        tl.store(out + place[:, None] * channels + channel[None, :], value.to(out.dtype.element_ty), mask=inside)
        out += block * channels


@jit
def sums_kernel(
    x: tl.tensor,
    sums: tl.tensor,
    pixels: tl.tensor,
    chunk: tl.tensor,
    parts: tl.tensor,
    channels: tl.constexpr,
    block: tl.constexpr,
    across: tl.constexpr,
) -> None:
    """Sums over a part of an image's pixels; its first pixel is taken out, or a large mean would eat the variance."""
    part, image = tl.program_id(0), tl.program_id(2)
    x += image.to(tl.int64) * pixels * channels
    place, channel = tl.arange(0, block), tl.program_id(1) * across + tl.arange(0, across)
    known = channel < channels
    origin = tl.load(x + channel, mask=known, other=0.0).to(tl.float32)
    total = tl.zeros((block, across), tl.float32)
    square = tl.zeros((block, across), tl.float32)
    first = part * chunk
    for start in range(first, tl.minimum(first + chunk, pixels), block):
        inside = (start + place < pixels)[:, None] & known[None, :]
        where = (start + place)[:, None] * channels + channel[None, :]
        value = tl.load(x + where, mask=inside, other=0.0).to(tl.float32)
        value = tl.where(inside, value - origin[None, :], 0.0)
        total += value
        square += value * value
    sums += (image.to(tl.int64) * parts + part) * 2 * channels
    tl.store(sums + channel, tl.sum(total, 0), mask=known)
    tl.store(sums + channels + channel, tl.sum(square, 0), mask=known)


@jit
def statistics_kernel(
    sums: tl.tensor,
    x: tl.tensor,
    conv_bias: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    scale: tl.tensor,
    shift: tl.tensor,
    out: tl.tensor,
    pixels: tl.tensor,
    parts: tl.tensor,
    width: tl.tensor,
    eps: tl.constexpr,
    smallest: tl.constexpr,
    shifted: tl.constexpr,
    channels: tl.constexpr,
    together: tl.constexpr,
    across: tl.constexpr,
) -> None:
    """Sums become statistics and a normalisation, in the precision of the sums until the mean is taken out."""
    image = tl.program_id(1)
    part, channel = tl.arange(0, together), tl.program_id(0) * across + tl.arange(0, across)
    known = channel < channels
    inside = (part < parts)[:, None] & known[None, :]
    where = (image * parts + part)[:, None] * (2 * channels) + channel[None, :]
    offset = tl.sum(tl.load(sums + where, mask=inside, other=0.0), 0) / pixels
    square = tl.sum(tl.load(sums + where + channels, mask=inside, other=0.0), 0) / pixels
    variance = tl.maximum((square - offset * offset).to(tl.float32), 0.0)
    mean = offset.to(tl.float32)
    if shifted:
        origin = x + image.to(tl.int64) * pixels * channels
        mean += tl.load(origin + channel, mask=known, other=0.0).to(tl.float32)
    factor = tl.load(weight + channel, mask=known, other=0.0) / tl.sqrt(variance + eps)
    tl.store(scale + image * channels + channel, factor, mask=known)
    term = tl.load(bias + channel, mask=known, other=0.0) - mean * factor
    tl.store(shift + image * channels + channel, term, mask=known)
    out += image.to(tl.int64) * width
    tl.store(out + channel, mean + tl.load(conv_bias + channel, mask=known, other=0.0), mask=known)
    tl.store(out + channels + channel, tl.log(variance + smallest), mask=known)


@jit
def feature_block(
    pixels: tl.tensor, channels: tl.constexpr, block: tl.constexpr, across: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """A program's image and first pixel, its pixels and channels, which of them exist, and their offsets."""
    image, start = tl.program_id(2), tl.program_id(0) * block
    place, channel = tl.arange(0, block), tl.program_id(1) * across + tl.arange(0, across)
    inside = (start + place < pixels)[:, None] & (channel < channels)[None, :]
    return image, start, place, channel, inside, place[:, None] * channels + channel[None, :]


@jit
def load_activated(
    x: tl.tensor,
    scale: tl.tensor,
    shift: tl.tensor,
    image: tl.tensor,
    channel: tl.tensor,
    where: tl.tensor,
    inside: tl.tensor,
    slope: tl.constexpr,
    channels: tl.tensor,
) -> tl.tensor:
    """A block of normalised features, through the LeakyReLU, in float32; 0 outside."""
    known = channel < channels
    factor = tl.load(scale + image * channels + channel, mask=known, other=0.0)
    term = tl.load(shift + image * channels + channel, mask=known, other=0.0)
    value = tl.load(x + where, mask=inside, other=0.0).to(tl.float32) * factor[None, :] + term[None, :]
    return tl.where(inside, tl.maximum(value, slope * value), 0.0)


@jit
def activate_kernel(
    x: tl.tensor,
    scale: tl.tensor,
    shift: tl.tensor,
    pixels: tl.tensor,
    slope: tl.constexpr,
    channels: tl.constexpr,
    block: tl.constexpr,
    across: tl.constexpr,
) -> None:
    """Normalises and activates the features in place."""
    image, start, _, channel, inside, where = feature_block(pixels, channels, block, across)
    x += (image.to(tl.int64) * pixels + start) * channels
    value = load_activated(x, scale, shift, image, channel, where, inside, slope, channels)
    tl.store(x + where, value.to(x.dtype.element_ty), mask=inside)


@jit
def add_activate_kernel(
    x: tl.tensor,
    bias: tl.tensor,
    added: tl.tensor,
    count: tl.tensor,
    joined: tl.constexpr,
    slope: tl.constexpr,
    channels: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Adds a bias and, where there is one, another map to the features, and activates them in place.

    The numbers of all pixels as one row: a block of whole pixels would leave lanes idle, their channels being no powers
    of two.
    """
    start, place = tl.program_id(0).to(tl.int64) * block, tl.arange(0, block)
    inside = start + place < count
    channel = ((start % channels).to(tl.int32) + place) % channels
    x += start
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) + tl.load(bias + channel)
    if joined:
        value += tl.load(added + start + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(x + place, tl.maximum(value, slope * value).to(x.dtype.element_ty), mask=inside)


@jit
def logit_terms_kernel(
    x: tl.tensor,
    scale: tl.tensor,
    shift: tl.tensor,
    high: tl.tensor,
    low: tl.tensor,
    terms: tl.tensor,
    pixels: tl.tensor,
    images: tl.tensor,
    normalise: tl.constexpr,
    slope: tl.constexpr,
    channels: tl.constexpr,
    taps: tl.constexpr,
    block: tl.constexpr,
    across: tl.constexpr,
) -> None:
    """What some channels of each pixel add to the logit of a patch in which the pixel has each of the places."""
    image, start, place, channel, inside, where = feature_block(pixels, channels, block, across)
    x += (image.to(tl.int64) * pixels + start) * channels
    if normalise:
        value = load_activated(x, scale, shift, image, channel, where, inside, slope, channels)
    else:
        value = tl.load(x + where, mask=inside, other=0.0).to(tl.float32)
    tap = tl.arange(0, taps)
    weights = channel[:, None] * taps + tap[None, :]
    known = (channel < channels)[:, None]
    features = value.to(high.dtype.element_ty)
    term_sum = tl.dot(features, tl.load(low + weights, mask=known, other=0.0))
    term_sum = tl.dot(features, tl.load(high + weights, mask=known, other=0.0), term_sum)
    terms += ((tl.program_id(1).to(tl.int64) * images + image) * pixels + start) * taps
    tl.store(terms + place[:, None] * taps + tap[None, :], term_sum, mask=(start + place < pixels)[:, None])


@jit
def logits_kernel(
    terms: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    pixels: tl.tensor,
    images: tl.tensor,
    parts: tl.tensor,
    places: tl.tensor,
    width: tl.tensor,
    side: tl.constexpr,
    cells: tl.constexpr,
    taps: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """The sum over each patch of its pixels' terms."""
    image = tl.program_id(1)
    place, tap = tl.program_id(0) * block + tl.arange(0, block), tl.arange(0, taps)
    rows: tl.constexpr = side - cells + 1
    which, inside = place // (rows * rows), place % (rows * rows)
    row = (inside // rows)[:, None] + (tap // cells)[None, :]
    column = (inside % rows)[:, None] + (tap % cells)[None, :]
    where = (which[:, None] * (side * side) + row * side + column) * taps + tap[None, :]
    known = (place < places)[:, None] & (tap < cells * cells)[None, :]
    total = tl.zeros((block, taps), tl.float32)
    terms += image.to(tl.int64) * pixels * taps
    for _ in range(parts):
        total += tl.load(terms + where, mask=known, other=0.0)
        terms += images * pixels * taps
    logit = tl.sum(total, 1) + tl.load(bias)
    tl.store(out + image.to(tl.int64) * width + place, logit, mask=place < places)
