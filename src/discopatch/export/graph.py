"""A whole detector as one module, from pixels to scores and maps: the graph that is exported."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.fx.config
from torch import Tensor, nn

from discopatch.encoders import DiscriminatorEncoder
from discopatch.explain.anomaly_map import GRID, interpolation_matrix
from discopatch.export.metadata import ANOMALY_MAP, COMPONENTS, PLACE_MAP, SCORE
from discopatch.heads import Head, LocalMemory
from discopatch.heads.gaussian import ShrunkGaussian
from discopatch.heads.memory import Neighbours

if TYPE_CHECKING:
    from discopatch.detector import Detector


class DetectorGraph(nn.Module):
    """A fitted detector with copies of its network and heads, which can be changed without changing the detector."""

    interpolation: Tensor
    place_interpolation: Tensor | None  # (64, side)

    def __init__(self, detector: "Detector") -> None:
        super().__init__()
        weights, regions = detector.weights_, detector.regions_
        self.size = weights.transform.size
        weights = replace(weights, discriminator=deepcopy(weights.discriminator))
        head = detector.head_
        parameters = {name: getattr(detector, name) for name in ("patches", "sampling", "seed", "precision")}
        encoder = DiscriminatorEncoder(weights, **parameters, batch_size=1, kinds=head.needs)
        self.image, self.regions = encoder.extractor, encoder.region_extractor(GRID**2)
        self.image.discriminator = self.regions.discriminator = weights.discriminator  # as trained, not folded
        self.head, self.region_head = graph_head(head), graph_head(regions)
        self.region_threshold = regions.threshold.item()
        self.register_buffer("interpolation", torch.tensor(interpolation_matrix(self.size, encoder.patch_size)))
        side = head.place_side
        rows = torch.tensor(interpolation_matrix(side, 1, count=side)) if side else None
        self.register_buffer("place_interpolation", rows)
        self.eval().requires_grad_(False)

    @property
    def example(self) -> Tensor:
        """Two black images."""
        return torch.zeros(2, self.size, self.size, 3, dtype=torch.uint8)

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """(B, size, size, 3) in uint8 to score (B,) in float64 and anomaly_map (B, 64, 64) in float32.

        With a head of components also components (B, n) in float64, and place_map (B, side, side) in float32.
        """
        score, components, place_map = self.head.output(**self.image(pixels))
        found = {SCORE: score, ANOMALY_MAP: self.anomaly_map(pixels)}
        if components.shape[1]:
            found[COMPONENTS] = components
        if place_map is not None and self.place_interpolation is not None:
            heat = self.place_interpolation @ place_map @ self.place_interpolation.T  # as `explain.heat_of_places`
            found[ANOMALY_MAP] = found[ANOMALY_MAP] + heat.clamp(min=0).float()
            found[PLACE_MAP] = place_map.float()
        return found

    def anomaly_map(self, pixels: Tensor) -> Tensor:
        """`RegionModel.anomaly_map` for (B, size, size, 3)."""
        excess = (self.region_head(**self.regions(pixels)) - self.region_threshold).clamp(min=0)
        found: Tensor = self.interpolation @ excess.reshape(-1, GRID, GRID) @ self.interpolation.T
        return found.float()


def graph_head(head: Head) -> Head:
    """A copy of the head on the CPU, whose large constants (axes, stored images and places) are float32."""
    copy = deepcopy(head).cpu()
    for module in copy.modules():
        match module:
            case ShrunkGaussian():
                module.axes, module.overlap = module.axes.float(), module.overlap.float()
            case Neighbours():
                module.bank = module.bank.float()
            case LocalMemory():
                del module.vectors  # `bank` has the same values in float32
    return copy


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Silences torch's exporter and leaves out its stack traces, which take a quarter of its time."""
    log, tracing = logging.getLogger("torch.onnx"), cast("Any", torch.fx.config)
    level, without = log.level, getattr(tracing, "do_not_emit_stack_traces", False)  # not in older versions
    log.setLevel(logging.ERROR)
    tracing.do_not_emit_stack_traces = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
        tracing.do_not_emit_stack_traces = without
