"""What BatchNorm does to a model of whole pictures: learned statistics, those of pure batches, and of mixed ones."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.benchmark.metrics import Estimate
from discopatch.benchmark.studies.batches import Places, first_scores, mixed_batches, pure_batches
from discopatch.benchmark.studies.figures import DIGITS, THREADS, Draws, figure
from discopatch.benchmark.studies.gallery import TEST, Gallery
from discopatch.benchmark.studies.looking import rounding
from discopatch.benchmark.studies.plan import Plan
from discopatch.images import Pixels
from discopatch.model import Discriminator
from discopatch.model.blocks import channels_last
from discopatch.model.weights import Weights
from discopatch.patches import to_unit
from discopatch.scoring.scorer import chosen, on_device

AT_ONCE = 256

Floats = NDArray[np.float64]


class Judge:
    """A discriminator of whole pictures with BatchNorm, asked in two ways; scores are minus the logit.

    With the learned statistics each picture is judged by itself. With those of the batch the same layers normalise each
    batch by its own mean and variance, as `nn.BatchNorm2d` does with `track_running_stats` off: here PatchNorm, whose
    group is the batch, so that several batches pass at once and none sees another's statistics.
    """

    def __init__(self, discriminator: Discriminator, device: str | torch.device) -> None:
        shape = discriminator.architecture
        if shape.normalisation != "batch":
            raise ValueError(f"normalisation is {shape.normalisation!r}: only BatchNorm has learned statistics")
        by_batch = Discriminator(replace(shape, normalisation="patch"))
        by_batch.load_state_dict(discriminator.state_dict())
        self.device = chosen(device)
        self._learned = on_device(discriminator, self.device)
        self._by_batch = channels_last(by_batch.to(self.device)).eval()

    def show(self, *pictures: Pixels) -> Tensor:
        """(N, size, size, 3) in uint8, one after the other, where the network is."""
        return torch.cat([torch.from_numpy(np.ascontiguousarray(each)).to(self.device) for each in pictures])

    def learned(self, pictures: Tensor) -> Floats:
        """(N,), each picture by itself."""
        return self._scores(pictures, np.arange(len(pictures))[:, None], self._learned, group=None).ravel()

    def in_batches(self, pictures: Tensor, places: Places) -> Floats:
        """The score of every place, by the statistics of its batch."""
        return self._scores(pictures, places, self._by_batch, group=places.shape[1])

    @torch.inference_mode()
    def _scores(self, pictures: Tensor, places: Places, network: Discriminator, group: int | None) -> Floats:
        rows = max(1, AT_ONCE // places.shape[1])
        order = torch.from_numpy(places).to(self.device)
        logits = [
            network(to_unit(pictures[part.flatten()].permute(0, 3, 1, 2)), group).view(part.shape)
            for part in order.split(rows)
        ]
        return -torch.cat(logits).double().cpu().numpy()


@dataclass(frozen=True, eq=False)
class Shown:
    """The scores of the test photos and of one set, in one round of batches."""

    group: str
    name: str
    round: int
    normal: Floats
    strange: Floats


def batchnorm_bias(weights: Weights, gallery: Gallery, plan: Plan, device: str) -> dict[str, Any]:
    """AUROC of every group of sets by the way in which the statistics come about.

    Batches of other images than photos are drawn from all sets of a group together, so that there are enough for the
    largest; `own sets` has batches of one set alone, as far as sets are large enough. Corrupted photos are always in
    batches of one corruption. Each round draws the batches anew.
    """
    judge = Judge(weights.discriminator, device)
    study = Study(judge, gallery, plan)
    sizes = [size for size in plan.batch_sizes if size > 1]
    with rounding(plan.precision, device), ThreadPoolExecutor(THREADS) as threads:
        draws = Draws(plan.seed, plan.resamples)

        def worth(shown: Iterator[Shown]) -> dict[str, Any]:
            return summary(list(shown), draws, threads)

        return {
            "weights digest": weights.digest,
            "severity": plan.one_severity,
            "rounds": plan.rounds,
            "alone among normal": plan.lone,
            "images": {name: sum(map(gallery.size, names)) for name, names in study.groups.items()},
            "learned": worth(study.learned()),
            "batch": {str(size): worth(study.pure(size)) for size in plan.batch_sizes},
            "own sets": {str(size): worth(study.own_sets(size)) for size in plan.batch_sizes},
            "half": {str(size): worth(study.mixed(size, size // 2)) for size in sizes},
            "one": {str(size): worth(study.mixed(size, 1, most=plan.lone)) for size in sizes},
        }


@dataclass(frozen=True, eq=False)
class Study:
    """All ways to put the pictures into batches; sizes for which there are too few pictures give nothing."""

    judge: Judge
    gallery: Gallery
    plan: Plan

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """What is compared with the test photos."""
        found = self.gallery.groups([self.plan.one_severity])
        return {name: found[name] for name in ("near", "far", "covariate")}

    @property
    def pools(self) -> list[tuple[str, tuple[str, ...]]]:
        """Sets that share batches, with their group."""
        groups = self.groups
        return [(name, groups[name]) for name in ("near", "far")] + [
            ("covariate", (name,)) for name in groups["covariate"]
        ]

    def learned(self) -> Iterator[Shown]:
        """By the running statistics."""
        normal = self.judge.learned(self.judge.show(self.gallery.of(TEST)))
        for group, names in self.groups.items():
            for name in names:
                yield Shown(group, name, 0, normal, self.judge.learned(self.judge.show(self.gallery.of(name))))

    def pure(self, batch: int) -> Iterator[Shown]:
        """Every batch holds either test photos or strange images."""
        yield from self._pure(batch, self.pools)

    def own_sets(self, batch: int) -> Iterator[Shown]:
        """The same, and strange images of one set alone."""
        groups = self.groups
        pools = [(group, (name,)) for group in ("near", "far") for name in groups[group]]
        yield from self._pure(batch, pools)

    def _pure(self, batch: int, pools: Sequence[tuple[str, tuple[str, ...]]]) -> Iterator[Shown]:
        photos = self.judge.show(self.gallery.of(TEST))
        if len(photos) < batch:
            return
        normal = [self._in_pure_batches(photos, batch, TEST, number) for number in self.rounds]
        for group, names in pools:
            pictures = self.judge.show(*(self.gallery.of(name) for name in names))
            if len(pictures) < batch:
                continue
            for number in self.rounds:
                scores = self._in_pure_batches(pictures, batch, "+".join(names), number)
                for name, each in self._by_set(names, scores, most=None):
                    yield Shown(group, name, number, normal[number], each)

    def _in_pure_batches(self, pictures: Tensor, batch: int, name: str, number: int) -> Floats:
        places = pure_batches(len(pictures), batch, self._rng(batch, name, number))
        return first_scores(places, self.judge.in_batches(pictures, places), len(pictures))

    def mixed(self, batch: int, strange_each: int, *, most: int | None = None) -> Iterator[Shown]:
        """Test photos and strange images in one batch; of each set at most so many."""
        photos = self.gallery.of(TEST)
        for group, names in self.pools:
            strange = [self.gallery.of(name)[:most] for name in names]
            count = sum(map(len, strange))
            if len(photos) < batch - strange_each or count < strange_each:
                continue
            pictures = self.judge.show(photos, *strange)
            for number in self.rounds if most is None else self.rounds[:1]:
                rng = self._rng(batch, "+".join(names), number)
                places = mixed_batches(len(photos), count, batch, strange_each=strange_each, rng=rng)
                scores = first_scores(places, self.judge.in_batches(pictures, places), len(pictures))
                for name, each in self._by_set(names, scores[len(photos) :], most):
                    yield Shown(group, name, number, scores[: len(photos)], each)

    def _by_set(self, names: Sequence[str], scores: Floats, most: int | None) -> Iterator[tuple[str, Floats]]:
        """The sets of a pool apart again."""
        sizes = [len(range(self.gallery.size(name))[:most]) for name in names]
        yield from zip(names, np.split(scores, np.cumsum(sizes)[:-1]), strict=True)

    @property
    def rounds(self) -> range:
        """Their numbers."""
        return range(self.plan.rounds)

    def _rng(self, batch: int, name: str, number: int) -> np.random.Generator:
        return np.random.default_rng([self.plan.seed, batch, number, crc32(name.encode())])


def summary(shown: Sequence[Shown], draws: Draws, threads: ThreadPoolExecutor) -> dict[str, Any]:
    """By group: the mean AUROC over its sets and all rounds, and that of each round; none for a group without any."""

    def worth(each: Shown) -> Estimate:
        return draws.compare(each.normal, each.strange, each.name)

    estimates = dict(zip(range(len(shown)), threads.map(worth, shown), strict=True))
    found: dict[str, Any] = {}
    for group in dict.fromkeys(each.group for each in shown):
        mine = [(place, each) for place, each in enumerate(shown) if each.group == group]
        by_round: Mapping[int, list[float]] = {each.round: [] for _, each in mine}
        for place, each in mine:
            by_round[each.round].append(estimates[place].value)
        found[group] = {
            "auroc": figure(Estimate.mean([estimates[place] for place, _ in mine])),
            "rounds": [round(float(np.mean(values)), DIGITS) for values in by_round.values()],
            "sets": sorted({each.name for _, each in mine}),
        }
    return found


def by_group(found: Mapping[str, Any], *, mixed: str = "half") -> dict[str, dict[str, Any]]:
    """The figures of `batchnorm_bias` as a picture wants them: by group, then pure and mixed by size, and learned."""

    def sizes(way: str, group: str) -> dict[str, list[float]]:
        return {size: each[group]["auroc"] for size, each in found[way].items() if group in each}

    return {
        group: {"pure": sizes("batch", group), "mixed": sizes(mixed, group), "learned": each["auroc"]}
        for group, each in found["learned"].items()
    }
