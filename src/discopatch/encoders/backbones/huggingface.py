"""Classifiers from a local folder of `transformers`: RegNet, MobileNetV2, BiT, BEiTv2. Nothing is ever downloaded."""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from math import isqrt
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from discopatch.encoders.backbones.base import (
    CROP_SIZE,
    LOCAL,
    N_LOCAL,
    PENULTIMATE,
    RANK_WEIGHT,
    STATISTICS,
    ConvolutionalNetwork,
    FrozenBackbone,
    Network,
    Sections,
    average_pool,
    centre_crop,
    channel_statistics,
    weight_without_rank_one,
)
from discopatch.encoders.places import local_features
from discopatch.errors import ParameterError, WeightsError
from discopatch.model.weights import refused
from discopatch.schema import between, check_fields, load_json, read_fields
from discopatch.utils import require

MAX_JSON_BYTES = 2**22  # of a config, with the names of many classes


@dataclass(frozen=True)
class Preprocessing:
    """The input that the network wants, from its preprocessor_config.json."""

    side: Annotated[int, between(1, 4096)]
    scale: float
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __post_init__(self) -> None:
        check_fields(self)
        if len(self.mean) != 3 or len(self.deviation) != 3 or min(self.deviation) <= 0:
            raise ParameterError("a mean and a standard deviation above 0 are needed for each of three colours")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads the JSON itself: the classes of `transformers` that would read it want torchvision."""
        path = folder / "preprocessor_config.json"
        config = read_json(path)
        with refused(path, "take the file that belongs to the weights"):
            try:
                size = config["crop_size" if config.get("do_center_crop", False) else "size"]
                if isinstance(size, dict):
                    size = size["shortest_edge"] if "shortest_edge" in size else size["height"]
                scale = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
                normalised = config.get("do_normalize", True)
                mean, deviation = (config["image_mean"], config["image_std"]) if normalised else ((0,) * 3, (1,) * 3)
            except KeyError as error:
                raise WeightsError(f"it has no {error}") from error
            values = {"side": size, "scale": scale, "mean": mean, "deviation": deviation}
            return read_fields(cls, values, where="preprocessor_config")

    def __call__(self, pixels: Tensor) -> Tensor:
        """(B, 256, 256, 3) uint8 -> (B, 3, side, side): the centre, resized only where the side is not 224."""
        x = centre_crop(pixels).permute(0, 3, 1, 2).float()
        if self.side != CROP_SIZE:
            x = F.interpolate(x, (self.side, self.side), mode="bilinear", antialias=True)
        return self.normalise(x)

    def normalise(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) from 0 to 255 -> the same as the network takes it."""
        mean, deviation = (torch.tensor(each, device=x.device)[:, None, None] for each in (self.mean, self.deviation))
        return (x * self.scale - mean) / deviation


class HuggingFaceNetwork(Network):
    """What all classifiers of `transformers` share."""

    def __init__(self, model: Any, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.model = model
        # The last linear layer gives the logits; some models have it behind a flattening.
        self.head = [module for module in model.classifier.modules() if isinstance(module, nn.Linear)][-1]
        self._preprocessing = preprocessing

    def prepare(self, pixels: Tensor) -> Tensor:
        return self._preprocessing(pixels)


class HuggingFaceConvNet(HuggingFaceNetwork, ConvolutionalNetwork):
    """A network of stages; statistics are those of the ends of all but the last."""

    def __init__(
        self,
        model: Any,
        preprocessing: Preprocessing,
        parts: list[nn.Module],
        pool: Callable[[Tensor], Tensor] = average_pool,
    ) -> None:
        super().__init__(model, preprocessing)
        self._sections = Sections(tuple(parts), measured=len(parts) - 1, pool=pool)

    @property
    def sections(self) -> Sections:
        return self._sections


class HuggingFaceResNet(HuggingFaceConvNet):
    """BiT, a ResNet v2: the convolutions that RankWeight changes are conv2 and conv3 of its last block.

    What is changed are the parameters, as RankWeight's authors do; BiT standardizes them before it convolves.
    """

    kinds = (*ConvolutionalNetwork.kinds, RANK_WEIGHT)

    @property
    def sections(self) -> Sections:
        return self._sections._replace(reduced=self._reduced)

    def _reduced(self, x: Tensor) -> Tensor:
        result: Tensor = functional_call(self._last, self._reduced_weights, (x,))
        return result

    @property
    def _last(self) -> Any:
        return self._sections.parts[-1]

    @cached_property
    def _reduced_weights(self) -> dict[str, Tensor]:
        place = f"layers.{len(self._last.layers) - 1}"
        names = [f"{place}.{name}.weight" for name in ("conv2", "conv3")]
        return {name: weight_without_rank_one(self._last.get_parameter(name)) for name in names}


class EnoughExtracted(Exception):  # noqa: N818 - it ends a forward pass early and is no error
    """All features that were asked for have been extracted."""


class HuggingFaceTransformer(HuggingFaceNetwork):
    """A network whose layers all pass on the same tokens, the first of which stands for the whole image.

    Statistics are those of the other tokens, the patches', after a quarter, a half and three quarters of the layers,
    local features those after the last two.
    """

    kinds = (PENULTIMATE, STATISTICS, LOCAL)

    def __init__(self, model: Any, preprocessing: Preprocessing, layers: list[nn.Module]) -> None:
        super().__init__(model, preprocessing)
        quarters = sorted({max(len(layers) * quarter // 4, 1) for quarter in (1, 2, 3)})
        self._measured = tuple(layers[number - 1] for number in quarters)

    def layers(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """(B, C, tokens) of each layer that is measured, and the input of the last linear layer."""
        tokens, (last,) = self._pass(x, to_the_end=True)
        return tokens, last

    def _pass(self, x: Tensor, *, to_the_end: bool) -> tuple[list[Tensor], list[Tensor]]:
        """The same; without the last where the pass need not come to its end."""
        tokens: list[Tensor] = []
        penultimate: list[Tensor] = []

        def keep_tokens(layer: nn.Module, inputs: object, output: Any) -> None:
            tokens.append((output[0] if isinstance(output, tuple) else output)[:, 1:].mT)
            if len(tokens) == len(self._measured) and not to_the_end:
                raise EnoughExtracted

        def keep_penultimate(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            penultimate.append(inputs[0])

        with ExitStack() as hooks, suppress(EnoughExtracted):
            for layer in self._measured:
                hooks.enter_context(layer.register_forward_hook(keep_tokens))
            hooks.enter_context(self.head.register_forward_pre_hook(keep_penultimate))
            self.model(pixel_values=x)
        return tokens, penultimate

    def extract(self, x: Tensor, kinds: Collection[str]) -> dict[str, Tensor]:
        tokens, penultimate = self._pass(x, to_the_end=PENULTIMATE in kinds)
        found = {}
        if STATISTICS in kinds:
            found[STATISTICS] = channel_statistics(tokens)
        if LOCAL in kinds:
            side = isqrt(tokens[0].shape[2])
            found[LOCAL] = local_features([one.unflatten(2, (side, side)) for one in tokens[-N_LOCAL:]])
        if PENULTIMATE in kinds:
            (found[PENULTIMATE],) = penultimate
        return found


def _regnet(model: Any, preprocessing: Preprocessing) -> Network:
    first, *others = model.regnet.encoder.stages
    return HuggingFaceConvNet(model, preprocessing, [nn.Sequential(model.regnet.embedder, first), *others])


def _bit(model: Any, preprocessing: Preprocessing) -> Network:
    """Its blocks end without norm and activation: those come before the pooling, where RankFeat's authors have them."""
    first, *others = model.bit.encoder.stages
    parts = [nn.Sequential(model.bit.embedder, first), *others]
    return HuggingFaceResNet(model, preprocessing, parts, pool=lambda end: average_pool(model.bit.norm(end)))


def _mobilenetv2(model: Any, preprocessing: Preprocessing) -> Network:
    """A stage are the layers of one resolution; the 1 x 1 after them belongs to the last."""
    stages: list[list[nn.Module]] = []
    for layer in model.mobilenet_v2.layer:
        if layer.conv_3x3.convolution.stride == (2, 2):
            stages.append([])
        stages[-1].append(layer)
    stages[0].insert(0, model.mobilenet_v2.conv_stem)
    stages[-1].append(model.mobilenet_v2.conv_1x1)
    return HuggingFaceConvNet(model, preprocessing, [nn.Sequential(*stage) for stage in stages])


def _beit(model: Any, preprocessing: Preprocessing) -> Network:
    layers = [module for module in model.modules() if type(module).__name__ == "BeitLayer"]
    return HuggingFaceTransformer(model, preprocessing, layers)


class ModelType(NamedTuple):
    """A type of model of `transformers`."""

    id: str  # the model_type of its config.json
    classifier: str  # the class that loads it
    network: Callable[[Any, Preprocessing], Network]


MODEL_TYPES = {
    "regnet": ModelType("regnet", "RegNetForImageClassification", _regnet),
    "mobilenetv2": ModelType("mobilenet_v2", "MobileNetV2ForImageClassification", _mobilenetv2),
    "bit": ModelType("bit", "BitForImageClassification", _bit),
    "beitv2": ModelType("beit", "BeitForImageClassification", _beit),
}


def load_huggingface(name: str, folder: Path, *, device: torch.device | str = "cpu") -> FrozenBackbone:
    """The classifier in the folder, as `save_pretrained` leaves one: config, safetensors, preprocessor_config."""
    expected = MODEL_TYPES[name]
    if not folder.is_dir():
        raise WeightsError(f"no folder at {folder}: {name}=FOLDER is one with config.json and model.safetensors")
    if (found := read_json(folder / "config.json").get("model_type")) != expected.id:
        raise WeightsError(f"{folder} holds a model of type {found}, not {expected.id}: give it by its own name")
    preprocessing = Preprocessing.read(folder)
    model = load_model(expected.classifier, folder)
    labels = dict(model.config.id2label)
    named = any(label != f"LABEL_{number}" for number, label in labels.items())
    classes = [str(labels[number]) for number in sorted(labels)] if named else []
    return FrozenBackbone(f"{name}={folder}", expected.network(model, preprocessing), classes=classes, device=device)


def load_model(name: str, folder: Path, *, without: str | None = None, **options: Any) -> Any:
    """The model of that class of `transformers`, with every weight from the folder: none is initialised at random.

    Safetensors only, and from here only. `without` is a part that may be missing, since its output is not used.
    """
    require("transformers", "transformers")
    transformers = import_module("transformers")
    with _quiet(transformers):
        try:
            model, loading = getattr(transformers, name).from_pretrained(
                folder,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                **options,
            )
        except Exception as error:  # whatever it makes of a folder that is damaged, or holds something else
            raise WeightsError(f"{folder} cannot be loaded: take one with model.safetensors ({error})") from error
    if missing := sorted(key for key in loading["missing_keys"] if without is None or not key.startswith(without)):
        raise WeightsError(f"the weights in {folder} lack {missing[0]} and {len(missing) - 1} more: take all of them")
    return model.float()


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without its progress bar and its remarks about missing weights, which we check ourselves."""
    logging = transformers.utils.logging
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a folder of `transformers`."""
    if not path.is_file():
        raise WeightsError(f"no {path.name} in {path.parent}: copy it from where the weights came from")
    with refused(path, "copy it again from where the weights came from"):
        if path.stat().st_size > MAX_JSON_BYTES:
            raise WeightsError(f"it has more than {MAX_JSON_BYTES:,} bytes")
        content = load_json(path.read_bytes())
        if not isinstance(content, dict):
            raise WeightsError("it holds no object")
    return content
