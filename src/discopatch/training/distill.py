"""Distillation: frozen networks whose outputs a new discriminator learns to reproduce.

A teacher has a name, `discriminator` or that of a backbone, and outputs of several kinds. Together they are the name
of a target, such as `resnet50/statistics`.
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from discopatch.errors import ParameterError, WeightsError
from discopatch.model import Discriminator, Weights, channels_last
from discopatch.model.inverted import LITE0, SameConv2d
from discopatch.pretrained import find_pretrained
from discopatch.training.config import DISCRIMINATOR, TrainingConfig

if TYPE_CHECKING:
    from discopatch.bench.networks import EfficientNetLite0, ResNet50
    from discopatch.model.fast.scoring import Recorded

Targets = dict[str, Tensor]  # by teacher and kind

LOGITS, STATISTICS, POOLED = "logits", "statistics", "pooled"
BEGINNING = "beginning"  # the teacher that a discriminator begins as, whose layers are its own; by their numbers
LITE = "efficientnet-lite0"
MAPS = {"map8": 8, "map16": 16}  # feature maps, by how many pixels a cell stands for
LEARNT_MAPS = {"resnet50": {"map8": 1, "map16": 2}}  # by backbone, the number of the stage that they come after
SMALLEST_SCALE = 0.01  # of an output, below which a difference is no difference


def kind_of(target: str) -> str:
    """resnet50/map8 -> map8."""
    return target.rpartition("/")[2]


def is_own(target: str) -> bool:
    """Whether a student has such an output itself, so that nothing predicts it."""
    return kind_of(target) == LOGITS or target.startswith(BEGINNING)


@dataclass(frozen=True, eq=False)
class Teachers:
    """Frozen networks, with the mean and spread of what they give, so that each number of it weighs the same."""

    networks: Mapping[str, nn.Module]  # by name; each gives its outputs by kind
    centre: Mapping[str, Tensor]  # by target, (channels,); what a student has itself is left as it is
    scale: Mapping[str, Tensor]
    recorded: dict[torch.Size, "Recorded[Targets]"] = field(
        default_factory=dict, init=False
    )  # on a GPU, by the images' shape

    @classmethod
    def measured(cls, networks: Mapping[str, nn.Module], batches: Iterable[Tensor]) -> Self:
        """The batches (B, 3, H, W) in [-1, 1] say how the outputs vary, over images and over the cells of maps."""
        raw = cls(networks, {}, {})
        sums: dict[str, Tensor] = {}
        for batch in batches:
            for target, values in raw.outputs(batch).items():
                if not is_own(target):
                    by_channel = values.double().transpose(0, 1).flatten(1)
                    count = torch.full_like(by_channel[:, 0], by_channel.shape[1])
                    found = torch.stack((count, by_channel.sum(1), by_channel.square().sum(1)))
                    sums[target] = sums[target] + found if target in sums else found
        centre = {target: total / count for target, (count, total, _) in sums.items()}
        spread = {
            target: ((squares - count * centre[target].square()).clamp(min=0) / (count - 1)).sqrt() + SMALLEST_SCALE
            for target, (count, _, squares) in sums.items()
        }
        return cls(networks, *({name: value.float() for name, value in each.items()} for each in (centre, spread)))

    @property
    def channels(self) -> dict[str, int]:
        """How many numbers each target has that is predicted, of a map for each cell."""
        return {target: len(values) for target, values in self.centre.items()}

    def __call__(self, images: Tensor) -> Targets:
        """What the student is to reproduce of whole images (B, 3, H, W) in [-1, 1], in standard deviations.

        On a GPU as one recording: to launch what frozen networks do one by one takes longer than to do it.
        """
        if images.device.type != "cuda":
            return self.outputs(images)
        from discopatch.model.fast.scoring import Recorded

        if images.shape not in self.recorded:
            stream, pool = torch.cuda.Stream(images.device), torch.cuda.graph_pool_handle()
            self.recorded[images.shape] = Recorded(self.outputs, images.clone(), stream=stream, pool=pool, search=True)
        recorded = self.recorded[images.shape]
        recorded.given.copy_(images)
        return {target: values.clone() for target, values in recorded.replay().items()}

    @torch.no_grad()
    def outputs(self, images: Tensor) -> Targets:
        """The same, nothing recorded."""
        with autocast(images.device):
            found = {
                f"{name}/{kind}": values
                for name, network in self.networks.items()
                for kind, values in network(images).items()
            }
        return {target: self._standardise(target, values.float()) for target, values in found.items()}

    def _standardise(self, target: str, values: Tensor) -> Tensor:
        if target not in self.centre:
            return values
        shape = (-1, *(1 for _ in values.shape[2:]))
        return (values - self.centre[target].view(shape)) / self.scale[target].view(shape)


def autocast(device: torch.device) -> AbstractContextManager[None]:
    """The student's precision: bfloat16 on a GPU, with the statistics in float32 all the same."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def load_teachers(config: TrainingConfig, given: Weights | None) -> dict[str, nn.Module]:
    """The teachers that the config names by their digests; ParameterError where one is another.

    `given` are the weights of the teacher `discriminator`, which are found where they are released ones. The backbones
    must have been fetched.
    """
    expected = config.teachers.get(DISCRIMINATOR)
    weights = find_pretrained(expected) if given is None and expected is not None else given
    check_digest(DISCRIMINATOR, expected, None if weights is None else weights.digest)
    found: dict[str, nn.Module] = {}
    if weights is not None:
        check_range(weights)
        with_logits = config.architecture.kind == "plain"
        if with_logits:
            check_places(weights, config)
        found[DISCRIMINATOR] = DiscriminatorTeacher(deepcopy(weights.discriminator), with_logits=with_logits)
    backbones = {name: digest for name, digest in config.teachers.items() if name != DISCRIMINATOR}
    return found | load_backbones(backbones)


def load_backbones(digests: Mapping[str, str]) -> dict[str, nn.Module]:
    """The backbones of these names, which must have these digests."""
    if not digests:
        return {}
    from discopatch.bench.networks import EfficientNetLite0, FrozenBackbone, ResNet50, is_fetched, load_backbone

    if missing := [name for name in digests if not is_fetched(name)]:
        raise WeightsError(
            f"no weights of {', '.join(missing)}, which the new network learns from: download them once with "
            f"`discopatch data fetch {' '.join(missing)}`, or train without teachers, --weight-distilled 0"
        )
    found: dict[str, nn.Module] = {}
    for name, digest in digests.items():
        backbone = load_backbone(name)
        check_digest(name, digest, backbone.digest)
        assert isinstance(backbone, FrozenBackbone)
        assert isinstance(backbone.network, ResNet50 | EfficientNetLite0)
        found[name] = BackboneTeacher(backbone.network, LEARNT_MAPS.get(name, {}))
    return found


def begin_as_teacher(discriminator: Discriminator, teachers: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Copies the layers of EfficientNet-Lite0, if it teaches, into a discriminator that has the same ones.

    What it has learnt of more than a million photos could hardly be learnt again from some thousand. Returned are the
    teachers of what then is left to learn: the discriminator as it began in the place of EfficientNet-Lite0.
    """
    teacher, architecture = teachers.get(LITE), discriminator.architecture
    if teacher is None or (architecture.kind, architecture.hidden) != ("inverted", LITE0):
        return dict(teachers)
    networks = (discriminator, teacher)
    own, theirs = ([each for each in network.modules() if isinstance(each, SameConv2d)] for network in networks)
    with torch.no_grad():
        for layer, other in zip(own, theirs, strict=False):  # theirs has one more, the last
            layer.load_state_dict(other.state_dict())
        stem, bias = own[0], own[0].bias
        assert bias is not None
        # It takes (p - 127) / 128 of a pixel p where a discriminator takes p / 127.5 - 1.
        bias.add_(stem.weight.sum((1, 2, 3)) * (0.5 / 128))
        stem.weight.mul_(127.5 / 128)
    others = {name: each for name, each in teachers.items() if name != LITE}
    return {**others, BEGINNING: LayersTeacher(deepcopy(discriminator))}


class LayersTeacher(nn.Module):
    """A discriminator as it began, whose layers the student keeps where nothing is degraded."""

    def __init__(self, discriminator: Discriminator) -> None:
        super().__init__()
        self.discriminator = discriminator.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Targets:
        """The map of every layer, by its number."""
        return {str(number): each for number, each in enumerate(self.discriminator(images, 1).features)}


class DiscriminatorTeacher(nn.Module):
    """A discriminator, whose logits are learnt as well where the student has them at the same places."""

    def __init__(self, discriminator: Discriminator, *, with_logits: bool) -> None:
        super().__init__()
        self.discriminator = channels_last(discriminator).eval().requires_grad_(False)
        self.with_logits = with_logits

    def forward(self, images: Tensor) -> Targets:
        """Statistics (B, 2 x channels) and logits (B, rows, columns) of whole images."""
        output = self.discriminator(images, 1, statistics=True)
        return ({LOGITS: output.logits} if self.with_logits else {}) | {STATISTICS: output.statistics}


class BackboneTeacher(nn.Module):
    """A backbone of the benchmark, which is already frozen; `maps` says after which stages maps are taken."""

    def __init__(self, network: "ResNet50 | EfficientNetLite0", maps: Mapping[str, int]) -> None:
        super().__init__()
        self.network, self.maps = network, maps

    def forward(self, images: Tensor) -> Targets:
        """Statistics (B, 2 x channels), pooled last features (B, channels), maps (B, channels, rows, columns)."""
        from discopatch.model.discriminator import channel_statistics

        x = self.network.normalise((images.permute(0, 2, 3, 1) + 1) * 127.5)
        parts, measured, pool, _ = self.network.sections
        maps = list(accumulate(parts, lambda map_, part: part(map_), initial=x))[1:]
        statistics = channel_statistics([each.float() for each in maps[:measured]])
        kept = {kind: maps[stage] for kind, stage in self.maps.items()}
        return {STATISTICS: statistics, POOLED: pool(maps[-1].float()), **kept}


def check_digest(name: str, expected: str | None, found: str | None) -> None:
    if found != expected:
        raise ParameterError(
            f"the config's teacher {name} is {expected}, given is {found}: give the weights of that digest"
        )


def check_places(weights: Weights, config: TrainingConfig) -> None:
    """Raises ParameterError unless the teacher's logits stand at the student's places."""
    theirs, student = weights.discriminator.architecture, config.architecture
    if (theirs.kind, theirs.patch_size, theirs.stride) != (student.kind, student.patch_size, student.stride):
        raise ParameterError(
            f"the teacher has patches of {theirs.patch_size} pixels every {theirs.stride}, the student of "
            f"{student.patch_size} every {student.stride}: choose a preset with patches like the teacher's"
        )


def check_range(weights: Weights) -> None:
    """Raises ParameterError where weights take pixels in another range than training has them in."""
    if weights.transform.pixels != "symmetric":
        raise ParameterError(
            f"these weights take pixels in the range {weights.transform.pixels!r}, and training has them in [-1, 1]: "
            "choose other weights"
        )
