"""Classes of normal images, such as the products of one line, each with a calibration of its own.

An image is assigned to the class with the nearest mean of deep statistics, by a function that is fitted on fitted
images alone. Calibration images are assigned like new ones, so that those of a class are exchangeable with new images
that are assigned to it. Classes with few images are pooled, and classes that the assignment confuses are merged.
"""

import os
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import PurePath
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.calibration import (
    AUTO_RATES,
    FOLDS,
    MAX_CLASSES,
    Index,
    NormalClass,
    Rate,
    choose_rate,
    fold_numbers,
    images_needed,
    split_images,
    sure_images,
    sure_rate,
)
from discopatch.errors import ParameterError, TooFewImagesError
from discopatch.groups import is_given
from discopatch.heads.base import Nearest
from discopatch.heads.gaussian import ShrunkGaussian
from discopatch.utils import counted, legible

Classes = Literal["folder"] | Callable[[str], Hashable] | Sequence[Hashable] | NDArray[Any]

RECALL = 0.9  # share of the images of a class that must be assigned to it
MARGIN = 1.1  # images held out for each that the rate needs, since some are assigned to another class
LONGEST_NAME = 60  # characters
LISTED = 3  # classes that the name of several lists


def check_classes(classes: Classes | None) -> None:
    """Raises ParameterError if it is the name of no rule."""
    if isinstance(classes, str) and classes != "folder":
        raise ParameterError(f"classes={classes!r}: give 'folder', a function of the name, or one class an image")


def names_of(classes: Classes, names: Sequence[str], positions: Index) -> list[str]:
    """The class of each image: one for each position in the source, a function of the name, or the name's folder."""
    if is_given(classes):
        found = [classes[position] for position in positions]
    elif callable(classes):
        found = [classes(name) for name in names]
    else:
        folders = [PurePath(name).parent for name in names]
        found = [folder.relative_to(os.path.commonpath(folders)).as_posix() for folder in folders]
    texts = [legible(str(each)) for each in found]
    if wrong := [each for each in texts if not 1 <= len(each) <= LONGEST_NAME]:
        raise ParameterError(f"the class {wrong[0]!r}: give names of 1 to {LONGEST_NAME} characters")
    return texts


def within_classes(statistics: NDArray[np.floating], names: Sequence[str]) -> NDArray[np.float64]:
    """Statistics relative to the mean and spread of their class, among which near-copies are found."""
    values: NDArray[np.float64] = np.asarray(statistics, np.float64) - statistics.mean(0)
    values /= max(float(values.std()), 1e-9)
    for name, count in Counter(names).items():
        if count >= FOLDS:
            own = np.asarray(names, object) == name
            values[own] -= values[own].mean(0)
            values[own] /= max(float(values[own].std()), 1e-9)
    return values


def needed_by(rate: float, confidence: float | None) -> int:
    """The fewest calibration images of a class."""
    return images_needed(rate) if confidence is None else sure_images(rate, confidence)


@dataclass(frozen=True, eq=False)
class Partition:
    """The classes of fitted and held-out images: those that were given, and which of these are one."""

    given: tuple[str, ...]
    of_images: Index  # the number of each image's given class
    numbers: Index  # of each given class, the number of its class
    cautions: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Sequence[str], groups: Index, least: int) -> Self:
        """By the class and the group of each image. Classes with fewer than `least` groups are pooled.

        A pool that is too small takes the next smallest classes.
        """
        given, of_images = np.unique(np.asarray(names, object), return_inverse=True)
        if not 2 <= len(given) <= MAX_CLASSES:
            raise ParameterError(f"classes: {len(given)}; give 2 to {MAX_CLASSES}, or leave them out")
        pairs = np.unique(np.stack([groups, of_images]), axis=1)
        if len(several := np.flatnonzero(np.bincount(pairs[0]) > 1)):
            example = names[int(np.flatnonzero(groups == several[0])[0])]
            raise ParameterError(
                f"a group with images of the class {example} has others too: give each group one class"
            )
        counts = np.bincount(pairs[1])
        found = cls(tuple(given), of_images, np.arange(len(given)))
        if not (few := int((counts < least).sum())):
            return found
        order = np.argsort(counts, kind="stable")
        most = max(few, int(np.searchsorted(np.cumsum(counts[order]), least)) + 1)
        return found.joined(np.sort(order[:most]), f"have too few images or groups, of which {least} are needed")

    @property
    def total(self) -> int:
        return int(self.numbers.max()) + 1

    def evenly(self) -> Index:
        """The images in such an order that all classes are spread evenly, each in its own order."""
        place = np.empty(len(self.of_images))
        for number in range(len(self.given)):
            own = self.of_images == number
            place[own] = (np.arange(own.sum()) + 0.5) / own.sum()
        return np.argsort(place, kind="stable")

    def joined(self, chosen: Index, why: str) -> Self:
        """With these given classes as one."""
        numbers = np.where(np.isin(np.arange(len(self.given)), chosen), self.numbers[chosen[0]], self.numbers)
        caution = (
            f"the classes {listed([self.given[each] for each in chosen])} {why}: they share one calibration, and the "
            "false-alarm rate holds for them together"
        )
        return replace(self, numbers=np.unique(numbers, return_inverse=True)[1], cautions=(*self.cautions, caution))

    def merged(self, statistics: NDArray[np.floating], rows: Index, deep: slice) -> Self:
        """Classes and those for which they are mistaken are one, by cross-validation on the fitted images `rows`."""
        found, own = self, self.of_images[rows]
        folds, assigned = np.empty_like(rows), np.empty_like(rows)
        for number in np.unique(own):
            folds[own == number] = fold_numbers(int((own == number).sum()))
        for fold in np.unique(folds):
            inside = folds == fold
            nearest = replace(self, numbers=np.arange(len(self.given))).nearest(statistics, rows[~inside], deep)
            assigned[inside] = assign(nearest, statistics[rows[inside]])
        while found.total > 1:
            confusion = np.zeros((found.total, found.total))
            np.add.at(confusion, (found.numbers[own], found.numbers[assigned]), 1)
            recalls = confusion.diagonal() / confusion.sum(1)
            worst = int(recalls.argmin())
            if recalls[worst] >= RECALL:
                break
            np.fill_diagonal(confusion, -1)
            pair = np.isin(found.numbers, (worst, int(confusion[worst].argmax())))
            found = found.joined(np.flatnonzero(pair), f"look alike ({recalls[worst]:.0%} are told apart)")
        return found

    def nearest(self, statistics: NDArray[np.floating], rows: Index, deep: slice) -> Nearest:
        """Assigns images, by the means of given classes and their covariance (Fisher's discriminant), of these rows.

        deep: the statistics that count.
        """
        values, given = np.asarray(statistics[rows][:, deep], np.float64), self.of_images[rows]
        there, own = np.unique(given, return_inverse=True)
        means, middle = np.stack([values[own == each].mean(0) for each in range(len(there))]), values.mean(0)
        within = ShrunkGaussian.fit(values - means[own])
        weights, mean = np.zeros((len(there), statistics.shape[1])), np.zeros(statistics.shape[1])
        weights[:, deep] = [values.shape[1] * within.gradient(each - middle) for each in means]
        mean[deep] = middle
        offsets = -0.5 * (weights[:, deep] * (means - middle)).sum(1)
        return Nearest.of(mean=mean, weights=weights, offsets=offsets, numbers=self.numbers[there])

    def hold_out(
        self,
        groups: Index,
        measured: NDArray[np.bool_],
        *,
        rate: Rate,
        confidence: float | None,
        min_fit: int,
        seed: int,
    ) -> tuple[Index, Index, float]:
        """The images to fit, those to calibrate on, and the rate: as `split_images` of each class.

        `auto` is the smallest rate that the smallest class allows. Groups that were `measured` are fitted.
        """
        parts = [np.flatnonzero(self.numbers[self.of_images] == number) for number in range(self.total)]
        if confidence is None:
            chosen = max(choose_rate(rate, groups[part], min_fit=min_fit) for part in parts)
        else:
            half = min(len(np.unique(groups[part])) for part in parts) // 2
            chosen = sure_rate(rate, confidence, half) if isinstance(rate, str) else rate
        splits = []
        for part in parts:
            own, needed = groups[part], needed_by(chosen, confidence)
            if len(np.unique(own)) - (more := ceil(MARGIN * needed)) >= min_fit:
                needed = more
            fitted = own[measured[part]]
            splits.append(
                [part[each] for each in split_images(own, 1 / (needed + 1), seed=seed, min_fit=min_fit, fitted=fitted)]
            )
        fit, held_out = (np.sort(np.concatenate(each)) for each in zip(*splits, strict=True))
        return fit, held_out, chosen

    def check(self, counts: Index, least: float, rate: Rate, confidence: float | None) -> float:
        """The rate that these numbers of calibration images of each class allow, or TooFewImagesError.

        least: that of the split; `auto` takes a larger one where a class has too few images.
        """
        if isinstance(rate, str):
            least = max(least, next((each for each in AUTO_RATES if needed_by(each, confidence) <= counts.min()), 0.1))
        if counts.min() < (needed := needed_by(least, confidence)):
            images, name = counted(int(counts.min()), "calibration image"), listed(self.members(int(counts.argmin())))
            raise TooFewImagesError(
                f"{images} assigned to the class {name}; a false-alarm rate of {least:.2%} needs at least {needed}: "
                "add images of it, raise false_alarm_rate, or make it one class with another"
            )
        return least

    def members(self, number: int) -> tuple[str, ...]:
        return tuple(name for name, own in zip(self.given, self.numbers, strict=True) if own == number)

    def describe(self, fitted: Index, assigned: Index) -> tuple[NormalClass, ...]:
        """The classes, by the rows of fitted images and the class of each calibration image."""
        counts = (
            np.bincount(each, minlength=self.total).tolist()
            for each in (self.numbers[self.of_images[fitted]], assigned)
        )
        every = zip(map(self.members, range(self.total)), *counts, strict=True)
        return tuple(NormalClass(listed(members), members, *own) for members, *own in every)


def listed(names: Sequence[str]) -> str:
    """The names, or the first of many."""
    if len(names) <= LISTED:
        return " + ".join(names)
    return " + ".join((*names[: LISTED - 1], f"{len(names) - LISTED + 1} others"))


@torch.inference_mode()
def assign(nearest: Nearest, statistics: NDArray[np.floating]) -> Index:
    """The numbers of the classes (images,)."""
    found: Tensor = nearest(torch.from_numpy(np.ascontiguousarray(statistics)))
    return found.numpy().astype(np.intp)
