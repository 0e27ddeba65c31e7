"""Networks from outside of this package: folders of `transformers`, and network objects of the user's own.

Nothing is downloaded, and no code of a folder is run.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from math import isqrt
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from discopatch.encoders.base import Encoder, Features
from discopatch.encoders.places import N_LOCAL, find_places
from discopatch.encoders.tones import measure_tones
from discopatch.errors import ParameterError, WeightsError
from discopatch.images import Pixels, Transform
from discopatch.model.networks import channel_statistics
from discopatch.model.weights import refused
from discopatch.pretrained import PRETRAINED
from discopatch.schema import between, length, load_json, read_fields, shorten
from discopatch.utils import file_digest, require

# Model types whose hidden states are maps or tokens of the image, without random masks.
FOLDER_KINDS = (
    "beit, bit, clip_vision_model, convnext, convnextv2, data2vec-vision, deit, dinov2, dinov2_with_registers, "
    "dinov3_convnext, dinov3_vit, efficientnet, focalnet, ijepa, mobilenet_v1, mobilenet_v2, mobilevit, mobilevitv2, "
    "poolformer, pvt, pvt_v2, regnet, resnet, segformer, siglip_vision_model, swin, swinv2, vit, vit_msn"
)
CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
REFUSED = ("auto_map", "backbone", "backbone_config", "quantization_config")  # they load code or other weights
COPY = "copy it from where the weights came from"
QUARTERS = (1, 2, 3)  # of a network of one resolution, after which statistics are taken
SIDES = range(16, 1025)  # pixels along a side of a network's input
MAX_JSON_BYTES = 2**22  # of a config, with the names of many classes
MAX_LAYERS = 16  # layers with statistics
MAX_NUMBERS = 2**28  # of a map
MAX_PREFIX = 32  # tokens before those of the image, such as the class token
SMALLEST_SIDE = 32  # pixels of an image in a convolutional network
USUAL_SIDE = 256  # pixels along the short side of an image that is scaled to a network's side


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

    @abstractmethod
    def layers(self, x: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        """(B, 3, side, side), RGB from 0 to 255, to maps (B, C, H, W), the earliest first, and pooled (B, channels)."""

    @abstractmethod
    def on_device(self, device: torch.device) -> Self:
        """The network itself if it is on the device, else a copy."""

    @torch.inference_mode()
    def check(self) -> Self:
        """Passes one image of noise; WeightsError if the features cannot be used."""
        side = self.side or USUAL_SIDE
        noise = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, 3, side, side))).float()
        remedy = "use another network, or other layers of it"
        try:
            maps, pooled = self.layers(noise)
        except WeightsError:
            raise
        except Exception as error:  # anything that a network with other inputs raises
            raise WeightsError(
                f"{self.name} does not take images of {side} x {side} ({type(error).__name__}: {error}): {remedy}"
            ) from error
        square = (one.ndim == 4 and one.shape[2] == one.shape[3] and one.numel() <= MAX_NUMBERS for one in maps)
        if not 1 <= len(maps) <= MAX_LAYERS or pooled.ndim != 2 or not all(square):
            shapes = ", ".join(str(tuple(each.shape)) for each in (*maps, pooled))
            raise WeightsError(f"{self.name} gives layers and pooled features of shapes {shapes}: {remedy}")
        if not all(bool(torch.isfinite(each).all()) for each in (*maps, pooled)):
            raise WeightsError(f"{self.name} gives features that are not finite: use weights in float32")
        self.channels, self.pooled = tuple(one.shape[1] for one in maps), pooled.shape[1]
        if self.any_side:
            try:
                self.layers(noise[..., :SMALLEST_SIDE, :SMALLEST_SIDE])
            except Exception:  # anything that a network without smaller inputs raises
                self.any_side = False
        return self


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


class NetworkEncoder(Encoder):
    """An encoder of a network from outside, without logits.

    Images pass the detector's transform and are scaled as an image of the usual size is to the network's input; a
    network that takes one size alone gets all images at that size.
    """

    def __init__(
        self,
        network: OutsideNetwork,
        *,
        transform: Transform = Transform(),  # noqa: B008 - frozen
        patch_size: int | None = None,
        **options: Any,
    ) -> None:
        """`options` are those of `Encoder`."""
        super().__init__(transform, patch_size=patch_size or transform.size, **options)
        self.network = network.on_device(self.device)
        self.layer_sizes = tuple(2 * channels for channels in network.channels)
        self.place_sizes = network.channels[-N_LOCAL:]
        self._scale = (network.side or USUAL_SIDE) / USUAL_SIDE

    @torch.inference_mode()
    def extract_pixels(self, pixels: Pixels) -> Features:
        images = torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2)
        return Features.concatenate(
            [self._extract(part.to(self.device).float()) for part in images.split(self.together)]
        )

    def _extract(self, x: Tensor) -> Features:
        """The features of (B, 3, H, W), from 0 to 255."""
        tones = measure_tones(x.permute(0, 2, 3, 1)).cpu().numpy() if "tones" in self.kinds else None
        height, width = (round(side * self._scale) for side in x.shape[2:])
        if not self.network.any_side and self.network.side is not None:
            height = width = self.network.side
        if x.shape[2:] != (height, width):
            x = F.interpolate(x, (height, width), mode="bilinear", antialias=True)
        maps, pooled = self.network.layers(x.contiguous())
        places = find_places(maps[-N_LOCAL:], self.compare) if "places" in self.kinds else None
        return Features(
            np.empty((len(x), 0), np.float32),
            channel_statistics(maps).float().cpu().numpy(),
            pooled.float().cpu().numpy() if "pooled" in self.kinds else None,
            None if places is None else places.cpu().numpy(),
            tones,
        )


# Folders of transformers


def parse_name(text: str) -> tuple[str, Path]:
    """The kind and the absolute folder of KIND=FOLDER, such as dinov2=models/small."""
    kind, _, place = text.partition("=")
    if kind not in FOLDER_KINDS.split(", ") or not place or "\0" in place:
        raise ParameterError(
            f"no network is called {text!r}: choose one of {', '.join(PRETRAINED)}, or KIND=FOLDER of a network of "
            f"transformers, KIND one of {FOLDER_KINDS}"
        )
    return kind, Path(place).expanduser().absolute()


def load_folder(name: str, *, digest: str | None = None) -> "FolderNetwork":
    """The network KIND=FOLDER in a folder that `save_pretrained` wrote: config, safetensors, preprocessor_config.

    A given digest is compared before anything else is read.
    """
    kind, folder = parse_name(name)
    if not folder.is_dir():
        raise WeightsError(f"no folder at {folder}: {kind}=FOLDER is one with {CONFIG}, {PREPROCESSOR} and {WEIGHTS}")
    found = folder_digest(folder)
    if digest not in (None, found):
        raise WeightsError(f"{kind}={folder} has the digest {found}, not {digest}")
    check_config(kind, folder)
    return FolderNetwork(f"{kind}={folder}", folder, found)


class FolderNetwork(OutsideNetwork):
    """A network of `transformers` without its classifier, with statistics of early and middle hidden states.

    These are the last state of each resolution except the lowest, or, in a network of one resolution, the states after
    a quarter, a half and three quarters of the blocks. Tokens that belong to no patch are left out. Pooled features are
    the last state, averaged over the image.
    """

    def __init__(self, name: str, folder: Path, digest: str) -> None:
        self._input = NetworkInput.read(folder / PREPROCESSOR)
        super().__init__(name, digest, side=self._input.side, any_side=True)
        self._model = load_model(folder)
        self._chosen: tuple[int, ...] = ()
        self.check()

    def layers(self, x: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        output = self._model(pixel_values=self._input.normalise(x), output_hidden_states=True, return_dict=True)
        states = output.hidden_states
        if not self._chosen:
            self._chosen = chosen_states([tuple(state.shape) for state in states], side=x.shape[-1])
            self.any_side = all(states[number].ndim == 4 for number in self._chosen)
        return [as_map(states[number]) for number in self._chosen], as_map(output.last_hidden_state).mean(dim=(2, 3))

    def on_device(self, device: torch.device) -> Self:
        if next(self._model.parameters()).device == device:
            return self
        found = deepcopy(self)
        found._model = found._model.to(device)
        return found


@dataclass(frozen=True)
class NetworkInput:
    """The input of a network: images of `side` pixels, as (pixel x scale - mean) / deviation."""

    side: Annotated[int, between(SIDES[0], SIDES[-1])]
    scale: Annotated[float, between(1e-6, 1e6)]
    mean: Annotated[tuple[Annotated[float, between(-1e6, 1e6)], ...], length(3, 3)]
    deviation: Annotated[tuple[Annotated[float, between(1e-6, 1e6)], ...], length(3, 3)]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads preprocessor_config.json of `transformers`."""
        config = read_json(path)
        size = config.get("crop_size" if config.get("do_center_crop", False) else "size")
        if isinstance(size, dict):
            size = size.get("shortest_edge", size.get("height"))
        normalised = config.get("do_normalize", True)
        values = {
            "side": size,
            "scale": config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0,
            "mean": config.get("image_mean") if normalised else (0,) * 3,
            "deviation": config.get("image_std") if normalised else (1,) * 3,
        }
        with refused(path, COPY):
            return read_fields(cls, values, where=path.name)

    def normalise(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) from 0 to 255 to the network's input."""
        mean, deviation = (torch.tensor(each, device=x.device)[:, None, None] for each in (self.mean, self.deviation))
        return (x * self.scale - mean) / deviation


def chosen_states(shapes: Sequence[tuple[int, ...]], *, side: int) -> tuple[int, ...]:
    """The numbers of the hidden states, (B, C, H, W) or (B, N, C), with statistics; never the last."""
    resolution = [shape[-1] if len(shape) == 4 else shape[1] for shape in shapes]
    inner = [number for number, shape in enumerate(shapes) if not (len(shape) == 4 and shape[-1] == side)]
    last = {resolution[number]: number for number in inner}
    if len(last) > 1:
        return tuple(sorted(last.values()))[:-1]
    blocks = inner[1:] or inner  # the first is the embedding
    return tuple(sorted({blocks[max(len(blocks) * quarter // 4, 1) - 1] for quarter in QUARTERS}))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file beside the weights of a network."""
    if not path.is_file():
        raise WeightsError(f"no {path.name} in {path.parent}: {COPY}")
    with refused(path, COPY):
        if path.stat().st_size > MAX_JSON_BYTES:
            raise WeightsError(f"it has more than {MAX_JSON_BYTES:,} bytes")
        content = load_json(path.read_bytes())
        if not isinstance(content, dict):
            raise WeightsError("it holds no object")
    return content


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of the network, all in the folder itself."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise WeightsError(f"no {WEIGHTS} in {folder}: weights are read from safetensors only, save them so")
    parts = read_json(folder / INDEX).get("weight_map")
    files = sorted({folder / str(name) for name in parts.values()}) if isinstance(parts, dict) else []
    if not files or any(path.parent != folder or not path.is_file() for path in files):
        raise WeightsError(f"{folder / INDEX} names files that are not in its folder: copy the whole folder again")
    return files


def folder_digest(folder: Path) -> str:
    """16 hex digits of everything that features depend on: config, preprocessing and weights."""
    total = hashlib.sha256()
    for path in (folder / CONFIG, folder / PREPROCESSOR, *weight_files(folder)):
        if not path.is_file():
            raise WeightsError(f"no {path.name} in {folder}: {COPY}")
        total.update(f"{path.name} {file_digest(path)}\n".encode())
    return total.hexdigest()[:16]


def check_config(kind: str, folder: Path) -> None:
    """Raises WeightsError unless the config is of that kind, without code or weights from elsewhere."""
    config = read_json(folder / CONFIG)
    if (found := config.get("model_type")) != kind:
        raise WeightsError(
            f"{folder} holds a model of type {shorten.repr(found)}, not {kind}: name it by its type, "
            f"one of {FOLDER_KINDS}"
        )
    if named := [field for field in REFUSED if config.get(field)]:
        raise WeightsError(f"{folder / CONFIG} has {named[0]}, which is not read: take a plain {kind}, in float32")
    if (folder / "adapter_config.json").exists():
        raise WeightsError(f"{folder} has an adapter, which is not read: merge it, and save the network as a whole")


def load_model(folder: Path, loader: str = "AutoModel") -> Any:
    """The model in the folder, with every weight from its safetensors; the pooler may be missing, as it is not used."""
    require("transformers", "transformers")
    transformers = import_module("transformers")
    logging = transformers.utils.logging
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # it warns of missing weights, which are checked here
    logging.disable_progress_bar()
    try:
        model, loading = getattr(transformers, loader).from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            attn_implementation="eager",  # other kernels named in the config would be downloaded
        )
    except Exception as error:  # anything that transformers raises for a damaged folder
        raise WeightsError(f"{folder} cannot be loaded: use one with {WEIGHTS} ({error})") from error
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
    if missing := sorted(key for key in loading["missing_keys"] if not key.startswith("pooler")):
        raise WeightsError(f"the weights in {folder} lack {missing[0]} and {len(missing) - 1} more: use all of them")
    return model.float().eval().requires_grad_(False)
