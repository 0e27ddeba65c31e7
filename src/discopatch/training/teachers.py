"""Distillation: frozen networks whose outputs a new discriminator learns to predict.

A teacher has a name, such as `resnet50`, and outputs of several kinds; together they name a target, such as
`resnet50/statistics`. The layers that predict targets exist in training alone.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from discopatch.corruptions.degradations import DEGRADATIONS
from discopatch.errors import ParameterError
from discopatch.model import Architecture, Discriminator, DiscriminatorOutput, Weights
from discopatch.model.config import LITE, LITE0, LITE1
from discopatch.model.kernels import Recorded
from discopatch.model.layers import SameConv2d, channels_last
from discopatch.model.networks import channel_statistics
from discopatch.training.config import TrainingConfig

Targets = dict[str, Tensor]  # by kind, or by teacher and kind

DISCRIMINATOR = "discriminator"  # name of a teacher
BEGINNINGS = {"efficientnet-lite0": LITE0, "efficientnet-lite1": LITE1}  # teachers to begin as, and their depths
BEGINNING = "beginning"  # teacher of the student's own first features, by the number of the layer
STATISTICS, POOLED, EMBEDDING = "statistics", "pooled", "embedding"  # kinds of outputs; students have the last
MAPS = {"map8": 8, "map16": 16}  # kinds of feature maps, by the pixels of a cell
LEARNT_MAPS = {"resnet50": {"map8": 1, "map16": 2}}  # by teacher, the stages after which maps are taken
SMALLEST_SCALE = 0.01  # of an output; smaller differences do not count


class Teacher(nn.Module):
    """A frozen network: images (B, 3, H, W) in [-1, 1] -> outputs by kind; `digest` identifies its weights."""

    digest = ""


class DiscriminatorTeacher(Teacher):
    """A discriminator as a teacher of its statistics.

    An inverted student of an inverted teacher also learns its maps, and its embedding if it has one of the same length.
    """

    def __init__(self, weights: Weights, student: Architecture) -> None:
        super().__init__()
        check_range(weights)
        own = weights.discriminator.architecture
        self.digest = weights.digest
        self.discriminator = channels_last(deepcopy(weights.discriminator)).eval().requires_grad_(False)
        self.with_maps = student.kind == own.kind == "inverted"
        self.with_embedding = 0 < own.embedding == student.embedding

    def forward(self, images: Tensor) -> Targets:
        """Statistics (B, 2 x channels); maps and the embedding (B, values) if the student learns them."""
        output = self.discriminator(images, 1, statistics=True)
        found = {STATISTICS: output.statistics}
        if self.with_maps:
            found |= {kind: output.features[layer_of(self.discriminator.architecture, kind)] for kind in MAPS}
        if self.with_embedding:
            found[EMBEDDING] = output.embedding
        return found


class BackboneTeacher(Teacher):
    """A frozen classifier as a teacher; `network` has the methods `normalise` and `layers`."""

    def __init__(self, name: str, network: Any, digest: str) -> None:
        super().__init__()
        self.network, self.digest, self.maps = network, digest, LEARNT_MAPS.get(name, {})

    def forward(self, images: Tensor) -> Targets:
        """Statistics (B, 2 x channels), pooled last features (B, channels), maps (B, channels, rows, columns)."""
        maps, pooled = self.network.layers(self.network.normalise((images.permute(0, 2, 3, 1) + 1) * 127.5))
        statistics = channel_statistics([each.float() for each in maps])
        return {STATISTICS: statistics, POOLED: pooled, **{kind: maps[stage] for kind, stage in self.maps.items()}}


class LayersTeacher(Teacher):
    """The discriminator as it began, whose features the student keeps where nothing is degraded."""

    def __init__(self, discriminator: Discriminator) -> None:
        super().__init__()
        self.discriminator = deepcopy(discriminator).eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Targets:
        """Map of every layer, by its number."""
        return {str(number): each for number, each in enumerate(self.discriminator(images, 1).features)}


def begin_as_teacher(discriminator: Discriminator, teachers: Mapping[str, Teacher]) -> dict[str, Teacher]:
    """Copies the layers of a teacher EfficientNet-Lite into a discriminator that has the same; returns its teachers.

    A million photos taught these layers more than some thousand could. The discriminator as it began replaces this
    teacher.
    """
    own = discriminator.architecture
    same = [name for name in teachers if own.hidden == LITE and BEGINNINGS.get(name) == own.depths]
    if own.kind != "inverted" or not same:
        return dict(teachers)
    (name,) = same
    teacher = teachers[name]
    networks = discriminator, teacher
    convs, theirs = ([each for each in net.modules() if isinstance(each, SameConv2d)] for net in networks)
    with torch.no_grad():
        for layer, other in zip(convs, theirs, strict=False):  # the teacher has one more
            layer.load_state_dict(other.state_dict())
        stem, bias = convs[0], convs[0].bias
        assert bias is not None
        # The teacher takes (p - 127) / 128 of a pixel p, a discriminator p / 127.5 - 1.
        bias.add_(stem.weight.sum((1, 2, 3)) * (0.5 / 128))
        stem.weight.mul_(127.5 / 128)
    others = {other: each for other, each in teachers.items() if other != name}
    return {**others, BEGINNING: LayersTeacher(discriminator)}


@torch.no_grad()
def measure_statistics(discriminator: Discriminator, batches: Iterable[Tensor]) -> None:
    """Sets centre and scale of the statistics that its embedding reads to those of batches (B, 3, H, W)."""
    assert discriminator.embed is not None
    found = torch.cat([torch.cat(discriminator(each, 1, statistics=True).layer_statistics, 1) for each in batches])
    discriminator.embed.centre.copy_(found.mean(0))
    discriminator.embed.scale.copy_(found.std(0) + SMALLEST_SCALE)


def check_range(weights: Weights) -> None:
    """Raises ParameterError unless the weights take pixels in [-1, 1], as training does."""
    if weights.transform.pixels != "symmetric":
        raise ParameterError(
            f"these weights take pixels in the range {weights.transform.pixels!r}, and training has them in [-1, 1]: "
            "choose other weights"
        )


def kind_of(target: str) -> str:
    """resnet50/map8 -> map8."""
    return target.rpartition("/")[2]


@dataclass(frozen=True, eq=False)
class Teachers:
    """Frozen networks with the mean and spread of their outputs, so that every number has the same weight."""

    networks: Mapping[str, Teacher]
    centre: dict[str, Tensor]  # by target, (channels,); embeddings are not scaled
    scale: dict[str, Tensor]
    recorded: dict[torch.Size, Recorded[Targets]] = field(default_factory=dict, init=False)  # on a GPU, by shape

    @classmethod
    def measured(cls, networks: Mapping[str, Teacher], batches: Iterable[Tensor]) -> Self:
        """Mean and spread over images, and over the cells of maps, of batches (B, 3, H, W) in [-1, 1]."""
        found = cls(networks, {}, {})
        sums: dict[str, tuple[int, Any, Any]] = {}  # count, sum and sum of squares of each channel
        for batch in batches:
            for target, values in found.outputs(batch).items():
                if kind_of(target) != EMBEDDING and not target.startswith(BEGINNING):
                    by_channel = values.double().transpose(0, 1).flatten(1)
                    count, total, squares = sums.get(target, (0, 0.0, 0.0))
                    count, total = count + by_channel.shape[1], total + by_channel.sum(1)
                    sums[target] = count, total, squares + by_channel.square().sum(1)
        for target, (count, total, squares) in sums.items():
            mean = total / count
            spread = ((squares - count * mean.square()).clamp(min=0) / (count - 1)).sqrt()
            found.centre[target], found.scale[target] = mean.float(), (spread + SMALLEST_SCALE).float()
        return found

    @property
    def channels(self) -> dict[str, int]:
        """Number of channels of each target that is predicted."""
        return {target: len(values) for target, values in self.centre.items()}

    def __call__(self, images: Tensor) -> Targets:
        """Targets of whole images (B, 3, H, W) in [-1, 1], in standard deviations.

        On a GPU as one recording: launching the frozen networks takes longer than computing them.
        """
        if images.device.type != "cuda":
            return self.outputs(images)
        if images.shape not in self.recorded:
            stream = torch.cuda.Stream(images.device)
            self.recorded[images.shape] = Recorded(self.outputs, images.clone(), stream=stream, search=True)
        recorded = self.recorded[images.shape]
        recorded.given.copy_(images)
        return {target: values.clone() for target, values in recorded.replay().items()}

    @torch.no_grad()
    def outputs(self, images: Tensor) -> Targets:
        """The targets, not recorded; bfloat16 on a GPU, as the student has it, with statistics in float32."""
        with torch.autocast(images.device.type, torch.bfloat16, enabled=images.device.type == "cuda"):
            found = {
                f"{name}/{kind}": values
                for name, network in self.networks.items()
                for kind, values in network(images).items()
            }
        outputs = {target: values.float() for target, values in found.items()}
        for target, centre in self.centre.items():
            shape = (-1, *(1 for _ in outputs[target].shape[2:]))
            outputs[target] = (outputs[target] - centre.view(shape)) / self.scale[target].view(shape)
        return outputs


class AuxiliaryOutput(NamedTuple):
    """Logits of a batch, and the auxiliary outputs on request."""

    logits: Tensor  # (B,) of patches, (B, rows, columns) of larger images
    classes: Tensor | None = None  # logits of no degradation and of each degradation, (B, 1 + D)
    predictions: Targets | None = None  # of the teachers' outputs; a map may have another grid
    features: list[Tensor] | None = None  # after each layer
    embedding: Tensor | None = None  # (B, values)


class AuxiliaryDiscriminator(nn.Module):
    """A discriminator with a classifier of degradations and linear predictions of the teachers' outputs.

    The classifier keeps the degradations apart in the features, which real against fake alone need not. The predictions
    give its statistics and maps the information of the teachers'. These layers are not saved with the discriminator.
    """

    def __init__(self, discriminator: Discriminator, config: TrainingConfig, targets: Mapping[str, int]) -> None:
        """`targets` has the number of channels of every predicted output."""
        super().__init__()
        self.discriminator = discriminator
        architecture = discriminator.architecture
        classified = bool(config.weight_degraded and config.weight_classified)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.classifier = nn.Linear(architecture.hidden[-1], 1 + len(DEGRADATIONS)) if classified else None
            self.predictors = nn.ModuleDict(
                {target: predictor(architecture, kind_of(target), width) for target, width in targets.items()}
            )

    def forward(self, x: Tensor, group: int | None = None, *, auxiliary: bool = False) -> AuxiliaryOutput:
        """Logits and, with `auxiliary`, the further outputs for whole images; DDP needs one `forward` for all."""
        if not auxiliary:
            return AuxiliaryOutput(self.discriminator(x, group).logits)
        embedded = self.discriminator.embed is not None
        output: DiscriminatorOutput = self.discriminator(x, group, statistics=bool(self.predictors) or embedded)
        pooled = output.features[-1].float().mean((2, 3))
        classes = None if self.classifier is None else self.classifier(pooled)
        predictions = {}
        for target, layer in self.predictors.items():
            kind = kind_of(target)
            if kind in MAPS:
                predictions[target] = layer(output.features[layer_of(self.discriminator.architecture, kind)])
            else:
                predictions[target] = layer(pooled if kind == POOLED else torch.cat(output.layer_statistics, 1))
        return AuxiliaryOutput(output.logits, classes, predictions, output.features, output.embedding)


def predictor(architecture: Architecture, kind: str, width: int) -> nn.Module:
    """Linear layer to `width` channels: from the statistics, the averaged last features, or a map cell by cell."""
    if kind in MAPS:
        return nn.Conv2d(architecture.hidden[layer_of(architecture, kind)], width, kernel_size=1)
    return nn.Linear(2 * sum(architecture.hidden) if kind == STATISTICS else architecture.hidden[-1], width)


def layer_of(architecture: Architecture, kind: str) -> int:
    """Number of the layer with a map as fine as one of that kind, or of the coarsest layer."""
    return min(MAPS[kind].bit_length() - 2, len(architecture.hidden) - 1)
