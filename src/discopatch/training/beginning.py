"""Beginning of an inverted network as a part of a larger one, layer by layer, without gradients.

Filters of channels are copies of the teacher's, those that explain most of the others. 1 x 1 convolutions are ridge
regressions: an expansion of the teacher's expanded channels, a projection of the principal axes of the teacher's map
after all blocks of that kind, also those that the student lacks.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from discopatch.model import Architecture, Discriminator
from discopatch.model.layers import layer_plan, relu6
from discopatch.training.teachers import BEGINNING, SMALLEST_SCALE, DiscriminatorTeacher, Teacher

IMAGES = 64  # of the regressions
PENALTY = 1e-4  # of the regressions, as a share of the mean variance of their inputs


def is_part(own: Architecture, larger: Architecture) -> bool:
    """Whether every layer of an inverted network has no more channels and blocks than those of another one."""
    pairs = zip((*own.hidden, *own.depths), (*larger.hidden, *larger.depths), strict=False)
    return own.kind == larger.kind == "inverted" and own.depths[0] == 1 and all(ours <= other for ours, other in pairs)


@torch.no_grad()
def begin_as_part(
    discriminator: Discriminator, teachers: Mapping[str, Teacher], batches: Iterable[Tensor]
) -> Discriminator | None:
    """Begins a discriminator as a part of the first teacher that has more of everything, and returns that teacher.

    Some images of the batches (B, 3, H, W) are used. None if there is no such teacher, or the discriminator began as
    its teacher.
    """
    found = [each.discriminator for each in teachers.values() if isinstance(each, DiscriminatorTeacher)]
    larger = [each for each in found if is_part(discriminator.architecture, each.architecture)]
    if not larger or BEGINNING in teachers:
        return None
    teacher, batch = larger[0], next(iter(batches))
    x = y = batch[:: -(-len(batch) // IMAGES)]  # maps of the student and of the teacher
    plans = (layer_plan(net.architecture.hidden, net.architecture.depths) for net in (discriminator, teacher))
    parts: Iterable[Any] = zip(discriminator.blocks, teacher.blocks, *plans, strict=True)
    for number, (layer, other, *kinds) in enumerate(parts):
        kept = None
        if layer.stem is not None:
            y = relu6(other.stem(y))
            # Equal variances: filters for colours respond less than those for brightness, and are as important.
            kept = chosen(standardised(y), layer.stem.out_channels)
            copy_channels(layer.stem, other.stem, kept)
            x = relu6(layer.stem(x))
        blocks, theirs = iter(layer.blocks), iter(other.blocks)
        for few, many in zip(*kinds, strict=True):
            maps = [y]
            for block in (several := list(islice(theirs, many.blocks))):
                maps.append(block(maps[-1]))
            y, target = maps[-1], principal(maps[-1], few.channels)
            for block, like, given in zip(islice(blocks, few.blocks), several, maps, strict=False):
                x = begin_block(block, like, x, given, target, kept)
        if number == len(discriminator.blocks) + discriminator.architecture.classified:
            regress(discriminator.head, x, teacher.head(y))
    return teacher


def begin_block(block: Any, like: Any, x: Tensor, y: Tensor, target: Tensor, kept: Tensor | None) -> Tensor:
    """Begins a block as a part of a block of the teacher, whose input is `y`, and returns its output for `x`.

    kept: the teacher's channels in `x`, if they are channels of the teacher.
    """
    inner = x
    if block.expand is not None:
        expanded = like.expand(y)
        filtered = relu6(like.filter(expanded.clamp(0, 6)))
        kept = chosen(filtered * like.project.weight.norm(dim=0)[None], block.filter.out_channels)
        regress(block.expand, x, expanded[:, kept])
        inner = relu6(block.expand(x))
    copy_channels(block.filter, like.filter, kept)
    regress(block.project, relu6(block.filter(inner)), target - x if block.residual else target)
    found: Tensor = block(x)
    return found


def by_channel(maps: Tensor) -> Tensor:
    """(B, C, H, W) -> (C, B x H x W), minus the mean of each channel."""
    flat = maps.transpose(0, 1).flatten(1)
    return flat - flat.mean(1, keepdim=True)


def standardised(maps: Tensor) -> Tensor:
    """Maps (B, C, H, W) with mean 0 and deviation 1 in each channel."""
    return (maps - maps.mean((0, 2, 3), keepdim=True)) / (maps.std((0, 2, 3), keepdim=True) + SMALLEST_SCALE)


def chosen(maps: Tensor, count: int) -> Tensor:
    """Numbers of so many channels, each of which explains most of the variance that those before it leave."""
    values = by_channel(maps)
    left, found = (values @ values.T).double(), list[int]()
    if count == len(left):
        return torch.arange(count, device=maps.device)
    smallest = 1e-9 * left.diagonal().max()
    for _ in range(count):
        explained = left.square().sum(0) / left.diagonal().clamp(min=smallest)
        explained[found] = -1.0
        best = int(explained.argmax())
        left = left - torch.outer(left[best], left[best]) / left[best, best].clamp(min=smallest)
        found.append(best)
    return torch.tensor(sorted(found), device=maps.device)


def principal(maps: Tensor, count: int) -> Tensor:
    """Maps (B, C, H, W) along their first principal axes, (B, count, H, W), all channels in deviations."""
    values = standardised(maps)
    flat = by_channel(values)
    axes = torch.linalg.eigh((flat @ flat.T).double()).eigenvectors[:, -count:]
    return torch.einsum("bchw,ck->bkhw", values, axes.to(values.dtype))


def copy_channels(conv: Any, like: Any, kept: Tensor | None) -> None:
    conv.weight.copy_(like.weight[kept])
    conv.bias.copy_(like.bias[kept])


def regress(conv: Any, inputs: Tensor, target: Tensor) -> None:
    """Sets a 1 x 1 convolution to the ridge regression of maps on its inputs."""
    x, y = by_channel(inputs), by_channel(target)
    squares = (x @ x.T).double()
    penalty = PENALTY * squares.diagonal().mean().clamp(min=SMALLEST_SCALE)
    weight = torch.linalg.solve(squares + penalty * torch.eye(len(x), device=x.device), (x @ y.T).double()).T.float()
    conv.weight.copy_(weight[:, :, None, None])
    conv.bias.copy_(target.mean((0, 2, 3)) - weight @ inputs.mean((0, 2, 3)))
