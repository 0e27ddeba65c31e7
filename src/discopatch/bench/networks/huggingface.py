"""Classifiers from a local folder of `transformers`: RegNet, MobileNetV2, BiT, BEiTv2. Nothing is ever downloaded."""

from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from functools import cached_property
from math import isqrt
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from discopatch.bench.networks.base import (
    CROP_SIZE,
    LOCAL,
    PENULTIMATE,
    RANK_WEIGHT,
    STATISTICS,
    ConvolutionalNetwork,
    FrozenBackbone,
    Network,
    Sections,
    average_pool,
    centre_crop,
    weight_without_rank_one,
)
from discopatch.encoders.checkpoints import Preprocessing, load_model, read_json
from discopatch.encoders.places import N_LOCAL, local_features
from discopatch.errors import WeightsError
from discopatch.model.discriminator import channel_statistics


class HuggingFaceNetwork(Network):
    """What all classifiers of `transformers` share."""

    def __init__(self, model: Any, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.model = model
        # The last linear layer gives the logits; some models have it behind a flattening.
        self.head = [module for module in model.classifier.modules() if isinstance(module, nn.Linear)][-1]
        self._preprocessing = preprocessing

    def prepare(self, pixels: Tensor) -> Tensor:
        """(B, 256, 256, 3) uint8 -> (B, 3, side, side): the centre, resized only where the side is not 224."""
        x, side = centre_crop(pixels).permute(0, 3, 1, 2).float(), self._preprocessing.side
        if side != CROP_SIZE:
            x = F.interpolate(x, (side, side), mode="bilinear", antialias=True)
        return self._preprocessing.normalise(x)


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
