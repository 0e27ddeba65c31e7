"""Classifiers of `transformers` from a local folder, such as RegNet, MobileNetV2, BiT or BEiT."""

from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.bench.networks.base import CROP_SIZE, ClassifierBackbone, ClassifierNetwork
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
from discopatch.errors import WeightsError


def is_classifier(name: str) -> bool:
    """Whether KIND=FOLDER is a classifier of images by its config.json."""
    _, folder = parse_name(name)
    if not (folder / CONFIG).is_file():
        return False
    architectures = read_json(folder / CONFIG).get("architectures") or ()
    return any(str(each).endswith("ForImageClassification") for each in architectures)


def load_classifier(name: str, *, device: str = "cpu") -> ClassifierBackbone:
    """The classifier KIND=FOLDER, as `save_pretrained` writes one: config, safetensors, preprocessor_config."""
    kind, folder = parse_name(name)
    check_config(kind, folder)
    digest = folder_digest(folder)
    return ClassifierBackbone(name, FolderClassifier(folder), digest=digest, device=resolve_device(device))


class FolderClassifier(ClassifierNetwork):
    """A classifier with statistics of the hidden states that `encoders.FolderNetwork` takes, too."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._input = NetworkInput.read(folder / PREPROCESSOR)
        self.model = load_model(folder, "AutoModelForImageClassification")
        layers = [each for each in self.model.classifier.modules() if isinstance(each, nn.Linear)]
        if not layers:
            raise WeightsError(f"{folder} has no classes: take a network that was trained to classify")
        self.head = layers[-1]

    def normalise(self, pixels: Tensor) -> Tensor:
        x, side = pixels.permute(0, 3, 1, 2).float(), self._input.side
        if side != CROP_SIZE:
            x = F.interpolate(x, (side, side), mode="bilinear", antialias=True)
        return self._input.normalise(x)

    def layers(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        penultimate: list[Tensor] = []
        with self.head.register_forward_pre_hook(lambda _, inputs: penultimate.append(inputs[0])):
            states = self.model(pixel_values=x, output_hidden_states=True, return_dict=True).hidden_states
        chosen = chosen_states([tuple(state.shape) for state in states], side=x.shape[-1])
        return [as_map(states[number]) for number in chosen], penultimate[0]
