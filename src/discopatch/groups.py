"""Which normal images belong together: frames of one burst, shots of one scene, pictures of one part."""

import re
from collections.abc import Callable, Hashable, Sequence
from pathlib import PurePath
from typing import Any, Literal, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from discopatch.errors import ParameterError

Rule = Literal["folder", "name"] | Callable[[str], Hashable]
Numbers = NDArray[np.intp]
Groups = Rule | Literal["auto"] | Sequence[Hashable] | NDArray[Any]  # a rule, or one id for each image

MANY = 0.1  # share of the images with a near-copy, from which on it is said
MAX_COMPARED = 4096  # images that are compared each with each
BLOCK = 64  # images that follow one another, where not all can be compared
TWO_KINDS = 5.0  # distance of two kinds of distances in their standard deviations; one kind, cut in two, has about 2.7
MIN_DISTANCE = 1e-3  # of two images' features, below which they are as good as one
N_NEAREST = 3  # neighbours in order belong together if one is among so many nearest of the other

TRAILING_NUMBER = re.compile(r"[\s_.\-()#]*\d+\)?$")


def group_names(names: Sequence[str], by: Rule) -> list[Hashable]:
    """The group of each image by its name: its parent `folder`, its `name` up to the trailing number, or a function."""
    if callable(by):
        return [by(name) for name in names]
    check_groups(by)
    if by == "folder":
        return [str(PurePath(name).parent) for name in names]
    return [without_number(PurePath(name)) for name in names]


def check_groups(groups: Groups | None) -> None:
    """Raises ParameterError if it is the name of no rule."""
    if isinstance(groups, str) and groups not in ("folder", "name", "auto"):
        raise ParameterError(
            f"groups={groups!r}: give 'folder', 'name', 'auto', a function of the name, or one id an image"
        )


def without_number(path: PurePath) -> str:
    """Such as `day-1/part-17` for `day-1/part-17_0003.png`."""
    return str(path.with_name(TRAILING_NUMBER.sub("", path.stem) or path.stem))


def group_numbers(groups: Sequence[Hashable] | NDArray[Any]) -> Numbers:
    """The groups as numbers from 0, in the order in which they come."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(groups))}
    return np.array([numbers[name] for name in groups], np.intp)


class Grouped(NamedTuple):
    """What belongs together among some images."""

    numbers: Numbers  # the group of each image; all different where there are no groups
    kind: str | None  # folder, name, auto or given
    alike: Numbers  # the groups that the images themselves show, used or not
    caution: str | None = None

    @property
    def total(self) -> int:
        """How many groups there are."""
        return len(np.unique(self.numbers))


def find_groups(
    groups: Groups | None, features: NDArray[np.floating], names: Sequence[str], positions: Numbers
) -> Grouped:
    """The groups that were asked for; without any, near-copies are looked for and told."""
    numbers, kind = np.arange(len(names)), None
    if groups is not None and not is_auto(groups):
        numbers, kind = numbers_of(groups, names, positions)
        return Grouped(numbers, kind, numbers)
    if groups is not None and len(names) > MAX_COMPARED:
        raise ParameterError(
            f"groups='auto' compares up to {MAX_COMPARED} images with one another, and here are {len(names)}: "
            "give groups='folder', 'name' or one id an image"
        )
    compared = comparable_images(len(names))
    found = find_near_copies(features[compared])
    if found is None:
        return Grouped(numbers, "auto" if groups is not None else None, numbers)
    if groups is not None:
        return Grouped(found.groups, "auto", found.groups)
    alike = numbers.copy()
    alike[compared] = len(names) + found.groups
    return Grouped(numbers, None, alike, found.text(len(names)))


def is_auto(groups: Groups | None) -> bool:
    return isinstance(groups, str) and groups == "auto"


def is_given(groups: Groups | None) -> TypeGuard[Sequence[Hashable]]:
    """Whether there is one id for each image, instead of a rule."""
    return groups is not None and not callable(groups) and not isinstance(groups, str)


def numbers_of(groups: Groups, names: Sequence[str], positions: Numbers) -> tuple[Numbers, str]:
    """The number of each image's group, by a rule or from one id for each image of the source."""
    if callable(groups) or isinstance(groups, str):
        rule: Any = groups
        return group_numbers(group_names(names, rule)), "given" if callable(groups) else groups
    return group_numbers([groups[position] for position in positions]), "given"


class NearCopies(NamedTuple):
    """Images that are much more alike than images of one camera are: frames of a burst, or copies."""

    groups: Numbers  # one number an image
    in_order: bool  # whether they follow one another, as frames do

    @property
    def share(self) -> float:
        """The share of images that are not alone in their group."""
        return float((np.bincount(self.groups)[self.groups] > 1).mean())

    def text(self, count: int) -> str:
        """The sentence about near-copies among `count` images, of which a part may have been compared."""
        groups = round(len(np.unique(self.groups)) * count / len(self.groups))
        kind = "as frames of bursts or of a video are" if self.in_order else "as copies or frames of one scene are"
        return (
            f"{self.share:.0%} of the images have a near-copy among the others, {kind}: about {groups} groups in all. "
            "On both sides of the split they make false alarms more frequent than stated: say what belongs together "
            "with groups='folder', 'name' or one id an image (--groups), or take these groups with groups='auto'"
        )


def find_near_copies(features: NDArray[np.floating]) -> NearCopies | None:
    """The groups that images with these features (n, d) form, or None where few images have a near-copy.

    Two signs tell it. Nearest images are of two kinds, those of one group and those of two, so that the edges of the
    shortest tree through all images have two lengths. Or the nearest image of many is their neighbour in order, which
    by chance is so for 2 / n of them.
    """
    distances = pairwise_distances(features)
    np.fill_diagonal(distances, np.inf)
    nearest = np.argpartition(distances, N_NEAREST, axis=1)[:, :N_NEAREST]
    here = np.arange(len(distances))
    in_order = many_neighbours(np.abs(distances.argmin(1) - here) == 1)
    longest = longest_within_groups(distances)
    linked = distances <= longest
    if in_order and not longest:
        linked[here[:-1], here[1:]] |= (nearest[:-1] == here[1:, None]).any(1)
        linked[here[:-1], here[1:]] |= (nearest[1:] == here[:-1, None]).any(1)
    found = NearCopies(components(linked), in_order)
    return found if found.share >= MANY else None


def comparable_images(count: int) -> Numbers:
    """The indices of all images, or of blocks of them where there are too many to compare each with each."""
    if count <= MAX_COMPARED:
        return np.arange(count)
    starts = np.linspace(0, count - BLOCK, MAX_COMPARED // BLOCK).astype(np.intp)
    return np.unique(starts[:, None] + np.arange(BLOCK))


def pairwise_distances(features: NDArray[np.floating]) -> NDArray[np.float64]:
    """(n, n): root mean square differences of the rows of (n, d)."""
    values = np.asarray(features, np.float64)
    values = values - values.mean(0)
    products = values @ values.T
    lengths = np.diag(products)
    squares = np.maximum(lengths[:, None] + lengths - 2 * products, 0) / max(values.shape[1], 1)
    distances: NDArray[np.float64] = np.maximum(np.sqrt(squares), MIN_DISTANCE)
    return distances


def many_neighbours(neighbours: NDArray[np.bool_]) -> bool:
    """Whether more images have their neighbour in order as the nearest than chance explains once in 10,000 folders."""
    from scipy.special import bdtrc

    count = len(neighbours)
    by_chance = bdtrc(neighbours.sum() // 2 - 1, count, 2 / count)  # binomial; both of a pair count once
    return bool(neighbours.mean() >= MANY and by_chance < 1e-4)


def longest_within_groups(distances: NDArray[np.float64]) -> float:
    """Where two kinds of edges of the shortest tree part (Otsu's cut of their logarithms); 0 if all are of one kind."""
    from scipy.sparse.csgraph import minimum_spanning_tree

    finite = np.where(np.isfinite(distances), distances, 0)  # to scipy 0 is no edge
    lengths = np.sort(minimum_spanning_tree(finite).data)
    logs = np.log(lengths)
    smallest = max(5, len(logs) // 50)
    cuts = np.arange(smallest, len(logs) - smallest + 1)
    if not len(cuts):
        return 0.0
    sums, squares = np.cumsum(logs), np.cumsum(logs**2)
    below, above = sums[cuts - 1] / cuts, (sums[-1] - sums[cuts - 1]) / (len(logs) - cuts)
    cut = int(np.argmax(cuts * (len(logs) - cuts) * (above - below) ** 2))
    variances = (
        squares[cuts[cut] - 1] / cuts[cut] - below[cut] ** 2,
        (squares[-1] - squares[cuts[cut] - 1]) / (len(logs) - cuts[cut]) - above[cut] ** 2,
    )
    separation = (above[cut] - below[cut]) / np.sqrt(max(sum(variances) / 2, 1e-12))
    return float(lengths[cuts[cut] - 1]) if separation >= TWO_KINDS else 0.0


def components(linked: NDArray[np.bool_]) -> Numbers:
    """The group of each image, from which pairs are linked (n, n)."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    labels: Numbers = connected_components(csr_array(linked), directed=False)[1].astype(np.intp)
    return labels
