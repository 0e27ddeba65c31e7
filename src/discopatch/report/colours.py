"""The colours of heat: dark and clear where there is little, bright and opaque where there is much."""

import numpy as np
from numpy.typing import NDArray

# Inferno at nine equal steps: lightness rises evenly, also for the colour-blind and in grey print.
_INFERNO = np.array(
    [
        (0, 0, 4),
        (33, 12, 74),
        (87, 16, 110),
        (138, 34, 106),
        (188, 55, 84),
        (228, 90, 49),
        (249, 142, 9),
        (249, 203, 53),
        (252, 255, 164),
    ],
    dtype=np.float64,
)
_STEPS = np.linspace(0, 1, len(_INFERNO))
_CLEAR_BELOW = 0.15  # a faint veil over the whole picture would hide it and say nothing
_MOST_OPAQUE = 0.78


def heat_colours(heat: NDArray[np.float64]) -> NDArray[np.uint8]:
    """(...) from 0 to 1 -> (..., 4): red, green, blue and opacity."""
    channels = [np.interp(heat, _STEPS, _INFERNO[:, channel]) for channel in range(3)]
    visible = np.clip((heat - _CLEAR_BELOW) / (1 - _CLEAR_BELOW), 0, 1)
    opacity = 255 * _MOST_OPAQUE * (1 - (1 - visible) ** 2)
    return np.rint(np.stack([*channels, opacity], axis=-1)).astype(np.uint8)


def css_gradient() -> str:
    """The same colours from little heat to much, for a legend in a page."""
    stops = (f"rgb({red} {green} {blue} / {alpha / 255:.2f})" for red, green, blue, alpha in heat_colours(_STEPS))
    return f"linear-gradient(to right, {', '.join(stops)})"
