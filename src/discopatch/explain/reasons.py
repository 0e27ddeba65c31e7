"""Reasons: the known changes that an image looks like."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.calibration import alarms_allowed, fold_numbers, usual_level
from discopatch.errors import WeightsError
from discopatch.explain.descriptors import Floats, descriptors
from discopatch.explain.learnt import LearntChanges, drawn_in
from discopatch.heads.base import Array, GroupNumbers, read_tensors
from discopatch.heads.gaussian import ledoit_wolf
from discopatch.heads.parts import centre_and_spread
from discopatch.heads.probes import PROBES, changed
from discopatch.images import DEFAULT_WORKERS, Pixels
from discopatch.model.weights import check_names

NORMAL_RATE = 0.05  # the share of normal images with a reason
MAX_REASONS = 3
ALSO = 0.8  # of the largest z-score, from which a second change is a reason too
FOLDS = 10
REASON_IMAGES = 16  # normal images that are changed in each of the known ways
STRENGTHS = 4  # mean vectors per form of a change, mild to strong
GRID, SMALL_GRID, SMALL = 4, 2, 128  # regions along a side: of images, and of those smaller than so many pixels
LEARNT_REGIONS = 2  # of a changed image
UNUSUAL_REGIONS = 3  # by which a local change is found
SMALLEST_SPREAD = 0.05  # of a descriptor
SMALLEST_SCATTER = 0.1  # of changed images around their mean, in standard deviations of normal ones
SMALLEST_LEVEL, NEVER = 1.0, 1e12  # of a reason, in standard deviations of normal images
SILENT = 0.02  # standard deviations per descriptor, below which a change has no effect

AT_ONCE = 1 << 18  # pixels that are measured together; with fewer, threads contend for Python's lock

Labels = NDArray[np.intp]
FORMS = [
    (number, form) for number, probe in enumerate(PROBES.values()) for form in probe.forms
]  # with the number of the probe
SHAPES = {
    "centre": ("descriptors",),
    "whitening": ("descriptors", "descriptors"),
    "normal": ("descriptors",),
    "directions": ("templates", "descriptors"),
    "offsets": ("templates",),
    "owners": ("templates",),
}


class Examples(NamedTuple):
    """Descriptors of normal images or regions, and of changed ones, with the form and the number of the image."""

    normal: Array  # (n, descriptors)
    image: Labels  # (n,)
    changed: Array  # (m, descriptors)
    before: Array  # (m, descriptors), of the same images before the change
    form: Labels  # (m,), among FORMS
    changed_image: Labels  # (m,)

    def select(self, images: NDArray[np.bool_]) -> "Examples":
        """The examples of the chosen images."""
        normal, found = images[self.image], images[self.changed_image]
        return Examples(
            self.normal[normal],
            self.image[normal],
            self.changed[found],
            self.before[found],
            self.form[found],
            self.changed_image[found],
        )


class ChangeModel:
    """Gaussians of one covariance: one for normal descriptors and several for each form of a change, mild to strong.

    Descriptors are whitened by the normal ones and compressed, so that the scatter of strong changes does not hide the
    effect of mild ones.
    """

    def __init__(self, **values: Array) -> None:
        self.values = values = {name: np.ascontiguousarray(value) for name, value in values.items()}
        self.centre, self.whitening, self.normal = values["centre"], values["whitening"], values["normal"]
        self.directions, self.offsets = values["directions"], values["offsets"]
        self.starts = np.unique(values["owners"], return_index=True)[1]

    @classmethod
    def fit(cls, examples: Examples, probes: Sequence[int]) -> Self:
        """The model that separates normal from each of these probes."""
        centre, whitening = whiten(examples.normal)
        normal, after, before = (
            drawn_in((values - centre) @ whitening) for values in (examples.normal, examples.changed, examples.before)
        )
        moved = np.linalg.norm(after - before, axis=1)
        means, residuals, owners = [], [normal - normal.mean(0)], []
        for number, (probe, _) in enumerate(FORMS):
            (own,) = np.nonzero(examples.form == number)
            if probe in probes and len(own):  # a fold may hold all changed images
                for part in np.array_split(own[np.argsort(moved[own], kind="stable")], min(STRENGTHS, len(own))):
                    means.append(after[part].mean(0))
                    residuals.append(after[part] - means[-1])
                    owners.append(probes.index(probe))
        rest = np.concatenate(residuals)
        scale = np.hypot(rest.std(0), SMALLEST_SCATTER)
        share = ledoit_wolf(rest / scale)
        covariance = (1 - share) * rest.T @ rest / len(rest) + np.diag(share * scale**2 + SMALLEST_SCATTER**2)
        templates = np.stack(means) - normal.mean(0) if means else np.empty((0, normal.shape[1]))
        directions = np.linalg.solve(covariance, templates.T).T
        return cls(
            centre=centre,
            whitening=whitening,
            normal=normal.mean(0),
            directions=directions,
            offsets=-(directions * templates).sum(1) / 2,
            owners=np.array(owners, np.float64),
        )

    def evidence(self, found: NDArray[np.floating]) -> Array:
        """(n, descriptors) to (n, probes): the log-likelihood ratio of each change against none."""
        values = drawn_in((found - self.centre) @ self.whitening) - self.normal
        result: Array = np.maximum.reduceat(values @ self.directions.T + self.offsets, self.starts, axis=1)
        return result


class ReasonModel:
    """Models of known changes for the whole image and for regions, and the z-score from which a change is a reason.

    Evidence is standardised over normal images that the model was not fitted on, fold by fold. The one threshold of all
    changes comes from the same images: few of them exceed it.
    """

    def __init__(
        self, probes: tuple[str, ...], learnt: LearntChanges, image: ChangeModel, regions: ChangeModel, level: Array
    ) -> None:
        self.probes, self.learnt, self.image, self.regions, self.level = probes, learnt, image, regions, level

    @classmethod
    def fit(cls, pixels: Pixels, *, images: int = REASON_IMAGES, groups: GroupNumbers = None, seed: int) -> Self:
        """A model from normal images (B, size, size, 3).

        images: how many of the images are changed in each of the known ways; more take longer.
        groups: numbers of the images that belong together.
        """
        learnt = LearntChanges.load()
        image, regions = examples_of(pixels, pixels[:images], learnt, seed=seed)
        live = [number for number in range(len(PROBES)) if moves(image, number)]
        fold = fold_numbers(len(pixels), groups, folds=FOLDS)
        held_out = np.empty((len(pixels), 2))
        for number in np.unique(fold):
            rest, own = fold != number, fold == number
            whole, local = (ChangeModel.fit(each.select(rest), live) for each in (image, regions))
            held_out[own] = strongest(whole, local, image.normal[own], regions.select(own).normal)
        centres, spreads = centre_and_spread(held_out)
        z = (held_out - centres) / spreads
        threshold, local_threshold = usual_levels(z, groups)
        spreads[1] *= local_threshold / threshold
        ids = tuple(list(PROBES)[number] for number in live)
        level = np.array([*centres, *spreads, threshold])
        return cls(ids, learnt, ChangeModel.fit(image, live), ChangeModel.fit(regions, live), level)

    @property
    def threshold(self) -> float:
        return float(self.level[4])

    def z_scores(self, pixels: Pixels) -> dict[str, float]:
        """The evidence of each change in one image (size, size, 3), as z-scores over normal images.

        Regions count where the whole image has no reason.
        """
        if not self.probes:
            return {}
        whole = self.image.evidence(self.learnt.describe(pixels[None]))
        parts = of_regions(self.regions.evidence(self.learnt.describe(cut(pixels[None]))))
        image, local = (np.concatenate([whole, parts]) - self.level[:2, None]) / self.level[2:4, None]
        z = image if image.max() > self.threshold else np.maximum(image, local)
        return dict(zip(self.probes, z.tolist(), strict=True))

    def reasons(self, pixels: Pixels) -> dict[str, float]:
        """The reasons of one image with their z-scores, the largest first; none for most normal images."""
        z = self.z_scores(pixels)
        enough = max(self.threshold, ALSO * max(z.values(), default=0.0))
        found = sorted(
            (name for name in z if z[name] > self.threshold and z[name] >= enough), key=lambda name: -z[name]
        )
        return {name: z[name] for name in found[:MAX_REASONS]}

    def to_tensors(self) -> dict[str, Tensor]:
        values = {"level": self.level}
        for part, model in (("image", self.image), ("regions", self.regions), ("learnt", self.learnt)):
            values |= {f"{part}/{name}": value for name, value in model.values.items()}
        return {name: torch.from_numpy(value) for name, value in values.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], probes: tuple[str, ...]) -> Self:
        """The stored model; WeightsError where a tensor does not fit."""
        parts: dict[str, dict[str, Tensor]] = {"level": {}, "image": {}, "regions": {}, "learnt": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition("/")
            parts.setdefault(part, {})[rest or part] = tensor
        check_names(cls.__name__, parts, ("level", "image", "regions", "learnt"))
        level = read_tensors(cls.__name__, parts["level"], {"level": (5,)})["level"]
        if not (level[2:4] > 0).all():
            raise WeightsError("level has a spread that is not above 0")
        models = []
        for part in ("image", "regions"):
            values = read_tensors(f"{cls.__name__}.{part}", parts[part], SHAPES)
            owners = values["owners"]
            if (np.diff(owners) < 0).any() or not np.array_equal(np.unique(owners), np.arange(len(probes))):
                raise WeightsError(f"{part}.owners are not the numbers of {len(probes)} probes, in order")
            models.append(ChangeModel(**values))
        image, regions = models
        return cls(probes, LearntChanges.from_tensors(parts["learnt"]), image, regions, level)


def examples_of(pixels: Pixels, chosen: Pixels, learnt: LearntChanges, *, seed: int) -> tuple[Examples, Examples]:
    """Descriptors of normal images and their regions, and of chosen ones that are changed in each known way."""
    count, regions = len(pixels), len(cut(pixels[:1]))
    taken = np.stack([np.random.default_rng([seed, 5, index]).permutation(regions) for index in range(len(chosen))])
    taken = np.sort(taken[:, :LEARNT_REGIONS], axis=1)
    part, every = cut(pixels[:1]).shape[1:], np.arange(len(chosen))[:, None]
    with ThreadPoolExecutor(DEFAULT_WORKERS) as pool:
        found = [(measured(pixels, pool), measured(cut(pixels), pool))]
        for _, form in FORMS:
            images = changed(form, chosen, seed=seed)
            own = cut(images).reshape(-1, regions, *part)[every, taken].reshape(-1, *part)
            found.append((measured(images, pool), measured(own, pool)))
    # All at once: a matrix product in between would leave BLAS threads spinning.
    whole, local = (learnt.with_odds(np.concatenate(each)) for each in zip(*found, strict=True))
    normal, after = np.split(whole, [count])
    normal_regions, after_regions = np.split(local, [count * regions])
    before = normal_regions.reshape(count, regions, -1)[every, taken]
    form_number = np.repeat(np.arange(len(FORMS)), len(chosen))
    of = np.tile(np.arange(len(chosen)), len(FORMS))
    each = taken.shape[1]
    return (
        Examples(normal, np.arange(count), after, normal[of], form_number, of),
        Examples(
            normal_regions,
            np.repeat(np.arange(count), regions),
            after_regions,
            before[of].reshape(len(of) * each, -1),
            np.repeat(form_number, each),
            np.repeat(of, each),
        ),
    )


def measured(pixels: Pixels, pool: Executor) -> Floats:
    """The descriptors of all images, on several threads."""
    together = max(1, AT_ONCE // pixels[0, ..., 0].size)
    parts = [pixels[start : start + together] for start in range(0, len(pixels), together)]
    return np.concatenate(list(pool.map(descriptors, parts)))


def moves(examples: Examples, probe: int) -> bool:
    """Whether the probe's change has an effect on the descriptors of most images."""
    own = np.isin(examples.form, [number for number, (owner, _) in enumerate(FORMS) if owner == probe])
    scale = np.hypot(examples.normal.std(0), SMALLEST_SPREAD)
    moved = np.square((examples.changed[own] - examples.before[own]) / scale).mean(1)
    return bool(np.median(moved) > SILENT**2)


def strongest(image: ChangeModel, regions: ChangeModel, whole: Array, parts: Array) -> Array:
    """(images, 2): the evidence of the likeliest change in each image, and in its regions."""
    if not len(image.directions):
        return np.zeros((len(whole), 2))
    local = regions.evidence(parts).reshape(len(whole), -1, len(regions.starts))
    return np.stack([image.evidence(whole).max(1), np.concatenate([of_regions(each) for each in local]).max(1)], 1)


def of_regions(evidence: Array) -> Array:
    """(regions, probes) to (1, probes): the mean over the few regions with the most evidence of each change."""
    found: Array = np.sort(evidence, axis=0)[-UNUSUAL_REGIONS:].mean(0, keepdims=True)
    return found


def cut(pixels: Pixels) -> Pixels:
    """(B, size, size, 3) to (B x regions, side, side, 3): disjoint regions on a grid."""
    count, size = pixels.shape[:2]
    grid = GRID if size >= SMALL else SMALL_GRID
    side = size // grid
    parts = pixels[:, : grid * side, : grid * side].reshape(count, grid, side, grid, side, 3)
    return np.ascontiguousarray(parts.swapaxes(2, 3)).reshape(-1, side, side, 3)


def whiten(values: Array) -> tuple[Array, Array]:
    """The mean (d,), and the matrix (d, d) after which normal values are uncorrelated, with standard deviation 1."""
    centre, scale = values.mean(0), np.hypot(values.std(0), SMALLEST_SPREAD)
    standard = (values - centre) / scale
    share = ledoit_wolf(standard)
    variances, axes = np.linalg.eigh((1 - share) * standard.T @ standard / len(values) + share * np.eye(len(centre)))
    return centre, (axes / np.sqrt(variances)) @ axes.T / scale[:, None]


def usual_levels(z: Array, groups: GroupNumbers) -> tuple[float, float]:
    """The levels of the image and of its regions that at most NORMAL_RATE of new images, or of new groups, exceed.

    From (images, 2); see `usual_level`. One of the allowed exceedances is left to the regions, which give no reasons if
    only one is allowed.
    """
    whole = usual_level(z[:, 0], NORMAL_RATE, groups, spared=1)
    count = len(z) if groups is None else len(np.unique(groups))
    parts = float(z[:, 1].max()) if alarms_allowed(count, NORMAL_RATE) > 1 else NEVER
    return max(whole, SMALLEST_LEVEL), max(parts, SMALLEST_LEVEL)
