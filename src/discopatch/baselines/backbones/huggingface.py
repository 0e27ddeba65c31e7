"""Classifiers from a local folder of `transformers`: RegNet, MobileNetV2, BiT, BEiTv2. Nothing is ever downloaded."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.baselines.backbones.frozen import SIDE, FrozenBackbone, Network, centre
from discopatch.baselines.backbones.sections import Sections, channel_statistics, mean_of_positions, see
from discopatch.baselines.method import PENULTIMATE, RANK_BEFORE, RANK_LAST, STATISTICS


class Preparation(NamedTuple):
    """What the network wants pixels to be, from its preprocessor_config.json."""

    side: int
    scale: float
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """By the JSON alone: the classes that would read it want torchvision."""
        path = folder / "preprocessor_config.json"
        said = _json(path)
        try:
            side = _side(said["crop_size"] if said.get("do_center_crop", False) else said["size"])
            scale = said.get("rescale_factor", 1 / 255) if said.get("do_rescale", True) else 1
            normal = said.get("do_normalize", True)
            mean, deviation = (said["image_mean"], said["image_std"]) if normal else ((0, 0, 0), (1, 1, 1))
        except KeyError as error:
            raise ValueError(f"{path} has no {error}: take the file that belongs to the weights") from error
        return cls(side, scale, tuple(mean), tuple(deviation))

    def __call__(self, pixels: Tensor) -> Tensor:
        """(B, 256, 256, 3) in uint8 -> (B, 3, side, side): the centre, resized only where the side is not 224."""
        x = centre(pixels).permute(0, 3, 1, 2).float()
        if self.side != SIDE:
            x = F.interpolate(x, (self.side, self.side), mode="bilinear", antialias=True)
        mean, deviation = (torch.tensor(each, device=x.device)[:, None, None] for each in (self.mean, self.deviation))
        return (x * self.scale - mean) / deviation


def _side(size: int | Mapping[str, int]) -> int:
    if isinstance(size, int):
        return size
    return size["shortest_edge"] if "shortest_edge" in size else size["height"]


class ConvolutionalNetwork(Network):
    """A network of stages, each of which sees the map that the one before it left."""

    kinds = (PENULTIMATE, RANK_LAST, RANK_BEFORE, STATISTICS)

    def __init__(self, model: nn.Module, preparation: Preparation, sections: Sections) -> None:
        super().__init__()
        self.model, self.head = model, last_linear(model)
        self._preparation, self._sections = preparation, sections

    def prepare(self, pixels: Tensor) -> Tensor:
        """As its preprocessor_config.json says."""
        return self._preparation(pixels)

    def see(self, x: Tensor, kinds: Collection[str]) -> dict[str, Tensor]:
        """Statistics are those of the ends of all stages but the last."""
        return see(x, self._sections, kinds)


class Enough(Exception):  # noqa: N818 - it is no error
    """All that was asked for has been seen."""


class TransformerNetwork(Network):
    """A network of layers that all see the same tokens, the first of which stands for the whole picture."""

    kinds = (PENULTIMATE, STATISTICS)

    def __init__(self, model: nn.Module, preparation: Preparation, layers: list[nn.Module]) -> None:
        super().__init__()
        self.model, self.head = model, last_linear(model)
        self._preparation = preparation
        quarters = sorted({max(len(layers) * quarter // 4, 1) for quarter in (1, 2, 3)})
        self._shown = tuple(layers[number - 1] for number in quarters)

    def prepare(self, pixels: Tensor) -> Tensor:
        """As its preprocessor_config.json says."""
        return self._preparation(pixels)

    def see(self, x: Tensor, kinds: Collection[str]) -> dict[str, Tensor]:
        """Statistics are those of the patches' tokens after a quarter, a half and three quarters of the layers."""
        tokens: list[Tensor] = []
        last: list[Tensor] = []

        def keep_tokens(layer: nn.Module, taken: object, left: Any) -> None:
            tokens.append((left[0] if isinstance(left, tuple) else left)[:, 1:].mT)
            if len(tokens) == len(self._shown) and set(kinds) == {STATISTICS}:
                raise Enough

        def keep_last(layer: nn.Module, taken: tuple[Tensor, ...]) -> None:
            last.append(taken[0])

        with ExitStack() as hooks, suppress(Enough):
            for layer in self._shown:
                hooks.enter_context(layer.register_forward_hook(keep_tokens))
            hooks.enter_context(self.head.register_forward_pre_hook(keep_last))
            self.model(pixel_values=x)
        seen = {}
        if STATISTICS in kinds:
            seen[STATISTICS] = channel_statistics(tokens)
        if PENULTIMATE in kinds:
            (seen[PENULTIMATE],) = last
        return seen


def last_linear(model: Any) -> nn.Linear:
    """The last layer, which tells the classes apart; some have it behind a flattening."""
    found = [module for module in model.classifier.modules() if isinstance(module, nn.Linear)]
    return found[-1]


def _regnet(model: Any, preparation: Preparation) -> Network:
    first, *others = model.regnet.encoder.stages
    parts = (nn.Sequential(model.regnet.embedder, first), *others)
    return ConvolutionalNetwork(model, preparation, Sections(parts, shown=len(others), pool=mean_of_positions))


def _bit(model: Any, preparation: Preparation) -> Network:
    """Its blocks end without norm and activation: those come before the pooling, where RankFeat's authors have them."""
    first, *others = model.bit.encoder.stages
    parts = (nn.Sequential(model.bit.embedder, first), *others)

    def pool(end: Tensor) -> Tensor:
        return mean_of_positions(model.bit.norm(end))

    return ConvolutionalNetwork(model, preparation, Sections(parts, shown=len(others), pool=pool))


def _mobilenetv2(model: Any, preparation: Preparation) -> Network:
    """A stage are the layers of one resolution; the 1 x 1 after them belongs to the last."""
    stages: list[list[nn.Module]] = []
    for layer in model.mobilenet_v2.layer:
        if layer.conv_3x3.convolution.stride == (2, 2):
            stages.append([])
        stages[-1].append(layer)
    stages[0].insert(0, model.mobilenet_v2.conv_stem)
    stages[-1].append(model.mobilenet_v2.conv_1x1)
    parts = tuple(nn.Sequential(*stage) for stage in stages)
    return ConvolutionalNetwork(model, preparation, Sections(parts, shown=len(parts) - 1, pool=mean_of_positions))


def _beit(model: Any, preparation: Preparation) -> Network:
    layers = [module for module in model.modules() if type(module).__name__ == "BeitLayer"]
    return TransformerNetwork(model, preparation, layers)


class Model(NamedTuple):
    """A type of model of `transformers`."""

    type: str  # as its config.json says
    classifier: str  # the class that loads it
    network: Callable[[Any, Preparation], Network]


MODELS = {
    "regnet": Model("regnet", "RegNetForImageClassification", _regnet),
    "mobilenetv2": Model("mobilenet_v2", "MobileNetV2ForImageClassification", _mobilenetv2),
    "bit": Model("bit", "BitForImageClassification", _bit),
    "beitv2": Model("beit", "BeitForImageClassification", _beit),
}


def load(kind: str, folder: Path, *, device: torch.device | str = "cpu") -> FrozenBackbone:
    """The classifier in the folder, as `save_pretrained` leaves one: config, safetensors, preprocessor_config."""
    expected = MODELS[kind]
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder at {folder}: {kind}=FOLDER is one with config.json and model.safetensors")
    if (found := _json(folder / "config.json").get("model_type")) != expected.type:
        raise ValueError(f"{folder} holds a model of type {found}, not {expected.type}: give it by its own name")
    preparation = Preparation.read(folder)
    model = _from_pretrained(expected.classifier, folder)
    labels = dict(model.config.id2label)
    named = any(label != f"LABEL_{number}" for number, label in labels.items())
    classes = [str(labels[number]) for number in sorted(labels)] if named else []
    return FrozenBackbone(f"{kind}={folder}", expected.network(model, preparation), classes=classes, device=device)


def _from_pretrained(classifier: str, folder: Path) -> Any:
    """Safetensors only, from here only, and every weight from the file: none may be made up."""
    try:
        transformers = import_module("transformers")
    except ImportError as error:
        raise ModuleNotFoundError(
            "this backbone needs transformers: pip install 'discopatch[transformers]'", name="transformers"
        ) from error
    with _quiet(transformers):
        model, about = getattr(transformers, classifier).from_pretrained(
            folder, local_files_only=True, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    if missing := sorted(about["missing_keys"]):
        raise ValueError(
            f"the weights in {folder} lack {missing[0]} and {len(missing) - 1} more: take a whole classifier"
        )
    return model.float()


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without its progress bar and its remarks about what it found: we look at that ourselves."""
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


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"no {path.name} in {path.parent}: copy it from where the weights came from")
    content: dict[str, Any] = json.loads(path.read_text())
    return content
