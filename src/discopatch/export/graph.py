"""A whole detector as one module, from pixels to all that is said of them: what every format is written from."""

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
from torch.export import Dim, ExportedProgram

from discopatch.encoders import DiscriminatorEncoder
from discopatch.explain.anomaly_map import GRID, interpolation_matrix, place_interpolation
from discopatch.export.metadata import ANOMALY_MAP, AT_LEAST, COMPONENTS, PLACE_MAP, SCORE
from discopatch.heads import Head, LocalMemory
from discopatch.heads.gaussian import ShrunkGaussian
from discopatch.heads.neighbours import Neighbours

if TYPE_CHECKING:
    from discopatch.detector import Detector

DYNAMIC_SHAPES = ({0: Dim("images", min=1, max=1 << 15)},)  # any number of images, whose size is fixed


class DetectorGraph(nn.Module):
    """A fitted detector with copies of its network and heads, which can be changed without touching the detector."""

    calibration_scores: Tensor
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
        self.image.discriminator = self.regions.discriminator = weights.discriminator  # as it was trained, not folded
        self.head, self.region_head = graph_head(head), graph_head(regions.head)
        self.region_threshold = regions.threshold
        self.register_buffer("interpolation", torch.tensor(interpolation_matrix(self.size, encoder.patch_size)))
        rows = torch.tensor(place_interpolation(head.place_side)) if head.place_side else None
        self.register_buffer("place_interpolation", rows)
        self.register_buffer("calibration_scores", torch.tensor(detector.calibration_scores_))
        self.eval().requires_grad_(False)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what `forward` returns, in order."""
        own = (COMPONENTS,) if self.head.component_names else ()
        return (SCORE, AT_LEAST, ANOMALY_MAP, *own, *(() if self.place_interpolation is None else (PLACE_MAP,)))

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """(B, size, size, 3) uint8 to score (B,) float64, at_least (B,) int64, anomaly_map (B, 64, 64) float32.

        Also components (B, n) float64, and place_map (B, side, side) float32, of a head that tells of them.
        """
        score, components, place_map = self.head.output(**self.image(pixels))
        at_least = (self.calibration_scores >= score[:, None]).sum(1)
        found = {SCORE: score, AT_LEAST: at_least, ANOMALY_MAP: self.anomaly_map(pixels)}
        if components is not None:
            found[COMPONENTS] = components
        if place_map is not None and self.place_interpolation is not None:
            heat = self.place_interpolation @ place_map @ self.place_interpolation.T  # `regions.heat_of_places`
            found[ANOMALY_MAP] = found[ANOMALY_MAP] + heat.clamp(min=0).float()
            found[PLACE_MAP] = place_map.float()
        return found

    def anomaly_map(self, pixels: Tensor) -> Tensor:
        """`RegionModel.anomaly_map` for (B, size, size, 3)."""
        excess = (self.region_head(**self.regions(pixels)) - self.region_threshold).clamp(min=0)
        found: Tensor = self.interpolation @ excess.reshape(-1, GRID, GRID) @ self.interpolation.T
        return found.float()


def graph_head(head: Head) -> Head:
    """A copy of the head on the CPU.

    What is the bulk of it, axes and stored images and places, are float32 numbers and become constants of that type.
    """
    copy = deepcopy(head).cpu()
    for module in copy.modules():
        match module:
            case ShrunkGaussian():
                module.axes, module.overlap = module.axes.float(), module.overlap.float()
            case Neighbours():
                module.bank = module.bank.float()
            case LocalMemory():
                del module.vectors  # it compares with `bank`, the same in float32
    return copy


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Silences what torch's exporters say about operators that are not used, and what they write down of each node.

    The stack of calls that made a node is removed in the end; to find it takes them a quarter of their time.
    """
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


def trace(graph: DetectorGraph) -> ExportedProgram:
    """The graph for any number of images (B, size, size, 3), by `torch.export`; an error where it depends on B."""
    with quiet_torch(), torch.no_grad():
        example = torch.zeros(2, graph.size, graph.size, 3, dtype=torch.uint8)
        program = torch.export.export(graph, (example,), dynamic_shapes=DYNAMIC_SHAPES)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it holds the folders of the exporting machine
    return program
