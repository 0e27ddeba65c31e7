"""How much arithmetic a look costs, whatever the machine."""

from itertools import pairwise

from discopatch.model import Architecture


def multiplications(architecture: Architecture, *, size: int, patches: int | None = None) -> int:
    """Of the convolutions, an image: over the whole of it once, or at so many patches."""
    side = size if patches is None else architecture.patch_size
    total = 0
    for inputs, outputs in pairwise((3, *architecture.hidden)):
        side //= 2
        total += 9 * inputs * outputs * side**2
    return total * (1 if patches is None else patches)
