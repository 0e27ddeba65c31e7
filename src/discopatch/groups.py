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
CHANCE = 1e-4  # share of folders of independent images whose order is taken for one of frames
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
    paths = [PurePath(name) for name in names]  # day-1/part-17_0003.png is of day-1/part-17
    return [str(path.with_name(TRAILING_NUMBER.sub("", path.stem) or path.stem)) for path in paths]


def check_groups(groups: Groups | None) -> None:
    """Raises ParameterError if it is the name of no rule."""
    if isinstance(groups, str) and groups not in ("folder", "name", "auto"):
        rules = "'folder', 'name', 'auto', a function of the name, or one id an image"
        raise ParameterError(f"groups={groups!r}: give {rules}")


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
    """The groups of images, by the rule or ids that are given; without any, a caution where there are near-copies."""
    auto, alone = is_auto(groups), np.arange(len(names))
    if groups is not None and not auto:
        numbers, kind = numbers_of(groups, names, positions)
        return Grouped(numbers, kind, numbers)
    if auto and len(names) > MAX_COMPARED:
        raise ParameterError(
            f"groups='auto' compares up to {MAX_COMPARED} images with one another, and here are {len(names)}: "
            "give groups='folder', 'name' or one id an image"
        )
    compared = comparable_images(len(names))
    found, in_order = find_near_copies(features[compared])
    if auto:
        return Grouped(found, "auto", found)
    in_groups = float((np.bincount(found)[found] > 1).mean())
    if not in_groups:
        return Grouped(alone, None, alone)
    alike = alone.copy()
    alike[compared] = len(names) + found
    count = round(len(np.unique(found)) * len(names) / len(found))
    like = "as frames of bursts or of a video are" if in_order else "as copies or frames of one scene are"
    caution = (
        f"{in_groups:.0%} of the images have a near-copy among the others, {like}: about {count} groups in all. "
        "On both sides of the split they make false alarms more frequent than stated: say what belongs together "
        "with groups='folder', 'name' or one id an image (--groups), or take these groups with groups='auto'"
    )
    return Grouped(alone, None, alike, caution)


def is_auto(groups: Groups | None) -> bool:
    """Whether groups are to be found in the images."""
    return isinstance(groups, str) and groups == "auto"


def is_given(groups: Groups | None) -> TypeGuard[Sequence[Hashable]]:
    """Whether there is one id for each image, instead of a rule."""
    return groups is not None and not callable(groups) and not isinstance(groups, str)


def numbers_of(groups: Groups, names: Sequence[str], positions: Numbers) -> tuple[Numbers, str]:
    """The number of each image's group, by a rule or from one id for each image of the source."""
    if is_given(groups):
        return group_numbers([groups[position] for position in positions]), "given"
    rule: Any = groups
    return group_numbers(group_names(names, rule)), "given" if callable(rule) else rule


def find_near_copies(features: NDArray[np.floating]) -> tuple[Numbers, bool]:
    """The groups that images with these features (n, d) form, and whether they follow one another, as frames do.

    Near-copies are much more alike than images of one camera are. Two signs show them. Nearest images are of two kinds,
    those of one group and those of two, so that the edges of the shortest tree through all images have two lengths. Or
    the nearest image of many is their neighbour in order, which by chance is so for 2 / n of them. Where few images
    have a near-copy, each is a group of its own.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components
    from scipy.special import bdtrc

    count = len(features)
    distances = pairwise_distances(features)
    np.fill_diagonal(distances, np.inf)
    nearest = np.argpartition(distances, N_NEAREST, axis=1)[:, :N_NEAREST]
    here = np.arange(count)
    neighbours = np.abs(distances.argmin(1) - here) == 1
    by_chance = bdtrc(neighbours.sum() // 2 - 1, count, 2 / count)  # binomial; both of a pair count once
    in_order = bool(neighbours.mean() >= MANY and by_chance < CHANCE)
    longest = longest_within_groups(distances)
    linked = distances <= longest
    if in_order and not longest:
        linked[here[:-1], here[1:]] |= (nearest[:-1] == here[1:, None]).any(1)
        linked[here[:-1], here[1:]] |= (nearest[1:] == here[:-1, None]).any(1)
    found: Numbers = connected_components(csr_array(linked), directed=False)[1].astype(np.intp)
    enough = (np.bincount(found)[found] > 1).mean() >= MANY
    return (found, in_order) if enough else (here, False)


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


def longest_within_groups(distances: NDArray[np.float64]) -> float:
    """Where two kinds of edges of the shortest tree part, by their logarithms; 0 if all are of one kind."""
    from scipy.sparse.csgraph import minimum_spanning_tree

    finite = np.where(np.isfinite(distances), distances, 0)  # to scipy 0 is no edge
    lengths = np.sort(minimum_spanning_tree(finite).data)
    short, separation = two_kinds(np.log(lengths))
    return float(lengths[short - 1]) if separation >= TWO_KINDS else 0.0


def two_kinds(values: NDArray[np.float64]) -> tuple[int, float]:
    """How many of ascending values are of the lower kind (Otsu's cut), and how far apart both are, see TWO_KINDS."""
    smallest = max(5, len(values) // 50)
    cuts = np.arange(smallest, len(values) - smallest + 1)
    if not len(cuts):
        return 0, 0.0
    sums = np.cumsum(values)
    below, above = sums[cuts - 1] / cuts, (sums[-1] - sums[cuts - 1]) / (len(values) - cuts)
    cut = int(cuts[np.argmax(cuts * (len(values) - cuts) * (above - below) ** 2)])
    low, high = values[:cut], values[cut:]
    return cut, float((high.mean() - low.mean()) / np.sqrt(max((low.var() + high.var()) / 2, 1e-12)))
