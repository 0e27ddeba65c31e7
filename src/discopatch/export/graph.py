"""A whole detector as one module, from pixels to p-value counts and anomaly map: what every format is written from."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from discopatch.fitting import make_encoder
from discopatch.heads import Head
from discopatch.heads.gaussian import ShrunkGaussian
from discopatch.heads.regions import GRID, interpolation_matrix

if TYPE_CHECKING:
    from discopatch.detector import Detector

DYNAMIC_SHAPES = ({0: Dim("images", min=1, max=1 << 15)},)  # any number of images, whose size is fixed


class DetectorGraph(nn.Module):
    """A fitted detector with copies of its network and heads, which can be changed without touching the detector."""

    calibration_scores: Tensor
    interpolation: Tensor

    def __init__(self, detector: "Detector") -> None:
        super().__init__()
        weights, regions = detector.weights_, detector.regions_
        self.size = weights.transform.size
        weights = replace(weights, discriminator=deepcopy(weights.discriminator))
        encoder = make_encoder(weights, detector.state_.parameters, device="cpu", batch_size=1)
        self.image, self.regions = encoder.extractor, encoder.region_extractor(GRID**2)
        self.head, self.region_head = graph_head(detector.head_), graph_head(regions.head)
        self.region_threshold = regions.threshold
        self.register_buffer("interpolation", torch.tensor(interpolation_matrix(self.size, encoder.patch_size)))
        self.register_buffer("calibration_scores", torch.tensor(detector.calibration_scores_))
        self.eval().requires_grad_(False)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, size, size, 3) uint8 to score (B,) float64, at_least (B,) int64, anomaly_map (B, 64, 64) float32."""
        score = self.head(*self.image(pixels))
        at_least = (self.calibration_scores >= score[:, None]).sum(1)
        return score, at_least, self.anomaly_map(pixels)

    def anomaly_map(self, pixels: Tensor) -> Tensor:
        """`RegionModel.anomaly_map` for (B, size, size, 3)."""
        excess = (self.region_head(*self.regions(pixels)) - self.region_threshold).clamp(min=0)
        found: Tensor = self.interpolation @ excess.reshape(-1, GRID, GRID) @ self.interpolation.T
        return found.float()


def graph_head(head: Head) -> Head:
    """A copy of the head on the CPU; axes, the bulk of it, are float32 numbers and become constants of that type."""
    copy = deepcopy(head).cpu()
    for module in copy.modules():
        if isinstance(module, ShrunkGaussian):
            module.axes, module.overlap = module.axes.float(), module.overlap.float()
    return copy


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Silences what torch's exporters say about operators that are not used."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def trace(graph: nn.Module, size: int) -> ExportedProgram:
    """The graph for any number of images (B, size, size, 3), by `torch.export`; an error where it depends on B."""
    with quiet_torch(), torch.no_grad():
        example = torch.zeros(2, size, size, 3, dtype=torch.uint8)
        program = torch.export.export(graph, (example,), dynamic_shapes=DYNAMIC_SHAPES)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it holds the folders of the exporting machine
    return program
