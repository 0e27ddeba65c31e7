"""The discriminator as an encoder: logits, statistics of its layers, pooled features and places."""

import warnings
from collections.abc import Callable, Collection
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from discopatch.encoders.base import BASIC_KINDS, Encoder, Features, Kind, Output, map_on_cores
from discopatch.encoders.places import Compare, find_places, is_large
from discopatch.encoders.tones import measure_tones
from discopatch.errors import ParameterError
from discopatch.images import PixelRange, Pixels, Transform
from discopatch.images.tensors import to_range
from discopatch.model import Discriminator, DiscriminatorOutput, Weights
from discopatch.model.networks import for_scoring
from discopatch.model.patches import Sampling, extract_patches, scoring_corners

if TYPE_CHECKING:
    from discopatch.model.kernels import FastPass

Patches = int | Literal["dense"]
Precision = Literal["float32", "bfloat16"]
CHOOSE_FLOAT32 = "choose precision='float32', or a device with CUDA"


class FeatureExtractor(nn.Module):
    """The discriminator over images in uint8: over whole images, or over patches at fixed corners.

    corners: (patches, 2), the same in every image; None for one dense pass.
    group: the number of successive patches of one image.
    pixel_range: that of the discriminator's input.
    kinds: the kinds of features; patches have no places.
    compare: what is made of the features of places.
    whole: whether images have several shapes; logits are then averaged.
    statistics_shift: (2 x channels,), added to the statistics of a quantised discriminator.
    """

    corners: Tensor | None
    statistics_shift: Tensor | None

    def __init__(
        self,
        discriminator: Discriminator,
        *,
        pixel_range: PixelRange,
        corners: Tensor | None = None,
        group: int = 1,
        kinds: Collection[Kind] = BASIC_KINDS,
        compare: Compare | None = None,
        whole: bool = False,
    ) -> None:
        super().__init__()
        self.whole = whole
        self.discriminator, self.group, self.pixel_range = discriminator, group, pixel_range
        self.kinds, self.compare = frozenset(kinds), compare
        self.map_scales = nn.ParameterList()  # of each layer (C, 1, 1), of a quantised discriminator
        self.patch_size = discriminator.architecture.patch_size
        self.register_buffer("corners", corners)
        self.register_buffer("statistics_shift", None)

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """(B, size, size, 3) in uint8 to the features of each kind, see `FeatureArrays`."""
        output = self.output(pixels)
        statistics, maps = output.statistics, output.features
        if self.statistics_shift is not None:
            statistics = statistics + self.statistics_shift
        logits = output.logits.reshape(statistics.shape[0], -1).float()
        # Images of several shapes have different numbers of positions.
        found = {"logits": logits.mean(1, keepdim=True) if self.whole else logits, "statistics": statistics}
        if "pooled" in self.kinds:
            found["pooled"] = maps[-1].unflatten(0, (-1, self.group)).mean((1, 3, 4)).float()
        if "tones" in self.kinds:
            found["tones"] = measure_tones(pixels)
        if "places" in self.kinds and self.corners is None:
            if len(self.map_scales):
                maps = [one * scale for one, scale in zip(maps, self.map_scales, strict=True)]
            found["places"] = self.places(maps)
        return found

    def places(self, maps: list[Tensor]) -> Tensor:
        """The places of images from the maps of all layers."""
        return find_places(maps[self.discriminator.architecture.place_layers], self.compare)

    def output(self, pixels: Tensor) -> DiscriminatorOutput:
        """The discriminator's output, layer by layer."""
        prepare = partial(to_range, pixel_range=self.pixel_range)
        if self.corners is not None:
            patches = extract_patches(pixels, self.corners, self.patch_size)
        else:
            patches = pixels.permute(0, 3, 1, 2)
            # Plain networks normalise over the whole image, and exported graphs have no loops: both take one pass.
            inverted = self.discriminator.architecture.kind == "inverted"
            if inverted and not torch.compiler.is_compiling() and is_large(*patches.shape[2:]):
                return self.discriminator.in_tiles(patches, prepare)
        output: DiscriminatorOutput = self.discriminator(prepare(patches), self.group, statistics=True)
        return output


class DiscriminatorEncoder(Encoder):
    """An encoder of a discriminator.

    transform: that of the weights by default.
    patches: `dense` for one pass over the whole image, or a number of patches, cut at the same places in all images.
    sampling: `random` draws the places of patches once, from `seed`; `grid` spreads them evenly.
    device: on a CPU each image passes alone, so that `batch_size` does not change its features. On a GPU a batch passes
        together, and batch sizes agree up to rounding. `auto` is a GPU where there is one.
    precision: `bfloat16` is faster, rounds more and needs a GPU (inverted residual networks use float16). With a
        `batch_size` above 1 the next batch is read during a pass.
    kinds: the kinds of features. Patches have no places.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        transform: Transform | None = None,
        patches: Patches = "dense",
        sampling: Sampling = "random",
        seed: int = 0,
        precision: Precision = "float32",
        **options: Any,
    ) -> None:
        """`options` are those of `Encoder`."""
        network, patch_size = weights.discriminator, weights.discriminator.architecture.patch_size
        super().__init__(transform or weights.transform, patch_size=patch_size, **options)
        check_precision(precision, self.device)
        self.weights, self._precision, self.layer_sizes = weights, precision, network.architecture.layer_sizes
        self.embedding = network.architecture.embedding if patches == "dense" else 0  # patches fit one size only
        self.place_sizes = network.architecture.hidden[network.architecture.place_layers]
        here = next(network.parameters()).device == self.device
        # Others may use the original, so that it is copied to another device.
        self._discriminator = (network if here else deepcopy(network).to(self.device)).eval()
        self._folded = for_scoring(self._discriminator)
        count = 1 if patches == "dense" else patches
        if not isinstance(count, int):
            raise ParameterError(f"patches is {patches!r}: give a number, or 'dense'")
        corners = scoring_corners(sampling, count, size=self.transform.size, patch_size=patch_size, seed=seed)
        self.extractor = FeatureExtractor(
            self._folded,
            pixel_range=self.transform.pixels,
            corners=None if patches == "dense" else corners,
            group=count,
            kinds=self.kinds,
            compare=self.compare,
            whole=self.transform.fit == "whole",
        ).to(self.device)
        self._fast = self._fast_pass() if precision == "bfloat16" else None
        self.prefetched = 0 if self._fast is None else 1

    def _fast_pass(self) -> "FastPass | None":
        """The fast kernels, or None for networks and shapes without them, which use autocast instead."""
        from discopatch.model.kernels import FastPass

        shape = self.transform.largest
        if (
            self.transform.pixels != "symmetric"
            or shape[0] != shape[1]
            or is_large(*shape)
            or self._discriminator.architecture.kind == "plain"
        ):
            return None
        with_places = "places" in self.kinds and self.extractor.corners is None
        try:
            return FastPass(
                self._discriminator,
                self.extractor.corners,
                size=self.transform.size,
                batch_size=self.batch_size,
                pooled="pooled" in self.kinds,
                tones=measure_tones if "tones" in self.kinds else None,
                places=self.extractor.places if with_places else None,
            )
        except Exception as error:  # anything that a kernel compiler raises
            warnings.warn(
                f"the fast kernels do not work on {torch.cuda.get_device_name(self.device)} "
                f"({type(error).__name__}: {error}): the plain pass is used, which is slower",
                RuntimeWarning,
                stacklevel=3,
            )
            return None

    def score_by(self, output: Output, needs: Collection[str]) -> None:
        def scores(**features: Tensor) -> tuple[Tensor, Tensor]:
            if self.extractor.whole:
                features["logits"] = features["logits"].mean(1, keepdim=True)
            return output(**{kind: features[kind] for kind in needs})

        if self._fast is not None:
            self.scored_by = output
            self._fast.score_by(scores)

    def start(self, pixels: Pixels | Tensor) -> Callable[[], Features]:
        if self._fast is not None and self._is_usual(pixels):
            later = self._fast.start(pixels)
            return lambda: self._features(later())
        if isinstance(pixels, Tensor):
            return partial(self._extract, pixels)
        return super().start(pixels)

    def extract_pixels(self, pixels: Pixels) -> Features:
        if self._fast is not None and self._is_usual(pixels):
            parts = range(0, len(pixels), self.batch_size)
            batches = (np.ascontiguousarray(pixels[part : part + self.batch_size]) for part in parts)
            return Features.concatenate([self._features(arrays) for arrays in self._fast.stream(batches)])
        return self._extract(torch.from_numpy(np.ascontiguousarray(pixels)))

    def _is_usual(self, pixels: Pixels | Tensor) -> bool:
        """Whether the images have the shape of the fast pass."""
        return tuple(pixels.shape[1:3]) == (self.transform.size,) * 2

    def _features(self, arrays: dict[str, NDArray[Any]]) -> Features:
        if self.extractor.whole:
            arrays["logits"] = arrays["logits"].mean(1, keepdims=True)
        return Features(**arrays)

    def _extract(self, pixels: Tensor) -> Features:
        """The features of (B, size, size, 3) in uint8, on any device."""
        large = self.extractor.corners is None and is_large(*pixels.shape[1:3])
        images = pixels.split(1 if large else self.together)
        # A single image has the same bits with all threads.
        if self.together == 1 and self._precision == "float32" and len(images) > 1 and not large:
            return Features.concatenate(map_on_cores(self._run, images))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._precision == "bfloat16"):
            return Features.concatenate([self._run(part) for part in images])

    @torch.inference_mode()
    def _run(self, images: Tensor) -> Features:
        found = self.extractor(images.to(self.device))
        return Features(**{kind: values.cpu().numpy() for kind, values in found.items()})


def check_precision(precision: str, device: torch.device, *, remedy: str = CHOOSE_FLOAT32) -> None:
    """Raises ParameterError for an unknown precision, and for bfloat16 on a CPU, where it is slower and coarser."""
    if precision not in get_args(Precision):
        raise ParameterError(f"unknown precision {precision!r}: choose one of {', '.join(get_args(Precision))}")
    if precision == "bfloat16" and device.type != "cuda":
        raise ParameterError(f"precision 'bfloat16' needs a GPU, and the device is {device.type}: {remedy}")
