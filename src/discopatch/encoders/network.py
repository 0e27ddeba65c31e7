"""Networks from outside of this package, as encoders."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from discopatch.encoders.base import BASIC_KINDS, Encoder, Features, FeatureSizes, Kind, check_batch_size
from discopatch.encoders.discriminator import resolve_device
from discopatch.encoders.places import N_LOCAL, local_features, place_size
from discopatch.errors import WeightsError
from discopatch.images import DEFAULT_LIMITS, Limits, Pixels, Transform
from discopatch.model.discriminator import channel_statistics
from discopatch.model.patches import check_fits, extract_patches, grid_corners
from discopatch.model.weights import refused
from discopatch.schema import Name, between, length, load_json, read_fields
from discopatch.utils import make_forks_safe

SIDES = range(16, 1025)  # pixels along a side of a network's input
MAX_JSON_BYTES = 2**22  # of a config, with the names of many classes
EXAMPLE = '{"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225], "size": 224}'
MAX_LAYERS = 16  # layers with statistics
MAX_NUMBERS = 2**28  # of a map
MAX_PREFIX = 32  # tokens before those of the image, such as the class token
SMALLEST_SIDE = 32  # pixels of a region in a convolutional network
REGIONS_A_SIDE = 4  # disjoint regions along a side, without a discriminator that sets their size


@dataclass(frozen=True)
class NetworkInput:
    """The input of a network: images of `side` pixels, or of any side, as (pixel x scale - mean) / deviation."""

    side: Annotated[int, between(SIDES[0], SIDES[-1])] | None
    scale: Annotated[float, between(1e-6, 1e6)]
    mean: Annotated[tuple[Annotated[float, between(-1e6, 1e6)], ...], length(3, 3)]
    deviation: Annotated[tuple[Annotated[float, between(1e-6, 1e6)], ...], length(3, 3)]
    outputs: Annotated[tuple[Name, ...], length(0, MAX_LAYERS)] = ()  # of an ONNX file, if the user does not name them

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads preprocessor_config.json of `transformers`, or a JSON of the same fields beside an ONNX file."""
        config = read_json(path)
        with refused(path, f"write such as {EXAMPLE}"):
            size = config.get("crop_size" if config.get("do_center_crop", False) else "size")
            if isinstance(size, dict):
                size = size.get("shortest_edge", size.get("height"))
            normalised = config.get("do_normalize", True)
            values = {
                "side": size,
                "scale": config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0,
                "mean": config.get("image_mean") if normalised else (0,) * 3,
                "deviation": config.get("image_std") if normalised else (1,) * 3,
                "outputs": config.get("outputs", ()),
            }
            return read_fields(cls, values, where=path.name)

    def normalise(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) from 0 to 255 to the network's input."""
        mean, deviation = (torch.tensor(each, device=x.device)[:, None, None] for each in (self.mean, self.deviation))
        return (x * self.scale - mean) / deviation


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file beside the weights of a network."""
    if not path.is_file():
        raise WeightsError(f"no {path.name} in {path.parent}: copy it from where the weights came from, or write it")
    with refused(path, "copy it again from where the weights came from"):
        if path.stat().st_size > MAX_JSON_BYTES:
            raise WeightsError(f"it has more than {MAX_JSON_BYTES:,} bytes")
        content = load_json(path.read_bytes())
        if not isinstance(content, dict):
            raise WeightsError("it holds no object")
    return content


class Layers(NamedTuple):
    """The outputs of a network for B images."""

    maps: Sequence[Tensor]  # (B, C, H, W) of early and middle layers, the earliest first
    pooled: Tensor  # (B, channels): the last map, averaged over the image


class OutsideNetwork(ABC):
    """A frozen network that is not stored in a detector's file, which has its name and digest alone.

    Subclasses implement `layers` and `on_device`, and call `check` at the end of their constructor.

    side: pixels along a side of its input, or None for images as they are.
    any_side: whether it takes inputs of other sizes too, as convolutions do.
    channels: those of each layer with statistics.
    pooled: the number of pooled features.
    """

    channels: tuple[int, ...]
    pooled: int

    def __init__(self, name: str, digest: str, *, side: int | None, any_side: bool) -> None:
        self.name, self.digest, self.side, self.any_side = name, digest, side, any_side

    @property
    def sizes(self) -> FeatureSizes:
        """The number of features of an image."""
        return FeatureSizes(2 * sum(self.channels), self.pooled, place_size(self.channels[-N_LOCAL:]))

    @abstractmethod
    def layers(self, x: Tensor) -> Layers:
        """The outputs for (B, 3, side, side): RGB from 0 to 255, not normalised."""

    @abstractmethod
    def on_device(self, device: torch.device) -> Self:
        """The network itself if it is on the device, else a copy."""

    @torch.inference_mode()
    def check(self) -> Self:
        """Passes one image of noise; WeightsError if the features cannot be used."""
        side = self.side or SIDES[-1] // REGIONS_A_SIDE
        noise = np.random.default_rng(0).integers(0, 256, (1, 3, side, side))
        remedy = "use another network, or other layers of it"
        try:
            maps, pooled = self.layers(torch.from_numpy(noise).float())
        except WeightsError:
            raise
        except Exception as error:  # anything that a network with other inputs raises
            raise WeightsError(
                f"{self.name} does not take images of {side} x {side} ({type(error).__name__}: {error}): {remedy}"
            ) from error
        if not 1 <= len(maps) <= MAX_LAYERS or pooled.ndim != 2 or not all(map(is_square, maps)):
            shapes = ", ".join(str(tuple(each.shape)) for each in (*maps, pooled))
            raise WeightsError(f"{self.name} gives layers and pooled features of shapes {shapes}: {remedy}")
        if not all(bool(torch.isfinite(each).all()) for each in (*maps, pooled)):
            raise WeightsError(f"{self.name} gives features that are not finite: use weights in float32")
        self.channels, self.pooled = tuple(one.shape[1] for one in maps), pooled.shape[1]
        if self.any_side:
            try:
                self.layers(torch.from_numpy(noise[..., :SMALLEST_SIDE, :SMALLEST_SIDE]).float())
            except Exception:  # anything that a network without smaller inputs raises
                self.any_side = False
        return self


def is_square(one: Tensor) -> bool:
    """Whether a layer is a map (B, C, H, W), square and not too large."""
    return one.ndim == 4 and one.shape[2] == one.shape[3] and one.numel() <= len(one) * MAX_NUMBERS


def as_map(layer: Tensor) -> Tensor:
    """A map (B, C, H, W) unchanged; tokens (B, N, C) as (B, C, side, side), without those before the image's.

    The image is square: its tokens are the largest square number up to N.
    """
    if layer.ndim != 3:
        return layer
    side = isqrt(layer.shape[1])
    if side < 1 or (prefix := layer.shape[1] - side**2) > MAX_PREFIX:
        raise WeightsError(f"{layer.shape[1]} tokens are no square grid: use a layer with one token per patch")
    found: Tensor = layer[:, prefix:].mT.unflatten(2, (side, side))
    return found


def check_network_digest(name: str, expected: str | None, found: str) -> None:
    """Raises WeightsError where another digest is expected."""
    if expected not in (None, found):
        raise WeightsError(f"{name} has the digest {found}, not {expected}")


class NetworkEncoder(Encoder):
    """An encoder of a network from outside, without logits.

    Images pass the detector's transform and are resized to the network's input. A region, by default a quarter of the
    image's side wide, passes a convolutional network at its scale in the whole image, and is enlarged for a network
    with one input size.
    """

    def __init__(
        self,
        network: OutsideNetwork,
        *,
        transform: Transform | None = None,
        patch_size: int | None = None,
        device: str | torch.device = "cpu",
        batch_size: int = 8,
        limits: Limits = DEFAULT_LIMITS,
        kinds: Collection[Kind] = BASIC_KINDS,
    ) -> None:
        check_batch_size(batch_size)
        make_forks_safe()
        self.transform, self.batch_size, self.limits = transform or Transform(), batch_size, limits
        self.device, self.kinds = resolve_device(device), frozenset(kinds)
        self.network = network.on_device(self.device)
        self.layer_sizes = tuple(2 * channels for channels in network.channels)
        size = self.transform.size
        self.patch_size = check_fits(size, patch_size or -(-size // REGIONS_A_SIDE))
        self._side = network.side or size
        scaled = max(round(self.patch_size * self._side / size), min(SMALLEST_SIDE, self._side))
        self._region_side = scaled if network.any_side else self._side

    def extract_pixels(self, pixels: Pixels) -> Features:
        images = torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2)
        return self._extract(images, self._side, self.kinds)

    def extract_regions(self, pixels: Pixels, count: int, chosen: NDArray[np.intp] | None = None) -> Features:
        corners = grid_corners(count, size=self.transform.size, patch_size=self.patch_size)
        corners = corners if chosen is None else corners[torch.from_numpy(chosen)]
        image = torch.from_numpy(np.ascontiguousarray(pixels))[None]
        return self._extract(extract_patches(image, corners, self.patch_size), self._region_side, BASIC_KINDS)

    @torch.inference_mode()
    def _extract(self, images: Tensor, side: int, kinds: Collection[Kind]) -> Features:
        """The features of (B, 3, S, S) in uint8."""
        return Features.concatenate([self._pass(part, side, kinds) for part in images.split(self.together)])

    def _pass(self, images: Tensor, side: int, kinds: Collection[Kind]) -> Features:
        x = images.to(self.device).float()
        if x.shape[-1] != side:
            x = F.interpolate(x, (side, side), mode="bilinear", antialias=True)
        maps, pooled = self.network.layers(x.contiguous())
        return Features(
            np.empty((len(images), 0), np.float32),
            channel_statistics(maps).float().cpu().numpy(),
            pooled.float().cpu().numpy() if "pooled" in kinds else None,
            local_features(maps[-N_LOCAL:]).cpu().numpy() if "places" in kinds else None,
        )
