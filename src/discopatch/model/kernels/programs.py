"""Triton kernels of the fast pass, and the functions that launch them; Triton is installed only where there is a GPU.

Feature maps lie channel by channel within a pixel, an image's pixels one after another: (images, pixels, channels).
Kernels of blocks count pixels through all maps of a batch. Offsets of an image are 64-bit integers, those inside one
are 32-bit. Matrix products are in half precision, statistics in float32.
"""

from collections import namedtuple
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv, next_power_of_2

from discopatch.model import layers

if TYPE_CHECKING:
    from discopatch.model.kernels import Classifier, FastMBConv, PatchLayout

PROGRAMS = 1056  # enough for every multiprocessor of a large GPU, eight times
PARTS = 64  # most parts of a sum: one program reads them all at once
WIDE = 24  # output channels beyond which the projection is a kernel of its own: up to them one kernel is faster
SMALLEST = tl.constexpr(layers.SMALLEST_VARIANCE)

# Pixels and, at most, channels of one program of a kernel.
LOGIT_TERMS = 64, 128
SUMS = 32, 128
STATISTICS = 32  # channels
LOGITS = tl.constexpr(64)  # patches
# Of stem and blocks: one for all sizes, from timings of each block of natural-v2 on an H200 with 512 images; close to
# the best for most blocks. The stem was not varied.
STEM = 128, 2**14
EXPAND = 128, 64
FILTER = 64, 32
PROJECT = 128, 128
NEAREST = 128, 64  # places, and stored vectors at once
LARGEST = tl.constexpr(60_000)  # magnitude of numbers in half precision
FAR = 1e38  # squared length of vectors beyond the last

# Compile-time arguments of kernels, grouped.
# Sides of an image, of a patch and of its first feature map.
Window = namedtuple("Window", "size patch side")
# Pixels and channels of a program, and all channels; of matrices also the inputs, and how many are multiplied at once.
Tile = namedtuple("Tile", "rows across channels inputs depth", defaults=(0, 0))
# An inverted residual block: its input map, filter and channels, then powers of two: the pixels of a program, its
# inputs, its filtered channels at once and its outputs.
Filter = namedtuple("Filter", "rows columns taps stride before inputs inner outputs block depth across width")
# Places and vectors of a block, axes as a power of two, blocks of vectors, and a power of two that is not smaller.
Nearest = namedtuple("Nearest", "rows across depth blocks bits")


@triton.jit
def zeros(rows: tl.constexpr, columns: tl.constexpr):
    return tl.zeros((rows, columns), tl.float32)


@triton.jit
def load_matrix(matrix, row, column, rows, columns):
    """Values of a matrix (rows, columns); 0 outside."""
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    return tl.load(matrix + row[:, None] * columns + column[None, :], mask=inside, other=0.0)


@triton.jit
def windows_of(image_data, corners, pixel, pixels, window: tl.constexpr):
    """(block, 32) in float32 of one image: for each output pixel 27 integers 2 k - 255, then zeros."""
    side: tl.constexpr = window.side
    tap = tl.arange(0, 32)
    known = pixel < pixels
    which, inside = pixel // (side * side), pixel % (side * side)
    top = tl.load(corners + 2 * which, mask=known, other=0)
    left = tl.load(corners + 2 * which + 1, mask=known, other=0)
    row = 2 * (inside // side)[:, None] + (tap // 9)[None, :]
    column = 2 * (inside % side)[:, None] + (tap // 3 % 3)[None, :]
    there = inside_map(row, column, window.patch, window.patch) & (tap < 27)[None, :] & known[:, None]
    offset = ((top[:, None] + row) * window.size + left[:, None] + column) * 3 + (tap % 3)[None, :]
    value = tl.load(image_data + offset, mask=there, other=0).to(tl.float32)
    return tl.where(there, 2 * value - 255, 0.0)


@triton.jit
def inside_map(row, column, rows, columns):
    return (row >= 0) & (row < rows) & (column >= 0) & (column < columns)


@triton.jit
def sums_kernel(x, sums, pixels, chunk, parts, tile: tl.constexpr):
    """Sums over a part of an image's pixels; its first pixel is taken out, or a large mean would eat the variance."""
    part, image = tl.program_id(0), tl.program_id(2)
    x += image.to(tl.int64) * pixels * tile.channels
    place, channel = tl.arange(0, tile.rows), tl.program_id(1) * tile.across + tl.arange(0, tile.across)
    known = channel < tile.channels
    origin = tl.load(x + channel, mask=known, other=0.0).to(tl.float32)
    total = zeros(tile.rows, tile.across)
    square = zeros(tile.rows, tile.across)
    first = part * chunk
    for start in range(first, tl.minimum(first + chunk, pixels), tile.rows):
        inside = (start + place < pixels)[:, None] & known[None, :]
        value = load_matrix(x, start + place, channel, pixels, tile.channels).to(tl.float32)
        value = tl.where(inside, value - origin[None, :], 0.0)
        total += value
        square += value * value
    sums += (image.to(tl.int64) * parts + part) * 2 * tile.channels
    tl.store(sums + channel, tl.sum(total, 0), mask=known)
    tl.store(sums + tile.channels + channel, tl.sum(square, 0), mask=known)


@triton.jit
def statistics_kernel(sums, x, out, pixels, parts, width, tile: tl.constexpr):
    """Sums become statistics."""
    channels: tl.constexpr = tile.channels
    image = tl.program_id(1)
    part, channel = tl.arange(0, tile.rows), tl.program_id(0) * tile.across + tl.arange(0, tile.across)
    known = channel < channels
    inside = (part < parts)[:, None] & known[None, :]
    where = (image * parts + part)[:, None] * (2 * channels) + channel[None, :]
    offset = tl.sum(tl.load(sums + where, mask=inside, other=0.0), 0) / pixels
    square = tl.sum(tl.load(sums + where + channels, mask=inside, other=0.0), 0) / pixels
    variance = tl.maximum(square - offset * offset, 0.0)
    origin = x + image.to(tl.int64) * pixels * channels
    mean = offset + tl.load(origin + channel, mask=known, other=0.0).to(tl.float32)
    out += image.to(tl.int64) * width
    tl.store(out + channel, mean, mask=known)
    tl.store(out + channels + channel, tl.log(variance + SMALLEST), mask=known)


@triton.jit
def logit_terms_kernel(x, weights, terms, pixels, images, tile: tl.constexpr, taps: tl.constexpr):
    """What some channels of each pixel add to the logit of a patch in which the pixel has each of the places."""
    image, start = tl.program_id(2), tl.program_id(0) * tile.rows
    place, channel = tl.arange(0, tile.rows), tl.program_id(1) * tile.across + tl.arange(0, tile.across)
    x += image.to(tl.int64) * pixels * tile.channels
    value = load_matrix(x, start + place, channel, pixels, tile.channels)
    tap = tl.arange(0, taps)
    high = weights + (channel[:, None] * taps + tap[None, :])
    known = (channel < tile.channels)[:, None]
    features = value.to(weights.dtype.element_ty)
    term_sum = tl.dot(features, tl.load(high + tile.channels * taps, mask=known, other=0.0))
    term_sum = tl.dot(features, tl.load(high, mask=known, other=0.0), term_sum)
    terms += ((tl.program_id(1).to(tl.int64) * images + image) * pixels + start) * taps
    tl.store(terms + place[:, None] * taps + tap[None, :], term_sum, mask=(start + place < pixels)[:, None])


@triton.jit
def logits_kernel(
    terms, bias, out, pixels, images, parts, places, width, side: tl.constexpr, cells: tl.constexpr, taps: tl.constexpr
):
    """The sum over each patch of its pixels' terms."""
    image = tl.program_id(1)
    place, tap = tl.program_id(0) * LOGITS + tl.arange(0, LOGITS), tl.arange(0, taps)
    rows: tl.constexpr = side - cells + 1
    which, inside = place // (rows * rows), place % (rows * rows)
    row = (inside // rows)[:, None] + (tap // cells)[None, :]
    column = (inside % rows)[:, None] + (tap % cells)[None, :]
    where = (which[:, None] * (side * side) + row * side + column) * taps + tap[None, :]
    known = (place < places)[:, None] & (tap < cells * cells)[None, :]
    total = tl.zeros((LOGITS, taps), tl.float32)
    terms += image.to(tl.int64) * pixels * taps
    for _ in range(parts):
        total += tl.load(terms + where, mask=known, other=0.0)
        terms += images * pixels * taps
    logit = tl.sum(total, 1) + tl.load(bias)
    tl.store(out + image.to(tl.int64) * width + place, logit, mask=place < places)


@triton.jit
def relu6(value):
    return tl.minimum(tl.maximum(value, 0.0), 6.0)


@triton.jit
def store_features(value, bias, other, out, first, there, place, channel, channels, activated: tl.constexpr):
    """Writes pixels from `first` on: with their bias, through ReLU6 if `activated`, plus another map, if any."""
    known = channel < channels
    value += tl.load(bias + channel, mask=known, other=0.0)[None, :]
    where, inside = place[:, None] * channels + channel[None, :], there[:, None] & known[None, :]
    if activated:
        value = relu6(value)
    if other is not None:
        value += tl.load(other + first * channels + where, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + first * channels + where, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def stem_kernel(image_data, corners, kernel, bias, out, pixels, window: tl.constexpr, tile: tl.constexpr):
    """From pixels to activated features, written once; the kernel is the sum of two, so that it keeps its digits."""
    start, image = tl.program_id(0) * tile.rows, tl.program_id(1)
    image_data += image.to(tl.int64) * (window.size * window.size * 3)
    place, tap, channel = tl.arange(0, tile.rows), tl.arange(0, 32), tl.arange(0, tile.across)
    known = (channel < tile.channels)[None, :]
    weight = tl.load(kernel + tap[:, None] * tile.channels + channel[None, :], mask=known, other=0.0)
    coarse = weight.to(tl.float16)
    fine = (weight - coarse.to(tl.float32)).to(tl.float16)
    rows = windows_of(image_data, corners, start + place, pixels, window)
    rows = (rows * (1 / 256)).to(tl.float16)
    value = tl.dot(rows, coarse, tl.dot(rows, fine))
    first = image.to(tl.int64) * pixels + start
    store_features(value, bias, None, out, first, start + place < pixels, place, channel, tile.channels, True)


@triton.jit
def pointwise_kernel(x, weight, bias, other, out, pixels, activated: tl.constexpr, tile: tl.constexpr):
    """Some columns of a matrix product; programs that follow each other read the same pixels."""
    columns: tl.constexpr = (tile.channels + tile.across - 1) // tile.across
    start = tl.program_id(0) // columns * tile.rows
    channel = tl.program_id(0) % columns * tile.across + tl.arange(0, tile.across)
    place = tl.arange(0, tile.rows)
    x += start.to(tl.int64) * tile.inputs
    there = start + place < pixels
    value = zeros(tile.rows, tile.across)
    for first in range(0, tile.inputs, tile.depth):
        among = first + tl.arange(0, tile.depth)
        inside = there[:, None] & (among < tile.inputs)[None, :]
        features = tl.load(x + place[:, None] * tile.inputs + among[None, :], mask=inside, other=0.0)
        value = tl.dot(features, load_matrix(weight, among, channel, tile.inputs, tile.channels), value)
    store_features(value, bias, other, out, start.to(tl.int64), there, place, channel, tile.channels, activated)


@triton.jit
def first_taps(pixel, size: tl.constexpr):
    """Of output pixels the row and the column of their first tap, and which pixel of all maps that would be."""
    across: tl.constexpr = size.columns // size.stride
    each: tl.constexpr = size.rows // size.stride * across
    top = pixel % each // across * size.stride - size.before
    left = pixel % across * size.stride - size.before
    return top, left, (pixel // each).to(tl.int64) * (size.rows * size.columns) + top * size.columns + left


@triton.jit
def filtered(x, filters, filter_bias, top, left, there, channel, size: tl.constexpr):
    """(block, across) in float32: some channels of some pixels, of which `x` points at the first taps, filtered."""
    taps: tl.constexpr = size.taps
    known = channel < size.inner
    total = zeros(size.block, size.across)
    # No `static_range`: without a loop every tap would be brought into the layout of a matrix product that follows.
    for i in range(taps):
        for j in tl.static_range(taps):
            inside = inside_map(top + i, left + j, size.rows, size.columns) & there
            where = x + (channel + (i * size.columns + j) * size.inner)[None, :]
            value = tl.load(where, mask=inside[:, None] & known[None, :], other=0.0)
            factor = tl.load(filters + (i * taps + j) * size.inner + channel, mask=known, other=0.0)
            total += value.to(tl.float32) * factor[None, :]
    return relu6(total + tl.load(filter_bias + channel, mask=known, other=0.0)[None, :])


@triton.jit
def filter_kernel(x, filters, filter_bias, out, pixels, size: tl.constexpr):
    """Some channels of some pixels; programs that follow each other have the same pixels."""
    parts: tl.constexpr = (size.inner + size.across - 1) // size.across
    start = tl.program_id(0) // parts * size.block
    channel = tl.program_id(0) % parts * size.across + tl.arange(0, size.across)
    place = tl.arange(0, size.block)
    there = start + place < pixels
    top, left, origin = first_taps(start + place, size)
    x += origin[:, None] * size.inner
    total = filtered(x, filters, filter_bias, top, left, there, channel, size)
    out += start.to(tl.int64) * size.inner
    inside = there[:, None] & (channel < size.inner)[None, :]
    tl.store(out + place[:, None] * size.inner + channel[None, :], total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def expanded_filtered(
    x, expansion, expansion_bias, filters, filter_bias, top, left, there, channel, size: tl.constexpr
):
    """The same from the input of the block, expanded anew for each tap."""
    taps: tl.constexpr = size.taps
    among, known = tl.arange(0, size.depth), channel < size.inner
    weight = load_matrix(expansion, among, channel, size.inputs, size.inner)
    term = tl.load(expansion_bias + channel, mask=known, other=0.0)
    total = zeros(size.block, size.across)
    for i in tl.static_range(taps):
        for j in tl.static_range(taps):
            inside = inside_map(top + i, left + j, size.rows, size.columns) & there
            where = x + (among + (i * size.columns + j) * size.inputs)[None, :]
            features = tl.load(where, mask=inside[:, None] & (among < size.inputs)[None, :], other=0.0)
            value = relu6(tl.dot(features, weight) + term[None, :])
            factor = tl.load(filters + (i * taps + j) * size.inner + channel, mask=known, other=0.0)
            total += tl.where(inside[:, None], value * factor[None, :], 0.0)
    return relu6(total + tl.load(filter_bias + channel, mask=known, other=0.0)[None, :])


@triton.jit
def filter_project_kernel(
    x, expansion, expansion_bias, filters, filter_bias, matrix, bias, other, out, pixels, size: tl.constexpr
):
    """Filters some channels after others, expanded on the way in or before; adds up their parts of the projection."""
    start = tl.program_id(0) * size.block
    place, out_channel = tl.arange(0, size.block), tl.arange(0, size.width)
    there = start + place < pixels
    top, left, origin = first_taps(start + place, size)
    x += origin[:, None] * size.inputs
    projected = zeros(size.block, size.width)
    for first in range(0, size.inner, size.across):
        channel = first + tl.arange(0, size.across)
        if expansion is None:
            total = filtered(x, filters, filter_bias, top, left, there, channel, size)
        else:
            total = expanded_filtered(
                x, expansion, expansion_bias, filters, filter_bias, top, left, there, channel, size
            )
        weight = load_matrix(matrix, channel, out_channel, size.inner, size.outputs)
        projected = tl.dot(total.to(matrix.dtype.element_ty), weight, projected)
    store_features(projected, bias, other, out, start.to(tl.int64), there, place, out_channel, size.outputs, False)


@triton.jit
def nearest_kernel(x, bank, halves, lengths, out, count, axes: tl.constexpr, tile: tl.constexpr):
    """Squared distances of some rows of x from the nearest row of the bank.

    The nearest is found in half precision, by the squared distance without its common term. The last bits of a value
    number its block of vectors, so that one minimum keeps both. The distance from the nearest is then exact.
    """
    start = tl.program_id(0).to(tl.int64) * tile.rows
    row, column, axis = tl.arange(0, tile.rows), tl.arange(0, tile.across), tl.arange(0, tile.depth)
    there, known = start + row < count, (axis < axes)[None, :]
    value = tl.load(x + (start + row)[:, None] * axes + axis[None, :], mask=there[:, None] & known, other=0.0)
    half = tl.minimum(tl.maximum(value, -LARGEST), LARGEST).to(tl.float16)
    best = tl.full((tile.rows, tile.across), float("inf"), tl.float32)
    for block in range(tile.blocks):
        among = block * tile.across + column
        vectors = tl.load(halves + axis[:, None] * (tile.blocks * tile.across) + among[None, :])
        length = tl.load(lengths + among)
        found = tl.dot(half, vectors, tl.broadcast_to(length[None, :], (tile.rows, tile.across)))
        numbered = (found.to(tl.int32, bitcast=True) & -tile.bits) | block
        best = tl.minimum(best, numbered.to(tl.float32, bitcast=True))
    lowest, place = tl.min(best, 1, return_indices=True)
    number = (lowest.to(tl.int32, bitcast=True) & (tile.bits - 1)) * tile.across + place
    gap = value - tl.load(bank + number[:, None] * axes + axis[None, :], mask=known, other=0.0)
    tl.store(out + start + row, tl.sum(gap * gap, 1), mask=there)


# Launches: feature maps are (images x patches, rows, columns, C), and `out` has one row for each image.


def statistics(x: Tensor, out: Tensor) -> None:
    """Writes the statistics of features to `out`.

    The first pixel of an image is subtracted. Pixels are summed up in parts, so that one image too occupies the GPU.
    """
    count, channels = len(out), x.shape[3]
    pixels, tile = x.numel() // channels // count, tile_of(SUMS, channels)
    columns = cdiv(channels, tile.across)
    parts, chunk = in_parts(pixels, tile.rows, PROGRAMS // (count * columns), PARTS)
    sums = out.new_empty(count, parts, 2, channels)
    sums_kernel[parts, columns, count](x, sums, pixels, chunk, parts, tile=tile)
    tile = tile_of((next_power_of_2(parts), STATISTICS), channels)
    statistics_kernel[cdiv(channels, tile.across), count](sums, x, out, pixels, parts, out.stride(0), tile=tile)


def classify(x: Tensor, classifier: "Classifier", out: Tensor) -> None:
    """Writes the logits of a feature map to `out`."""
    tile, taps = tile_of(LOGIT_TERMS, x.shape[3]), classifier.weights.shape[2]
    count, places = out.shape
    pixels, parts = x.numel() // tile.channels // count, cdiv(tile.channels, tile.across)
    terms = x.new_empty(parts, count, pixels, taps, dtype=torch.float32)
    logit_terms_kernel[cdiv(pixels, tile.rows), parts, count](
        x, classifier.weights, terms, pixels, count, tile=tile, taps=taps
    )
    logits_kernel[cdiv(places, LOGITS.value), count](
        *(terms, classifier.bias, out, pixels, count, parts, places, out.stride(0)),
        side=x.shape[1],
        cells=classifier.cells,
        taps=taps,
    )


def stem(images: Tensor, layout: "PatchLayout", kernel: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """First features, through ReLU6; no row or column of zeros precedes the pixels."""
    side, tile = layout.patch // 2, tile_of(STEM, kernel.shape[1])
    out = images.new_empty(len(images) * len(layout.corners), side, side, tile.channels, dtype=dtype)
    pixels, window = len(layout.corners) * side * side, Window(layout.size, layout.patch, side)
    stem_kernel[cdiv(pixels, tile.rows), len(images)](
        images, layout.corners, kernel, bias, out, pixels, window=window, tile=tile
    )
    return out


def mbconv(x: Tensor, block: "FastMBConv") -> Tensor:
    """Output of an inverted residual block, (B, rows, columns, C) to (B, rows / stride, columns / stride, C')."""
    other, expansion, (matrix, bias) = x if block.residual else None, block.expand, block.project
    if expansion is not None and not block.at_once:
        x, expansion = pointwise(x, *expansion, None, EXPAND, activated=True), None
    (inner, outputs), inputs = matrix.shape, x.shape[3]
    size = Filter(
        *(x.shape[1], x.shape[2], block.taps, block.stride, block.before, inputs, inner, outputs),
        block=FILTER[0],
        depth=at_least(inputs),
        across=min(FILTER[1], at_least(inner)),
        width=at_least(outputs),
    )
    out = x.new_empty(len(x), size.rows // block.stride, size.columns // block.stride, outputs)
    pixels = out.numel() // outputs
    blocks = cdiv(pixels, size.block)
    options = {"size": size, "num_stages": 1}  # more would copy taps into shared memory: room for fewer programs
    if outputs > WIDE and not block.at_once:
        found = x.new_empty(*out.shape[:3], inner)
        filter_kernel[(blocks * cdiv(inner, size.across),)](x, *block.filter, found, pixels, **options)
        return pointwise(found, matrix, bias, other, PROJECT, activated=False)
    filter_project_kernel[(blocks,)](
        x, *(expansion or (None, None)), *block.filter, matrix, bias, other, out, pixels, **options
    )
    return out


def pointwise(
    x: Tensor, weight: Tensor, bias: Tensor, other: Tensor | None, most: tuple[int, int], *, activated: bool
) -> Tensor:
    """Convolution of 1 x 1, through ReLU6 if `activated`, plus `other`, if any."""
    (inputs, outputs), pixels = weight.shape, x.numel() // x.shape[3]
    out = x.new_empty(*x.shape[:3], outputs)
    tile = tile_of(most, outputs)._replace(inputs=inputs, depth=min(64, at_least(inputs)))
    pointwise_kernel[(cdiv(pixels, tile.rows) * cdiv(outputs, tile.across),)](
        x, weight, bias, other, out, pixels, activated=activated, tile=tile
    )
    return out


def nearest_squares(x: Tensor, bank: Tensor) -> Tensor:
    """Squared distances (n,) of rows x (n, axes) from the nearest of the bank (vectors, axes), all in float32."""
    rows, across = NEAREST
    (vectors, axes), blocks, bank = bank.shape, cdiv(len(bank), across), bank.contiguous()
    tile = Nearest(rows, across, at_least(axes), blocks, int(next_power_of_2(blocks)))
    missing = blocks * across - vectors
    halves = F.pad(
        (-2 * bank).clamp(-LARGEST.value, LARGEST.value).half(), (0, tile.depth - axes, 0, missing)
    ).T.contiguous()
    lengths, out = F.pad(bank.square().sum(1), (0, missing), value=FAR), x.new_empty(len(x))
    nearest_kernel[(cdiv(len(x), rows),)](x, bank, halves, lengths, out, len(x), axes=axes, tile=tile, num_warps=4)
    return out


def in_parts(pixels: int, block: int, wanted: int, most: int) -> tuple[int, int]:
    """Number of parts of whole blocks, about `wanted` and `most` at most, and the pixels of each."""
    blocks = cdiv(pixels, block)
    chunk = cdiv(blocks, max(1, min(wanted, most, blocks))) * block
    return cdiv(pixels, chunk), chunk


def tile_of(most: tuple[int, int], channels: int) -> Tile:
    """Block of these pixels and at most so many channels."""
    return Tile(most[0], min(most[1], at_least(channels)), channels)


def at_least(channels: int) -> int:
    """Power of two that is not smaller than `channels` or the 16 columns of the matrix units."""
    return max(16, int(next_power_of_2(channels)))
