"""The discriminator as an encoder: logits, and the statistics of its layers."""

import warnings
from collections.abc import Callable, Collection, Iterator
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from discopatch.encoders.base import BASIC_KINDS, Encoder, Features, FeatureSizes, Kind, check_batch_size
from discopatch.encoders.cores import map_on_cores
from discopatch.encoders.places import local_features, place_size, projections
from discopatch.errors import ParameterError
from discopatch.images import DEFAULT_LIMITS, Limits, PixelRange, Pixels
from discopatch.images.tensors import to_range
from discopatch.model import Architecture, Discriminator, DiscriminatorOutput, Weights
from discopatch.model.layers import for_scoring
from discopatch.model.patches import Sampling, check_fits, extract_patches, grid_corners, scoring_corners
from discopatch.utils import make_forks_safe

if TYPE_CHECKING:
    from discopatch.model.kernels import FastPass

Patches = int | Literal["dense"]
Precision = Literal["float32", "bfloat16"]
CHOOSE_FLOAT32 = "choose precision='float32', or a device with CUDA"


class FeatureExtractor(nn.Module):
    """The discriminator over images in uint8: over the whole image at once, or over patches at fixed corners.

    corners: (patches, 2), the same in every image; none for one dense pass.
    group: how many successive patches are one image; 1 makes every patch an image of its own.
    pixel_range: that of the floats which the discriminator takes.
    kinds: those of the features that are wanted; there are no places in patches.
    statistics_shift: (2 x channels,), what is added to the statistics of a discriminator that was rounded.
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
    ) -> None:
        super().__init__()
        self.discriminator, self.group, self.pixel_range = discriminator, group, pixel_range
        self.kinds = frozenset(kinds)
        self.map_scales = nn.ParameterList()  # of each layer (C, 1, 1), where maps are smaller by that
        self.patch_size = discriminator.architecture.patch_size
        self.register_buffer("corners", corners)
        self.register_buffer("statistics_shift", None)

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """(B, size, size, 3) in uint8 to the features of each kind, as `FeatureArrays` has them."""
        output = self.output(pixels)
        statistics = output.statistics
        if self.statistics_shift is not None:
            statistics = statistics + self.statistics_shift
        found = {"logits": output.logits.reshape(statistics.shape[0], -1).float(), "statistics": statistics}
        if "pooled" in self.kinds:
            found["pooled"] = self.mean_features(output).float()
        if "places" in self.kinds and self.corners is None:
            found["places"] = self.places(output)
        return found

    def output(self, pixels: Tensor) -> DiscriminatorOutput:
        """The discriminator's whole output, layer by layer."""
        if self.corners is None:
            patches = pixels.permute(0, 3, 1, 2)
        else:
            patches = extract_patches(pixels, self.corners, self.patch_size)
        output: DiscriminatorOutput = self.discriminator(
            to_range(patches, self.pixel_range), self.group, statistics=True
        )
        return output

    def mean_features(self, output: DiscriminatorOutput) -> Tensor:
        """(B, channels): the last features of an output, averaged over each image."""
        last: Tensor = output.features[-1].unflatten(0, (-1, self.group))
        return last.mean((1, 3, 4))

    def places(self, output: DiscriminatorOutput) -> Tensor:
        """(B, positions, d) in float16: the places of images that passed whole."""
        maps = output.features
        if len(self.map_scales):
            maps = [one * scale for one, scale in zip(maps, self.map_scales, strict=True)]
        return local_features(maps[self.discriminator.architecture.place_layers] or maps)


class DiscriminatorEncoder(Encoder):
    """A discriminator with everything that decides its features: where patches are cut, device, precision.

    patches: `dense` passes each image whole, once, which classifies a patch at every cell of the last layer; a number
    cuts all images at the same places: with the sampling `random` drawn once from `seed`, with `grid` spread evenly.
    On a CPU each image passes the network alone, so that `batch_size` cannot change its features; on a GPU a batch
    passes together, and batch sizes agree to rounding. The device `auto` is a GPU where there is one.
    precision: `bfloat16`, on a GPU alone, is faster and rounds more (inverted residual networks take float16 for it);
    with a `batch_size` above 1 the next batch is then read from the source while one passes, so that results come a
    batch later.
    kinds: those of the features that are wanted; images in patches have no places, and the fast kernels of bfloat16
    give logits and statistics alone of a plain network.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        patches: Patches = "dense",
        sampling: Sampling = "random",
        seed: int = 0,
        device: str | torch.device = "cpu",
        batch_size: int = 8,
        precision: Precision = "float32",
        limits: Limits = DEFAULT_LIMITS,
        kinds: Collection[Kind] = BASIC_KINDS,
    ) -> None:
        check_batch_size(batch_size)
        make_forks_safe()
        self.weights, self.transform, self.batch_size, self.limits = weights, weights.transform, batch_size, limits
        self.device = resolve_device(device)
        check_precision(precision, self.device)
        self._discriminator = on_device(weights.discriminator, self.device)
        self._folded = for_scoring(self._discriminator)
        self.patch_size = check_fits(self.transform.size, weights.discriminator.architecture.patch_size)
        corners = image_corners(patches, sampling, size=self.transform.size, patch_size=self.patch_size, seed=seed)
        self._precision, self.kinds = precision, frozenset(kinds)
        self.extractor = self._extractor(corners, group=1 if corners is None else len(corners), kinds=kinds)
        self.layer_sizes = weights.discriminator.architecture.layer_sizes
        self._fast = self._fast_pass() if precision == "bfloat16" else None
        self.prefetched = 0 if self._fast is None else 1

    def _extractor(
        self, corners: Tensor | None, *, group: int, kinds: Collection[Kind] = BASIC_KINDS
    ) -> FeatureExtractor:
        return FeatureExtractor(
            self._folded, pixel_range=self.transform.pixels, corners=corners, group=group, kinds=kinds
        ).to(self.device)

    def _fast_pass(self) -> "FastPass | None":
        """The fast kernels; none for a network, or for kinds of features, that they do not know.

        Those pass as they are, with bfloat16 in their convolutions.
        """
        from discopatch.model.kernels import FastPass

        architecture, symmetric = self._discriminator.architecture, self.transform.pixels == "symmetric"
        if architecture.kind == "plain":
            known = self.kinds <= set(BASIC_KINDS)
        else:
            known = symmetric
        if not known:
            return None
        if not symmetric:
            raise ParameterError(
                f"the fast pass takes pixels in [-1, 1], and these weights take the range {self.transform.pixels!r}: "
                "use precision='float32'"
            )
        try:
            return FastPass(
                self._discriminator,
                self.extractor.corners,
                size=self.transform.size,
                batch_size=self.batch_size,
                pooled="pooled" in self.kinds,
                places=self._place_function() if "places" in self.kinds and self.extractor.corners is None else None,
            )
        except ParameterError:
            raise
        except Exception as error:  # whatever a kernel compiler may raise: the plain pass does without it
            warnings.warn(
                f"the fast kernels do not work on {torch.cuda.get_device_name(self.device)} "
                f"({type(error).__name__}: {error}): the plain pass takes their place, which is slower",
                RuntimeWarning,
                stacklevel=3,
            )
            return None

    def _place_function(self) -> Callable[[list[Tensor]], Tensor]:
        """From the maps of all layers to places, as `FeatureExtractor.places` has them."""
        architecture = self._discriminator.architecture
        matrices = projections(architecture.hidden[architecture.place_layers], self.device)
        return lambda maps: local_features(maps[architecture.place_layers], matrices)

    def region_extractor(self, count: int, chosen: NDArray[np.intp] | None = None) -> FeatureExtractor:
        """The extractor of `count` patches on a grid, or of those chosen, each as if it were an image."""
        corners = grid_corners(count, size=self.transform.size, patch_size=self.patch_size)
        corners = corners if chosen is None else corners[torch.from_numpy(chosen)]
        return self._extractor(corners, group=1)

    def start(self, pixels: Pixels | Tensor) -> Callable[[], Features]:
        if self._fast is not None:
            later = self._fast.start(pixels)
            return lambda: Features(**later())
        if isinstance(pixels, Tensor):
            return partial(self._extract, pixels)
        return super().start(pixels)

    def extract_pixels(self, pixels: Pixels) -> Features:
        if self._fast is not None:
            parts = range(0, len(pixels), self.batch_size)
            batches = (np.ascontiguousarray(pixels[part : part + self.batch_size]) for part in parts)
            return Features.concatenate([Features(**arrays) for arrays in self._fast.stream(batches)])
        return self._extract(torch.from_numpy(np.ascontiguousarray(pixels)))

    def _extract(self, pixels: Tensor) -> Features:
        """The features of (B, size, size, 3) in uint8, wherever they are."""
        images = pixels.split(self.together)
        if (
            self.together == 1 and self._precision == "float32" and len(images) > 1
        ):  # one alone is the same to the bit with all threads
            return Features.concatenate(map_on_cores(partial(self._run, self.extractor), images))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._precision == "bfloat16"):
            return Features.concatenate([self._run(self.extractor, part) for part in images])

    def extract_regions(self, pixels: Pixels, count: int, chosen: NDArray[np.intp] | None = None) -> Features:
        return self._run(self.region_extractor(count, chosen), torch.from_numpy(np.ascontiguousarray(pixels))[None])

    @torch.inference_mode()
    def _run(self, extractor: FeatureExtractor, images: Tensor) -> Features:
        return Features(**{kind: values.cpu().numpy() for kind, values in extractor(images.to(self.device)).items()})

    @torch.inference_mode()
    def outputs(self, pixels: Pixels) -> Iterator[DiscriminatorOutput]:
        """The discriminator's whole output, layer by layer, for as many of the images at a time as pass together."""
        for images in torch.from_numpy(np.ascontiguousarray(pixels)).split(self.together):
            yield self.extractor.output(images.to(self.device))


def feature_sizes(architecture: Architecture, patches: Patches) -> FeatureSizes:
    """How many pooled features an image has, and how many a place in it."""
    widths = architecture.hidden
    places = place_size(widths[architecture.place_layers] or widths) if patches == "dense" else 0
    return FeatureSizes(architecture.statistics, widths[-1], places)


def image_corners(patches: Patches, sampling: Sampling, *, size: int, patch_size: int, seed: int) -> Tensor | None:
    """The corners (patches, 2) of every image; none for `dense`."""
    if patches != "dense" and (isinstance(patches, bool) or not isinstance(patches, int)):
        raise ParameterError(f"patches is {patches!r}: give a number, or 'dense'")
    count = 1 if patches == "dense" else patches  # an unknown sampling is refused where it decides nothing, too
    corners = scoring_corners(sampling, count, size=size, patch_size=patch_size, seed=seed)
    return None if patches == "dense" else corners


def resolve_device(device: str | torch.device) -> torch.device:
    """The device; `auto` is a GPU where there is one. ParameterError where there is no such device."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ParameterError(f"unknown device {device!r}: choose auto, cpu, cuda, cuda:1, ...") from None
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ParameterError(f"there is no device {device}: choose auto or cpu, or install torch for your GPU")
    return found


def on_device(discriminator: Discriminator, device: torch.device) -> Discriminator:
    """The network itself where it is there already, else a copy: others may be using it where it is."""
    here = next(discriminator.parameters()).device == device
    return (discriminator if here else deepcopy(discriminator).to(device)).eval()


def check_precision(precision: str, device: torch.device, *, remedy: str = CHOOSE_FLOAT32) -> None:
    """Refuses bfloat16 on a CPU, which has no matrix units for it: it would only be slower and coarser."""
    if precision not in get_args(Precision):
        raise ParameterError(f"unknown precision {precision!r}: choose one of {', '.join(get_args(Precision))}")
    if precision == "bfloat16" and device.type != "cuda":
        raise ParameterError(f"precision 'bfloat16' needs a GPU, and the device is {device.type}: {remedy}")
