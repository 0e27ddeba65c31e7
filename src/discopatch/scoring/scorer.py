"""Images in, scores out: in order, in constant memory, each score its own image's alone."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch import images
from discopatch.images import Picture, Pixels, Refusal
from discopatch.images.workers import DEFAULT_WORKERS, Workers
from discopatch.model import Discriminator
from discopatch.model.weights import Weights
from discopatch.patches import Sampling, check_fits, cut, grid_corners, scoring_corners, to_unit
from discopatch.scoring.evidence import Evidence
from discopatch.scoring.fastpass import FastPass, Later
from discopatch.scoring.graphs import HeadOnDevice, NoGraph
from discopatch.scoring.heads import Head, LogitHead
from discopatch.scoring.precision import Precision, check_precision
from discopatch.streams import behind

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Score:
    """An image's score; higher means more out-of-distribution."""

    name: str
    score: float


class Inspected(NamedTuple):
    """An image, as the transform left it, and what the discriminator shows of it."""

    name: str
    pixels: Pixels
    evidence: Evidence


class Batch(NamedTuple):
    """Images that came together, and the evidence of those that are pictures."""

    items: list[Picture | Refusal]
    evidence: Evidence | None

    def each(self, found: Iterable[T]) -> Iterator[tuple[Picture, T] | Refusal]:
        """What was found of every picture beside it; a refusal in its place."""
        remaining = iter(found)
        for item in self.items:
            yield (item, next(remaining)) if isinstance(item, Picture) else item


class Scorer:
    """A discriminator with everything that decides a score: where it looks, which head, which device.

    sampling: `random` cuts all images at the same `patches` places, drawn once from `seed`; `grid` spreads them evenly;
    `dense` passes each image whole, once, which judges a patch at every cell of the last layer.
    On a CPU each image passes the network alone, so that `batch_size` cannot reach its score; on a GPU a batch passes
    together, and batch sizes agree to rounding. The device `auto` is a GPU where there is one.
    precision: `bfloat16`, on a GPU alone, is faster and rounds more; with a `batch_size` above 1 the next
    batch is then drawn from the source while one passes, so that results come a batch later.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        patches: int = 64,
        sampling: Sampling = "random",
        head: Head | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
        batch_size: int = 8,
        precision: Precision = "float32",
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: it must be at least 1")
        check_precision(precision, chosen(device))
        self.weights = weights
        self.head = head or LogitHead()
        self.device = chosen(device)
        self.batch_size = batch_size
        self._discriminator = on_device(weights.discriminator, self.device)
        self._patch_size = weights.discriminator.architecture.patch_size
        self._corners = None
        check_fits(weights.transform.size, self._patch_size)
        if sampling != "dense":
            self._corners = scoring_corners(
                sampling, patches, size=weights.transform.size, patch_size=self._patch_size, seed=seed
            ).to(self.device)
        self._head_there: HeadOnDevice | None = None
        self._fast = self._fast_pass() if precision == "bfloat16" else None

    def _fast_pass(self) -> FastPass:
        size = self.weights.transform.size
        return FastPass(self._discriminator, self._corners, size=size, batch_size=self.batch_size)

    def score(self, source: object, *, workers: Workers = DEFAULT_WORKERS) -> Iterator[Score | Refusal]:
        """A score, or a refusal with its reason, for every image of the source, in its order."""
        for batch in self.batches(source, workers=workers):
            for item in batch.each(self.scores(self.head, batch.evidence)):
                yield item if isinstance(item, Refusal) else Score(item[0].name, float(item[1]))

    def inspect(self, source: object, *, workers: Workers = DEFAULT_WORKERS) -> Iterator[Inspected | Refusal]:
        """Every image of the source, in its order, with what the discriminator shows of it."""
        for batch in self.batches(source, workers=workers):
            for item in batch.each(batch.evidence.one_by_one() if batch.evidence else ()):
                yield item if isinstance(item, Refusal) else Inspected(item[0].name, item[0].pixels, item[1])

    def batches(self, source: object, *, workers: Workers = DEFAULT_WORKERS) -> Iterator[Batch]:
        """The same, as many together as pass together."""
        with closing(images.open(source, transform=self.weights.transform, workers=workers)) as stream:
            looks = ((items, self._look_at(items)) for items in in_batches(stream, self.batch_size))
            for items, later in behind(looks, 0 if self._fast is None or self.batch_size == 1 else 1):
                yield Batch(items, later() if later else None)

    def scores(self, head: Head, evidence: Evidence | None) -> NDArray[np.float64]:
        """(images,): on a CPU one by one, since a batch rounds otherwise and equal images would no longer be equal."""
        if evidence is None:
            return np.empty(0)
        if self.device.type == "cuda":
            return self._beside_the_network(head).score(evidence)
        return np.concatenate([head.score(each) for each in evidence.one_by_one()])

    def _beside_the_network(self, head: Head) -> HeadOnDevice | Head:
        """On the GPU if the head can be there; the last one is kept."""
        if self._head_there is None or self._head_there.head is not head:
            try:
                self._head_there = HeadOnDevice(head, self.device)
            except NoGraph:
                return head
        return self._head_there

    def _look_at(self, batch: Iterable[Picture | Refusal]) -> Later | None:
        """The evidence of the batch's pictures, for when it is asked for; where it is fast, already on its way."""
        pixels = [item.pixels for item in batch if isinstance(item, Picture)]
        if not pixels:
            return None
        together = np.stack(pixels)
        return partial(self.inspect_pixels, together) if self._fast is None else self._fast.start(together)

    def score_pixels(self, pixels: Pixels) -> NDArray[np.float64]:
        """(B, size, size, 3) in uint8, already through the transform -> (B,)."""
        return self.head.score(self.inspect_pixels(pixels))

    @torch.inference_mode()
    def inspect_pixels(self, pixels: Pixels) -> Evidence:
        """(B, size, size, 3) in uint8, already through the transform -> what the discriminator shows of each."""
        if self._fast is not None:
            parts = range(0, len(pixels), self.batch_size)
            return Evidence.concatenate(
                list(self._fast.stream(np.ascontiguousarray(pixels[part : part + self.batch_size]) for part in parts))
            )
        pictures = torch.from_numpy(np.ascontiguousarray(pixels))
        together = self.batch_size if self.device.type == "cuda" else 1
        return Evidence.concatenate([self._evidence(part.to(self.device)) for part in pictures.split(together)])

    @torch.inference_mode()
    def inspect_patches(self, pixels: Pixels, patches: int) -> Evidence:
        """One picture (size, size, 3) -> the evidence of so many patches on a grid, each as if it were an image."""
        corners = grid_corners(patches, size=len(pixels), patch_size=self._patch_size).to(self.device)
        picture = torch.from_numpy(np.ascontiguousarray(pixels)).to(self.device)
        return self._see(cut(picture[None], corners[None], self._patch_size), group=1)

    @torch.inference_mode()
    def mean_features(self, pixels: Pixels) -> NDArray[np.float32]:
        """(B, size, size, 3) in uint8, already through the transform -> (B, channels): the last features, averaged."""
        found = []
        for picture in torch.from_numpy(np.ascontiguousarray(pixels)).split(1):
            patches, group = self._patches(picture.to(self.device))
            found.append(self._discriminator.features(to_unit(patches), group).mean((0, 2, 3)))
        return torch.stack(found).cpu().numpy()

    def _evidence(self, pictures: Tensor) -> Evidence:
        pixels, group = self._patches(pictures)
        return self._see(pixels, group=group)

    def _patches(self, pictures: Tensor) -> tuple[Tensor, int]:
        """(B, size, size, 3) -> what passes the network, (B x group, 3, H, W), and how many of these are an image."""
        if self._corners is None:
            return pictures.permute(0, 3, 1, 2), 1
        corners = self._corners.expand(len(pictures), -1, -1)
        return cut(pictures, corners, self._patch_size), len(self._corners)

    def _see(self, pixels: Tensor, *, group: int) -> Evidence:
        """(B, 3, H, W) in uint8, `group` of them an image."""
        found = self._discriminator.inspect(to_unit(pixels), group)
        logits = found.logits.reshape(len(pixels) // group, -1)
        return Evidence(logits.cpu().numpy(), found.statistics.cpu().numpy())


def chosen(device: str | torch.device) -> torch.device:
    """The device; `auto` is a GPU where there is one."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)


def on_device(discriminator: Discriminator, device: torch.device) -> Discriminator:
    """The network itself where it lies there already, else a copy: others may be using it where it is."""
    here = next(discriminator.parameters()).device == device
    return (discriminator if here else deepcopy(discriminator).to(device)).eval()


def in_batches(stream: Iterator[Picture | Refusal], size: int) -> Iterator[list[Picture | Refusal]]:
    """Successive items together."""
    while batch := list(islice(stream, size)):
        yield batch
