"""Pictures whose numbers matter, not only their size."""

import numpy as np
from numpy.typing import NDArray


def like_photos(count: int, size: int, seed: int) -> NDArray[np.uint8]:
    """Noise whose amplitude falls with frequency, as in photos; every other one bright and dim, as in fog."""
    rng = np.random.default_rng(seed)
    across = np.fft.fftfreq(size)
    fall = 1 / np.maximum(np.hypot(across[:, None], across[None]), 1 / size)
    pictures = []
    for number in range(count):
        waves = np.fft.fft2(rng.normal(size=(3, size, size))) * fall
        values = np.fft.ifft2(waves).real.transpose(1, 2, 0)
        values = (values - values.mean()) / values.std()
        values = 200 + 6 * values if number % 2 else 120 + 50 * values
        pictures.append(np.clip(values.round(), 0, 255).astype(np.uint8))
    return np.ascontiguousarray(np.stack(pictures))
