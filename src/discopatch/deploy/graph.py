"""The whole detector as one graph, from pixels to the decision and the heatmap: what every format is made from."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim

from discopatch.deploy.look import Look
from discopatch.detector import Detector
from discopatch.model import Discriminator
from discopatch.patches import grid_corners, scoring_corners
from discopatch.scoring.graphs import head_graph, hold
from discopatch.scoring.regions import OVERLAPPING, along_a_side

ANY_NUMBER = ({0: Dim("images", min=1, max=1 << 15)},)  # of pictures, whose size is fixed

Output = tuple[Tensor, Tensor, Tensor]  # score (B,) in float64, at_least (B,) in int64, heat (B, 64, 64) in float32


class DetectorGraph(nn.Module):
    """A fitted detector around a network of its own, and with the calibration scores that belong to that."""

    calibration: Tensor
    rows: Tensor

    def __init__(self, detector: Detector, network: Discriminator, calibration: NDArray[np.float64]) -> None:
        super().__init__()
        fitted, size = detector.fitted, detector.loaded_weights.transform.size
        self.image, self.regions = look_at_image(detector, network), look_at_regions(network, size)
        self.head, self.region_head = head_graph(fitted.head), head_graph(fitted.regions.head)
        self.usual = fitted.regions.usual
        hold(self, calibration=calibration, rows=interpolation(size, network.architecture.patch_size))
        self.eval().requires_grad_(False)

    def forward(self, pixels: Tensor) -> Output:
        """(B, size, size, 3) in uint8, as the transform leaves them -> the outputs."""
        score = self.head(*self.image(pixels))
        at_least = (self.calibration >= score[:, None]).sum(1)
        return score, at_least, self.heat(pixels)

    def heat(self, pixels: Tensor) -> Tensor:
        """How much stranger each region is than usual, over the image; see `discopatch.scoring.regions`."""
        stranger = (self.region_head(*self.regions(pixels)) - self.usual).clamp(min=0)
        heat: Tensor = self.rows @ stranger.reshape(-1, OVERLAPPING, OVERLAPPING) @ self.rows.T
        return heat.float()


def example(size: int) -> tuple[Tensor]:
    """What the graph is traced with."""
    return (torch.zeros(2, size, size, 3, dtype=torch.uint8),)


def look_at_image(detector: Detector, network: Discriminator) -> Look:
    """As the detector's scorer looks at an image."""
    size, patch_size = detector.loaded_weights.transform.size, network.architecture.patch_size
    if detector.sampling == "dense":
        return Look(network, size=size)
    corners = scoring_corners(detector.sampling, detector.patches, size=size, patch_size=patch_size, seed=detector.seed)
    return Look(network, size=size, corners=corners, group=len(corners))


def look_at_regions(network: Discriminator, size: int) -> Look:
    """At overlapping patches, each as if it were an image."""
    corners = grid_corners(OVERLAPPING**2, size=size, patch_size=network.architecture.patch_size)
    return Look(network, size=size, corners=corners)


def interpolation(size: int, patch_size: int) -> NDArray[np.float64]:
    """(64, 7): from values at the middles of the regions along a side to the cells along it, on straight lines."""
    middles, cells = along_a_side(size, patch_size)
    return np.stack([np.interp(cells, middles, region) for region in np.eye(OVERLAPPING)], axis=1)
