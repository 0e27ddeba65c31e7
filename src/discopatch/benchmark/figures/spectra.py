"""How much of patches lies at each spatial frequency."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from discopatch.benchmark.figures.style import LINES, ONE_COLUMN, colour, new, printed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

FREQUENCIES = "frequencies"


def radial_spectrum(patches: NDArray[np.floating]) -> tuple[Array, Array]:
    """(N, H, W) or (N, H, W, 3) -> frequencies in cycles a pixel up to one half, and mean power at each.

    Power is averaged over patches, channels and directions, so that white noise of variance v is v everywhere. The mean
    of all patches is taken away and each is faded out towards its border (Hann), which would else add power of its own.
    """
    if patches.ndim not in (3, 4) or not patches.size or min(patches.shape[1:3]) < 4:
        raise ValueError(f"patches of shape {patches.shape}: give (N, H, W) or (N, H, W, 3) with sides of at least 4")
    stack = np.asarray(patches, np.float64).reshape(*patches.shape[:3], -1)
    stack = stack - stack.mean(axis=(0, 1, 2))
    height, width = stack.shape[1:3]
    window = np.outer(_hann(height), _hann(width))[:, :, None]
    power = np.zeros((height, width // 2 + 1))
    for patch in stack:  # one by one: the transforms of thousands need gigabytes
        power += (np.abs(np.fft.rfft2(patch * window, axes=(0, 1))) ** 2).mean(axis=2)
    power /= len(stack) * (window**2).sum()
    return _rings(power, height, width)


def _hann(size: int) -> Array:
    """Without a zero at the border, so that small patches keep all their pixels."""
    found: Array = 0.5 - 0.5 * np.cos(2 * np.pi * (np.arange(size) + 0.5) / size)
    return found


def _rings(power: Array, height: int, width: int) -> tuple[Array, Array]:
    """Means over rings of equal frequency, the constant left out."""
    side = min(height, width)
    distance = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    ring = np.rint(distance * side).astype(int)
    doubled = np.ones_like(power)  # columns that stand for their mirror images too
    doubled[:, 1 : (width + 1) // 2] = 2
    last = side // 2
    sums, counts = (np.bincount(ring.ravel(), each.ravel())[1 : last + 1] for each in (power * doubled, doubled))
    return np.arange(1, last + 1) / side, sums / counts


def spectra_figure(found: Mapping[str, Sequence[float]]) -> "Figure":
    """A line for each kind of patches: {"frequencies": [...], "real": [...], "reconstructed": [...], ...}."""
    with printed():
        figure, ((axis,),) = new(ONE_COLUMN, 2.5)
        kinds = [name for name in found if name != FREQUENCIES]
        for place, name in enumerate(kinds):
            axis.plot(
                found[FREQUENCIES], found[name], color=colour(place), linestyle=LINES[place % len(LINES)], label=name
            )
        axis.set_yscale("log")
        axis.minorticks_off()
        axis.set_xlim(0, 0.5)
        axis.set_xlabel("frequency (cycles a pixel)")
        axis.set_ylabel("power")
        axis.grid(which="major")
        axis.legend()
    return figure
