"""Triton kernels of the fast pass; Triton is installed only where there is a GPU. `Kernels` launches them.

Feature maps lie channel by channel within a pixel, an image's pixels one after another: (images, pixels, channels). In
kernels of inverted networks, pixels are counted through all maps of a batch. Offsets of an image are 64-bit integers,
those inside one are 32-bit. As usual in Triton, only compile-time arguments are annotated.
"""

import triton
import triton.language as tl


@triton.jit
def windows_of(
    image_data,
    corners,
    pixel,
    pixels,
    size: tl.constexpr,
    patch: tl.constexpr,
    side: tl.constexpr,
    before: tl.constexpr,
):
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


@triton.jit
def moments_kernel(
    image_data,
    corners,
    moments,
    pixels,
    chunk,
    parts,
    size: tl.constexpr,
    patch: tl.constexpr,
    side: tl.constexpr,
    block: tl.constexpr,
):
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


@triton.jit
def first_layer_kernel(
    image_data,
    corners,
    kernel,
    scale,
    shift,
    out,
    pixels,
    chunk,
    slope: tl.constexpr,
    channels: tl.constexpr,
    size: tl.constexpr,
    patch: tl.constexpr,
    side: tl.constexpr,
    block: tl.constexpr,
    across: tl.constexpr,
):
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


@triton.jit
def sums_kernel(x, sums, pixels, chunk, parts, channels: tl.constexpr, block: tl.constexpr, across: tl.constexpr):
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


@triton.jit
def statistics_kernel(
    sums,
    x,
    conv_bias,
    weight,
    bias,
    scale,
    shift,
    out,
    pixels,
    parts,
    width,
    eps: tl.constexpr,
    smallest: tl.constexpr,
    shifted: tl.constexpr,
    channels: tl.constexpr,
    together: tl.constexpr,
    across: tl.constexpr,
):
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


@triton.jit
def feature_block(pixels, channels: tl.constexpr, block: tl.constexpr, across: tl.constexpr):
    """A program's image and first pixel, its pixels and channels, which of them exist, and their offsets."""
    image, start = tl.program_id(2), tl.program_id(0) * block
    place, channel = tl.arange(0, block), tl.program_id(1) * across + tl.arange(0, across)
    inside = (start + place < pixels)[:, None] & (channel < channels)[None, :]
    return image, start, place, channel, inside, place[:, None] * channels + channel[None, :]


@triton.jit
def load_activated(x, scale, shift, image, channel, where, inside, slope: tl.constexpr, channels):
    """A block of normalised features, through the LeakyReLU, in float32; 0 outside."""
    known = channel < channels
    factor = tl.load(scale + image * channels + channel, mask=known, other=0.0)
    term = tl.load(shift + image * channels + channel, mask=known, other=0.0)
    value = tl.load(x + where, mask=inside, other=0.0).to(tl.float32) * factor[None, :] + term[None, :]
    return tl.where(inside, tl.maximum(value, slope * value), 0.0)


@triton.jit
def activate_kernel(
    x, scale, shift, pixels, slope: tl.constexpr, channels: tl.constexpr, block: tl.constexpr, across: tl.constexpr
):
    """Normalises and activates the features in place."""
    image, start, _, channel, inside, where = feature_block(pixels, channels, block, across)
    x += (image.to(tl.int64) * pixels + start) * channels
    value = load_activated(x, scale, shift, image, channel, where, inside, slope, channels)
    tl.store(x + where, value.to(x.dtype.element_ty), mask=inside)


@triton.jit
def logit_terms_kernel(
    x,
    scale,
    shift,
    high,
    low,
    terms,
    pixels,
    images,
    normalise: tl.constexpr,
    slope: tl.constexpr,
    channels: tl.constexpr,
    taps: tl.constexpr,
    block: tl.constexpr,
    across: tl.constexpr,
):
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


@triton.jit
def logits_kernel(
    terms,
    bias,
    out,
    pixels,
    images,
    parts,
    places,
    width,
    side: tl.constexpr,
    cells: tl.constexpr,
    taps: tl.constexpr,
    block: tl.constexpr,
):
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


@triton.jit
def relu6(value):
    return tl.minimum(tl.maximum(value, 0.0), 6.0)


@triton.jit
def stem_kernel(
    image_data,
    corners,
    kernel,
    bias,
    out,
    pixels,
    channels: tl.constexpr,
    size: tl.constexpr,
    patch: tl.constexpr,
    side: tl.constexpr,
    block: tl.constexpr,
    across: tl.constexpr,
):
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


@triton.jit
def pointwise_kernel(
    x,
    weight,
    bias,
    other,
    out,
    pixels,
    activated: tl.constexpr,
    joined: tl.constexpr,
    inputs: tl.constexpr,
    outputs: tl.constexpr,
    block: tl.constexpr,
    depth: tl.constexpr,
    across: tl.constexpr,
):
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


@triton.jit
def first_taps(pixel, rows: tl.constexpr, columns: tl.constexpr, stride: tl.constexpr, before: tl.constexpr):
    """Of output pixels the row and the column of their first tap, and which pixel of all maps that would be."""
    across: tl.constexpr = columns // stride
    each: tl.constexpr = rows // stride * across
    top = pixel % each // across * stride - before
    left = pixel % across * stride - before
    return top, left, (pixel // each).to(tl.int64) * (rows * columns) + top * columns + left


@triton.jit
def inside_map(row, column, rows: tl.constexpr, columns: tl.constexpr):
    return (row >= 0) & (row < rows) & (column >= 0) & (column < columns)


@triton.jit
def filtered(
    x,
    filters,
    filter_bias,
    top,
    left,
    there,
    channel,
    rows: tl.constexpr,
    columns: tl.constexpr,
    taps: tl.constexpr,
    inner: tl.constexpr,
    block: tl.constexpr,
    across: tl.constexpr,
):
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


@triton.jit
def filter_kernel(
    x,
    filters,
    filter_bias,
    out,
    pixels,
    rows: tl.constexpr,
    columns: tl.constexpr,
    taps: tl.constexpr,
    stride: tl.constexpr,
    before: tl.constexpr,
    inner: tl.constexpr,
    block: tl.constexpr,
    across: tl.constexpr,
):
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


@triton.jit
def store_projected(
    value,
    bias,
    other,
    out,
    start,
    there,
    joined: tl.constexpr,
    outputs: tl.constexpr,
    block: tl.constexpr,
    width: tl.constexpr,
):
    """A block's last features: with their bias and, where there is one, another map."""
    place, channel = tl.arange(0, block), tl.arange(0, width)
    inside = there[:, None] & (channel < outputs)[None, :]
    where = place[:, None] * outputs + channel[None, :]
    value += tl.load(bias + channel, mask=channel < outputs, other=0.0)[None, :]
    if joined:
        value += tl.load(other + start.to(tl.int64) * outputs + where, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + start.to(tl.int64) * outputs + where, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def filter_project_kernel(
    x,
    filters,
    filter_bias,
    matrix,
    bias,
    other,
    out,
    pixels,
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
):
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


@triton.jit
def whole_block_kernel(
    x,
    expansion,
    expansion_bias,
    filters,
    filter_bias,
    matrix,
    bias,
    other,
    out,
    pixels,
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
):
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
