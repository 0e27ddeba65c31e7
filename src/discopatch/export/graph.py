"""A whole detector as one module, from pixels to scores and z-scores of places: the graph that is exported."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.fx.config
from torch import Tensor, nn

from discopatch.encoders import DiscriminatorEncoder
from discopatch.export.metadata import COMPONENTS, NUMBER, PLACE_MAP, SCORE
from discopatch.heads.base import Fitted
from discopatch.heads.gaussian import ShrunkGaussian
from discopatch.heads.memory import Neighbours
from discopatch.heads.places import PlaceModel

if TYPE_CHECKING:
    from discopatch.detector import Detector

M = TypeVar("M", bound=Fitted)
NOISY = ("torch.onnx", "onnxscript.optimizer")  # loggers


class DetectorGraph(nn.Module):
    """A fitted detector with copies of its network and heads, which can be changed without changing the detector.

    image: the extractor of the score.
    dense: that of places, with the same network; it is `image` itself unless that sees patches.
    """

    def __init__(self, detector: "Detector") -> None:
        super().__init__()
        transform, weights = detector.transform_, detector.weights_
        weights = replace(weights, discriminator=deepcopy(weights.discriminator))
        self.whole, self.shape = transform.shape is not None, transform.largest
        self.head = graph_module(detector.head_)
        options: dict[str, Any] = {"transform": transform, "batch_size": 1, "compare": graph_module(detector.places_)}
        parameters = {name: getattr(detector, name) for name in ("patches", "sampling", "seed")}
        kinds = {*self.head.needs, "places"}
        self.image = DiscriminatorEncoder(weights, kinds=kinds, **parameters, **options).extractor
        self.dense = self.image
        if detector.patches != "dense":
            self.dense = DiscriminatorEncoder(weights, kinds=("places",), **options).extractor
            self.dense.map_scales = self.image.map_scales
        self.image.discriminator = self.dense.discriminator = weights.discriminator  # as trained, not folded
        self.eval().requires_grad_(False)

    @property
    def example(self) -> Tensor:
        """Two black images."""
        return torch.zeros(2, *self.shape, 3, dtype=torch.uint8)

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """(B, H, W, 3) in uint8 to score (B,) in float64 and place_map (B, rows, columns) in float32.

        With a head of components also components (B, n) in float64, with classes their numbers (B,) in float64.
        """
        features = self.image(pixels)
        score, components = self.head.output(**{kind: features[kind] for kind in self.head.needs})
        places = features["places"] if self.dense is self.image else self.dense(pixels)["places"]
        found = {SCORE: score, PLACE_MAP: places}
        if self.head.classes is not None:
            found[NUMBER] = self.head.classes(features["statistics"])
        return {**found, COMPONENTS: components} if components.shape[1] else found


def graph_module(module: M) -> M:
    """A copy of a fitted module on the CPU, whose large constants (axes, stored images and places) are float32."""
    copy = deepcopy(module).cpu()
    for part in copy.modules():
        match part:
            case ShrunkGaussian():
                part.axes, part.overlap = part.axes.float(), part.overlap.float()
            case Neighbours():
                part.bank = part.bank.float()
            case PlaceModel():
                del part.vectors, part.axes  # derived buffers have the same values in float32
    return copy


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Silences torch's exporter and leaves out its stack traces, which take a quarter of its time."""
    logs, tracing = [logging.getLogger(name) for name in NOISY], cast("Any", torch.fx.config)
    levels = [log.level for log in logs]
    without = getattr(tracing, "do_not_emit_stack_traces", False)  # not in older versions
    for log in logs:
        log.setLevel(logging.ERROR)
    tracing.do_not_emit_stack_traces = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
        tracing.do_not_emit_stack_traces = without
