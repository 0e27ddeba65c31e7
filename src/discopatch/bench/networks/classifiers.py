"""Classifiers of `transformers` from a local folder, such as RegNet, MobileNetV2, BiT or BEiT."""

from collections.abc import Collection
from functools import cached_property
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from discopatch.bench.networks.base import (
    CROP_SIZE,
    LOCAL,
    PENULTIMATE,
    RANK_BEFORE,
    RANK_LAST,
    RANK_WEIGHT,
    STATISTICS,
    ClassifierNetwork,
    FrozenBackbone,
    centre_crop,
    remove_rank_one,
    weight_without_rank_one,
)
from discopatch.encoders import parse_name, resolve_device
from discopatch.encoders.network import (
    CONFIG,
    PREPROCESSOR,
    NetworkInput,
    as_map,
    check_config,
    chosen_states,
    folder_digest,
    load_model,
    read_json,
)
from discopatch.encoders.places import N_LOCAL, local_features
from discopatch.errors import WeightsError
from discopatch.model.discriminator import channel_statistics

BASIC = (PENULTIMATE, STATISTICS, LOCAL)  # the kinds that one pass without changes gives
STAGED = ("bit", "mobilenet_v2", "regnet")  # the kinds whose last feature maps lose their rank 1 for RankFeat


def is_classifier(name: str) -> bool:
    """Whether KIND=FOLDER is a classifier of images by its config.json."""
    _, folder = parse_name(name)
    if not (folder / CONFIG).is_file():
        return False
    architectures = read_json(folder / CONFIG).get("architectures") or ()
    return any(str(each).endswith("ForImageClassification") for each in architectures)


def load_classifier(name: str, *, device: str = "cpu") -> FrozenBackbone:
    """The classifier KIND=FOLDER, as `save_pretrained` writes one: config, safetensors, preprocessor_config."""
    kind, folder = parse_name(name)
    check_config(kind, folder)
    network = FolderClassifier(kind, folder)
    return FrozenBackbone(name, network, digest=folder_digest(folder), device=resolve_device(device))


class FolderClassifier(ClassifierNetwork):
    """A classifier with statistics of the hidden states that `encoders.FolderNetwork` takes, too."""

    def __init__(self, kind: str, folder: Path) -> None:
        super().__init__()
        self._input = NetworkInput.read(folder / PREPROCESSOR)
        self.model = load_model(folder, "AutoModelForImageClassification")
        layers = [each for each in self.model.classifier.modules() if isinstance(each, nn.Linear)]
        if not layers:
            raise WeightsError(f"{folder} has no classes: take a network that was trained to classify")
        self.head = layers[-1]
        ranks = (RANK_LAST, RANK_BEFORE) if kind in STAGED else ()
        self.kinds = (*BASIC, *ranks, *((RANK_WEIGHT,) if kind == "bit" else ()))
        self._kind = kind

    def prepare(self, pixels: Tensor) -> Tensor:
        """(B, 256, 256, 3) uint8 -> the normalised centre, resized where the network's side is not 224."""
        x, side = centre_crop(pixels).permute(0, 3, 1, 2).float(), self._input.side
        return self._input.normalise(
            x if side == CROP_SIZE else F.interpolate(x, (side, side), mode="bilinear", antialias=True)
        )

    def layers(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        return self._pass(x)

    def extract(self, x: Tensor, kinds: Collection[str]) -> dict[str, Tensor]:
        found = {kind: self._pass(x, kind)[1] for kind in kinds if kind not in BASIC}
        if set(BASIC) & set(kinds):
            maps, penultimate = self._pass(x)
            local = local_features(maps[-N_LOCAL:])
            found |= {PENULTIMATE: penultimate, STATISTICS: channel_statistics(maps), LOCAL: local}
        return {kind: found[kind] for kind in kinds}

    def _pass(self, x: Tensor, rank: str = "") -> tuple[list[Tensor], Tensor]:
        """The maps and the penultimate features, these with a rank 1 removed where one is named."""
        penultimate: list[Tensor] = []
        hooks = [self.head.register_forward_pre_hook(lambda _, inputs: penultimate.append(inputs[0]))]
        if rank == RANK_BEFORE:
            first = self._last_stage[0]
            hooks.append(first.register_forward_pre_hook(lambda _, inputs: (remove_rank_one(inputs[0]),)))
        elif rank:
            last = self._last_stage[1]
            hooks.append(last.register_forward_hook(lambda _, inputs, output: remove_rank_one(output)))
        weights = self._reduced_weights if rank == RANK_WEIGHT else {}
        options = {"pixel_values": x, "output_hidden_states": True, "return_dict": True}
        try:
            states = functional_call(self.model, weights, (), options).hidden_states
        finally:
            for hook in hooks:
                hook.remove()
        chosen = chosen_states([tuple(state.shape) for state in states], side=x.shape[-1])
        return [as_map(states[number]) for number in chosen], penultimate[0]

    @property
    def _last_stage(self) -> tuple[nn.Module, nn.Module]:
        """The first and the last module of the stage of lowest resolution."""
        base = self.model.base_model
        if self._kind == "mobilenet_v2":
            first = [layer for layer in base.layer if layer.conv_3x3.convolution.stride == (2, 2)][-1]
            return first, base.conv_1x1
        return base.encoder.stages[-1], base.encoder.stages[-1]

    @cached_property
    def _reduced_weights(self) -> dict[str, Tensor]:
        """Of conv2 and conv3 of BiT's last block, as RankWeight's authors change them."""
        stages = self.model.base_model.encoder.stages
        place = f"bit.encoder.stages.{len(stages) - 1}.layers.{len(stages[-1].layers) - 1}"
        names = [f"{place}.{name}.weight" for name in ("conv2", "conv3")]
        return {name: weight_without_rank_one(self.model.get_parameter(name)) for name in names}
