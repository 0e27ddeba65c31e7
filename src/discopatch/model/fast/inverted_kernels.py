"""The stages of inverted residual networks as Triton kernels, in half precision with sums in float32.

Feature maps lie as in `kernels.py`; pixels are counted through all maps of a batch, as no stage here mixes or tells
apart images. The stages are explained in `network.Stages`, how they are launched in `inverted_launch.py`.
"""

import triton.language as tl

from discopatch.model.fast.kernels import jit, windows_of


@jit
def relu6(value: tl.tensor) -> tl.tensor:
    return tl.minimum(tl.maximum(value, 0.0), 6.0)


@jit
def stem_kernel(
    image_data: tl.tensor,
    corners: tl.tensor,
    kernel: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    pixels: tl.tensor,
    channels: tl.constexpr,
    size: tl.constexpr,
    patch: tl.constexpr,
    side: tl.constexpr,
    block: tl.constexpr,
    across: tl.constexpr,
) -> None:
    """From pixels to activated features, written once; the kernel is the sum of two, so that it keeps its digits."""
    start, image = tl.program_id(0) * block, tl.program_id(1)
    image_data += image.to(tl.int64) * (size * size * 3)
    out += (image.to(tl.int64) * pixels + start) * channels
    place, tap, channel = tl.arange(0, block), tl.arange(0, 32), tl.arange(0, across)
    known = channel < channels
    weight = tl.load(kernel + tap[:, None] * channels + channel[None, :], mask=known[None, :], other=0.0)
    coarse = weight.to(tl.float16)
    fine = (weight - coarse.to(tl.float32)).to(tl.float16)
    rows = windows_of(image_data, corners, start + place, pixels, size, patch, side, 0)
    rows = (rows * (1 / 256)).to(tl.float16)
    value = tl.dot(rows, coarse, tl.dot(rows, fine)) + tl.load(bias + channel, mask=known, other=0.0)[None, :]
    inside = (start + place < pixels)[:, None] & known[None, :]
    where = place[:, None] * channels + channel[None, :]
    tl.store(out + where, relu6(value).to(out.dtype.element_ty), mask=inside)


@jit
def pointwise_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    other: tl.tensor,
    out: tl.tensor,
    pixels: tl.tensor,
    activated: tl.constexpr,
    joined: tl.constexpr,
    inputs: tl.constexpr,
    outputs: tl.constexpr,
    block: tl.constexpr,
    depth: tl.constexpr,
    across: tl.constexpr,
) -> None:
    """Some columns of a matrix product, through ReLU6 if `activated`, plus another map if `joined`.

    Programs that follow each other read the same pixels.
    """
    columns: tl.constexpr = (outputs + across - 1) // across
    start = tl.program_id(0) // columns * block
    channel = tl.program_id(0) % columns * across + tl.arange(0, across)
    place, known = tl.arange(0, block), channel < outputs
    x += start.to(tl.int64) * inputs
    out += start.to(tl.int64) * outputs
    there = start + place < pixels
    value = tl.zeros((block, across), tl.float32)
    for first in range(0, inputs, depth):
        among = first + tl.arange(0, depth)
        features = tl.load(
            x + place[:, None] * inputs + among[None, :], mask=there[:, None] & (among < inputs)[None, :], other=0.0
        )
        matrix = tl.load(
            weight + among[:, None] * outputs + channel[None, :],
            mask=(among < inputs)[:, None] & known[None, :],
            other=0.0,
        )
        value = tl.dot(features, matrix, value)
    value += tl.load(bias + channel, mask=known, other=0.0)[None, :]
    where, inside = place[:, None] * outputs + channel[None, :], there[:, None] & known[None, :]
    if activated:
        value = relu6(value)
    if joined:
        value += tl.load(other + start.to(tl.int64) * outputs + where, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + where, value.to(out.dtype.element_ty), mask=inside)


@jit
def first_taps(
    pixel: tl.tensor,
    rows: tl.constexpr,
    columns: tl.constexpr,
    stride: tl.constexpr,
    before: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Of output pixels the row and the column of their first tap, and which pixel of all maps that would be."""
    across: tl.constexpr = columns // stride
    each: tl.constexpr = rows // stride * across
    top = pixel % each // across * stride - before
    left = pixel % across * stride - before
    return top, left, (pixel // each).to(tl.int64) * (rows * columns) + top * columns + left


@jit
def inside_map(row: tl.tensor, column: tl.tensor, rows: tl.constexpr, columns: tl.constexpr) -> tl.tensor:
    return (row >= 0) & (row < rows) & (column >= 0) & (column < columns)


@jit
def filtered(
    x: tl.tensor,
    filters: tl.tensor,
    filter_bias: tl.tensor,
    top: tl.tensor,
    left: tl.tensor,
    there: tl.tensor,
    channel: tl.tensor,
    rows: tl.constexpr,
    columns: tl.constexpr,
    taps: tl.constexpr,
    inner: tl.constexpr,
    block: tl.constexpr,
    across: tl.constexpr,
) -> tl.tensor:
    """(block, across) in float32: some channels of some pixels, of which `x` points at the first taps, filtered."""
    known = channel < inner
    total = tl.zeros((block, across), tl.float32)
    # No `static_range`: without a loop every tap would be brought into the layout of a matrix product that follows.
    for i in range(taps):
        for j in tl.static_range(taps):
            inside = inside_map(top + i, left + j, rows, columns) & there
            value = tl.load(
                x + (channel + (i * columns + j) * inner)[None, :], mask=inside[:, None] & known[None, :], other=0.0
            )
            factor = tl.load(filters + (i * taps + j) * inner + channel, mask=known, other=0.0)
            total += value.to(tl.float32) * factor[None, :]
    return relu6(total + tl.load(filter_bias + channel, mask=known, other=0.0)[None, :])


@jit
def filter_kernel(
    x: tl.tensor,
    filters: tl.tensor,
    filter_bias: tl.tensor,
    out: tl.tensor,
    pixels: tl.tensor,
    rows: tl.constexpr,
    columns: tl.constexpr,
    taps: tl.constexpr,
    stride: tl.constexpr,
    before: tl.constexpr,
    inner: tl.constexpr,
    block: tl.constexpr,
    across: tl.constexpr,
) -> None:
    """Some channels of some pixels; programs that follow each other have the same pixels."""
    parts: tl.constexpr = (inner + across - 1) // across
    start = tl.program_id(0) // parts * block
    channel = tl.program_id(0) % parts * across + tl.arange(0, across)
    place = tl.arange(0, block)
    there = start + place < pixels
    top, left, origin = first_taps(start + place, rows, columns, stride, before)
    x += origin[:, None] * inner
    total = filtered(x, filters, filter_bias, top, left, there, channel, rows, columns, taps, inner, block, across)
    out += start.to(tl.int64) * inner
    inside = there[:, None] & (channel < inner)[None, :]
    tl.store(out + place[:, None] * inner + channel[None, :], total.to(out.dtype.element_ty), mask=inside)


@jit
def store_projected(
    value: tl.tensor,
    bias: tl.tensor,
    other: tl.tensor,
    out: tl.tensor,
    start: tl.tensor,
    there: tl.tensor,
    joined: tl.constexpr,
    outputs: tl.constexpr,
    block: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """A block's last features: with their bias and, where there is one, another map."""
    place, channel = tl.arange(0, block), tl.arange(0, width)
    inside = there[:, None] & (channel < outputs)[None, :]
    where = place[:, None] * outputs + channel[None, :]
    value += tl.load(bias + channel, mask=channel < outputs, other=0.0)[None, :]
    if joined:
        value += tl.load(other + start.to(tl.int64) * outputs + where, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + start.to(tl.int64) * outputs + where, value.to(out.dtype.element_ty), mask=inside)


@jit
def filter_project_kernel(
    x: tl.tensor,
    filters: tl.tensor,
    filter_bias: tl.tensor,
    matrix: tl.tensor,
    bias: tl.tensor,
    other: tl.tensor,
    out: tl.tensor,
    pixels: tl.tensor,
    joined: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    taps: tl.constexpr,
    stride: tl.constexpr,
    before: tl.constexpr,
    inner: tl.constexpr,
    outputs: tl.constexpr,
    block: tl.constexpr,
    across: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """Filters some channels after others, and adds up what each of them is in the projection."""
    start = tl.program_id(0) * block
    pixel = start + tl.arange(0, block)
    there = pixel < pixels
    top, left, origin = first_taps(pixel, rows, columns, stride, before)
    x += origin[:, None] * inner
    out_channel = tl.arange(0, width)
    projected = tl.zeros((block, width), tl.float32)
    for first in range(0, inner, across):
        channel = first + tl.arange(0, across)
        known = channel < inner
        total = filtered(x, filters, filter_bias, top, left, there, channel, rows, columns, taps, inner, block, across)
        weight = tl.load(
            matrix + channel[:, None] * outputs + out_channel[None, :],
            mask=known[:, None] & (out_channel < outputs)[None, :],
            other=0.0,
        )
        projected = tl.dot(total.to(matrix.dtype.element_ty), weight, projected)
    store_projected(projected, bias, other, out, start, there, joined, outputs, block, width)


@jit
def whole_block_kernel(
    x: tl.tensor,
    expansion: tl.tensor,
    expansion_bias: tl.tensor,
    filters: tl.tensor,
    filter_bias: tl.tensor,
    matrix: tl.tensor,
    bias: tl.tensor,
    other: tl.tensor,
    out: tl.tensor,
    pixels: tl.tensor,
    joined: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    taps: tl.constexpr,
    stride: tl.constexpr,
    before: tl.constexpr,
    inputs: tl.constexpr,
    inner: tl.constexpr,
    outputs: tl.constexpr,
    block: tl.constexpr,
    depth: tl.constexpr,
    across: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """The same from the block's own input, expanded anew for each tap."""
    start = tl.program_id(0) * block
    pixel = start + tl.arange(0, block)
    there = pixel < pixels
    top, left, origin = first_taps(pixel, rows, columns, stride, before)
    among = tl.arange(0, depth)
    x += origin[:, None] * inputs + among[None, :]
    out_channel = tl.arange(0, width)
    projected = tl.zeros((block, width), tl.float32)
    for first in range(0, inner, across):
        channel = first + tl.arange(0, across)
        known = channel < inner
        weight = tl.load(
            expansion + among[:, None] * inner + channel[None, :],
            mask=(among < inputs)[:, None] & known[None, :],
            other=0.0,
        )
        term = tl.load(expansion_bias + channel, mask=known, other=0.0)
        total = tl.zeros((block, across), tl.float32)
        for i in tl.static_range(taps):
            for j in tl.static_range(taps):
                inside = inside_map(top + i, left + j, rows, columns) & there
                features = tl.load(
                    x + (i * columns + j) * inputs, mask=inside[:, None] & (among < inputs)[None, :], other=0.0
                )
                value = relu6(tl.dot(features, weight) + term[None, :])
                factor = tl.load(filters + (i * taps + j) * inner + channel, mask=known, other=0.0)
                total += tl.where(inside[:, None], value * factor[None, :], 0.0)
        total = relu6(total + tl.load(filter_bias + channel, mask=known, other=0.0)[None, :])
        weight = tl.load(
            matrix + channel[:, None] * outputs + out_channel[None, :],
            mask=known[:, None] & (out_channel < outputs)[None, :],
            other=0.0,
        )
        projected = tl.dot(total.to(matrix.dtype.element_ty), weight, projected)
    store_projected(projected, bias, other, out, start, there, joined, outputs, block, width)
