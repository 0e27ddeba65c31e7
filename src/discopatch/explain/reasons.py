"""Reasons: the known changes that an image looks like."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from discopatch.calibration import alarms_allowed, fold_numbers, usual_level
from discopatch.encoders import map_on_cores
from discopatch.errors import WeightsError
from discopatch.explain.descriptors import Floats, LearntChanges, descriptors, drawn_in
from discopatch.heads.base import Array, Fitted, GroupNumbers, Shapes
from discopatch.heads.gaussian import ledoit_wolf
from discopatch.heads.parts import centre_and_spread
from discopatch.heads.probes import PROBES, central, changed
from discopatch.images import DEFAULT_WORKERS, Pixels

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
MAX_SIDE = 2**14  # pixels
SILENT = 0.02  # standard deviations per descriptor, below which a change has no effect

AT_ONCE = 1 << 18  # pixels that are measured together; with fewer, threads contend for Python's lock

Labels = NDArray[np.intp]
Embed = Callable[[Pixels], Floats]  # images (B, H, W, 3) -> (B, values), how they are degraded; no values for none
FORMS = [(number, form) for number, probe in enumerate(PROBES.values()) for form in probe.forms]


def no_embedding(pixels: Pixels) -> Floats:
    return np.empty((len(pixels), 0), np.float32)


class Examples(NamedTuple):
    """Descriptors of normal images or regions, and of changed ones."""

    normal: Array  # (n, descriptors)
    image: Labels  # (n,), the number of the image
    changed: Array  # (m, descriptors)
    origin: Labels  # (m,), the same image or region before the change, among the normal ones
    form: Labels  # (m,), among FORMS

    def moves(self, probe: int) -> bool:
        """Whether the probe's change has an effect on the descriptors of most images."""
        own = np.isin(self.form, [number for number, (owner, _) in enumerate(FORMS) if owner == probe])
        scale = np.hypot(self.normal.std(0), SMALLEST_SPREAD)
        moved = np.square((self.changed[own] - self.normal[self.origin[own]]) / scale).mean(1)
        return bool(np.median(moved) > SILENT**2)


class ChangeModel(Fitted):
    """Gaussians of one covariance: one for normal descriptors and several for each form of a change, mild to strong.

    Descriptors are whitened by the normal ones and compressed, so that the scatter of strong changes does not hide the
    effect of mild ones.
    """

    shapes: ClassVar[Shapes] = {
        "centre": ("descriptors",),
        "whitening": ("descriptors", "descriptors"),
        "normal": ("descriptors",),  # the mean of the whitened normal descriptors
        "directions": ("templates", "descriptors"),
        "offsets": ("templates",),
        "owners": ("templates",),  # the number of each template's probe, in order
    }

    @classmethod
    def fit(cls, examples: Examples, images: NDArray[np.bool_], probes: Sequence[int]) -> Self:
        """The model that separates normal from each of these probes, from the examples of the chosen images."""
        own = images[examples.image]
        found = own[examples.origin]
        form, originals = examples.form[found], examples.normal[examples.origin[found]]
        centre, whitening = whiten(examples.normal[own])
        normal, after, before = (
            drawn_in(product(values - centre, whitening))
            for values in (examples.normal[own], examples.changed[found], originals)
        )
        moved = np.linalg.norm(after - before, axis=1)
        means, residuals, owners = [], [normal - normal.mean(0)], []
        for number, (probe, _) in enumerate(FORMS):
            (rows,) = np.nonzero(form == number)
            if probe in probes and len(rows):  # a fold may hold all changed images
                for part in np.array_split(rows[np.argsort(moved[rows], kind="stable")], min(STRENGTHS, len(rows))):
                    means.append(after[part].mean(0))
                    residuals.append(after[part] - means[-1])
                    owners.append(probes.index(probe))
        rest = np.concatenate(residuals)
        scale = np.hypot(rest.std(0), SMALLEST_SCATTER)
        scatter = product(rest.T, rest) / len(rest)
        share = ledoit_wolf(rest / scale, scatter / np.outer(scale, scale))
        covariance = (1 - share) * scatter + np.diag(share * scale**2 + SMALLEST_SCATTER**2)
        templates = np.stack(means) - normal.mean(0) if means else np.empty((0, normal.shape[1]))
        directions = torch.linalg.solve(torch.from_numpy(covariance), torch.from_numpy(templates.T)).T.numpy()
        return cls.of(
            centre=centre,
            whitening=whitening,
            normal=normal.mean(0),
            directions=directions,
            offsets=-(directions * templates).sum(1) / 2,
            owners=owners,
        )

    def evidence(self, found: NDArray[np.floating]) -> Array:
        """(n, descriptors) to (n, probes): the log-likelihood ratio of each change against none."""
        centre, whitening, normal, directions, offsets, owners = (value.numpy() for value in self.buffers())
        values = drawn_in(product(found - centre, whitening)) - normal
        starts = np.unique(owners, return_index=True)[1]
        return np.maximum.reduceat(product(values, directions.T) + offsets, starts, axis=1)


class ReasonModel(Fitted):
    """Models of known changes for the whole image and for regions, and the z-score from which a change is a reason.

    Evidence is standardised over normal images that the model was not fitted on, fold by fold. The one threshold of all
    changes comes from the same images: few of them exceed it.
    """

    shapes: ClassVar[Shapes] = {
        "level": (5,),  # the centres of image and regions, their spreads, and the threshold
        "size": (2,),  # height and width to which images are resized; of large ones the middle is described
    }
    positive = ("size",)
    threshold: float

    def __init__(self) -> None:
        super().__init__()
        self.learnt, self.image, self.regions = LearntChanges(), ChangeModel(), ChangeModel()

    def derive(self) -> None:
        self.threshold = float(self.level[4])
        if self.size.max() > MAX_SIDE:
            raise WeightsError(f"size is {self.size.tolist()}, more than {MAX_SIDE} pixels")
        if not (self.level[2:4] > 0).all():
            raise WeightsError("level has a spread that is not above 0")
        for owners in (self.image.owners.numpy(), self.regions.owners.numpy()):
            if (np.diff(owners) < 0).any() or not np.array_equal(np.unique(owners), np.arange(len(self.probes))):
                raise WeightsError(f"owners of templates are not the numbers of {len(self.probes)} probes, in order")

    @classmethod
    def fit(
        cls,
        pixels: Pixels,
        *,
        images: int = REASON_IMAGES,
        embed: Embed = no_embedding,
        embedded: Floats | None = None,
        groups: GroupNumbers = None,
        seed: int,
    ) -> Self:
        """A model from normal images (B, H, W, 3).

        images: how many of the images are changed in each of the known ways; more take longer.
        embed: that of the network, where it has an embedding; the same is needed to score.
        embedded: the embeddings of the middle of the images, if they are known.
        groups: numbers of the images that belong together.
        """
        learnt, size, pixels = LearntChanges.load(), pixels.shape[1:3], central(pixels)
        embedded = embed(pixels) if embedded is None else embedded
        image, regions = examples_of(pixels, pixels[:images], learnt, embed, embedded, seed=seed)
        live = [number for number in range(len(PROBES)) if image.moves(number)]

        def fitted(chosen: NDArray[np.bool_]) -> tuple[ChangeModel, ChangeModel]:
            return ChangeModel.fit(image, chosen, live), ChangeModel.fit(regions, chosen, live)

        fold = fold_numbers(len(pixels), groups, folds=FOLDS)
        folds, held_out = [fold == number for number in np.unique(fold)], np.empty((len(pixels), 2))
        found = map_on_cores(
            lambda own: strongest(*fitted(~own), image.normal[own], regions.normal[own[regions.image]]), folds
        )
        for own, evidence in zip(folds, found, strict=True):
            held_out[own] = evidence
        centres, spreads = centre_and_spread(held_out)
        threshold, local_threshold = usual_levels((held_out - centres) / spreads, groups)
        spreads[1] *= local_threshold / threshold
        model = cls().hold(level=[*centres, *spreads, threshold], size=size)
        model.probes, model.learnt = tuple(list(PROBES)[number] for number in live), learnt
        model.image, model.regions = fitted(fold >= 0)
        model.derive()
        return model

    def z_scores(self, pixels: Pixels, embed: Embed = no_embedding) -> dict[str, float]:
        """The evidence of each change in one image (H, W, 3), as z-scores over normal images.

        Regions count where the whole image has no reason.
        """
        if not self.probes:
            return {}
        height, width = self.size.int().tolist()
        resized = np.array(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))
        middle = central(resized[None])
        whole = self.image.evidence(np.hstack([self.learnt.describe(descriptors(middle)), embed(middle)]))
        parts = of_regions(self.regions.evidence(self.learnt.describe(descriptors(cut(middle)))))
        centres, spreads, _ = np.split(self.level.numpy()[:, None], [2, 4])
        image, local = (np.stack([whole[0], parts]) - centres) / spreads
        z = image if image.max() > self.threshold else np.maximum(image, local)
        return dict(zip(self.probes, z.tolist(), strict=True))

    def reasons(self, pixels: Pixels, embed: Embed = no_embedding) -> dict[str, float]:
        """The reasons of one image with their z-scores, the largest first; none for most normal images."""
        z = self.z_scores(pixels, embed)
        enough = ALSO * max(z.values(), default=0.0)
        found = [name for name in z if z[name] > self.threshold and z[name] >= enough]
        return {name: z[name] for name in sorted(found, key=lambda name: -z[name])[:MAX_REASONS]}


def examples_of(
    pixels: Pixels, chosen: Pixels, learnt: LearntChanges, embed: Embed, embedded: Floats, *, seed: int
) -> tuple[Examples, Examples]:
    """Descriptors of normal images and their regions, and of the chosen first ones, changed in each known way."""
    count, regions = len(pixels), len(cut(pixels[:1]))
    taken = [np.random.default_rng([seed, 5, index]).permutation(regions) for index in range(len(chosen))]
    rows = np.concatenate([index * regions + np.sort(each[:LEARNT_REGIONS]) for index, each in enumerate(taken)])
    with ThreadPoolExecutor(DEFAULT_WORKERS) as pool:
        found, embeddings = [(measured(pixels, pool), measured(cut(pixels), pool))], [embedded]
        for _, form in FORMS:
            images = changed(form, chosen, seed=seed)
            found.append((measured(images, pool), measured(cut(images)[rows], pool)))
            embeddings.append(embed(images))
    # All at once: a matrix product in between would leave BLAS threads spinning.
    whole, local = (learnt.describe(np.concatenate(each)) for each in zip(*found, strict=True))
    whole = np.hstack([whole, np.concatenate(embeddings)])

    def examples(values: Array, image: Labels, origin: Labels) -> Examples:
        normal, after = np.split(values, [len(image)])
        forms = np.repeat(np.arange(len(FORMS)), len(origin))
        return Examples(normal, image, after, np.tile(origin, len(FORMS)), forms)

    every = np.arange(count)
    return examples(whole, every, every[: len(chosen)]), examples(local, np.repeat(every, regions), rows)


def measured(pixels: Pixels, pool: Executor) -> Floats:
    """The descriptors of all images, on several threads."""
    together = max(1, AT_ONCE // pixels[0, ..., 0].size)
    parts = [pixels[start : start + together] for start in range(0, len(pixels), together)]
    return np.concatenate(list(pool.map(descriptors, parts)))


def strongest(image: ChangeModel, regions: ChangeModel, whole: Array, parts: Array) -> Array:
    """(images, 2): the evidence of the likeliest change in each image, and in its regions."""
    if not len(image.directions):
        return np.zeros((len(whole), 2))
    local = np.split(regions.evidence(parts), len(whole))
    return np.stack([image.evidence(whole).max(1), [of_regions(each).max() for each in local]], 1)


def of_regions(evidence: Array) -> Array:
    """(regions, probes) to (probes,): the mean over the few regions with the most evidence of each change."""
    found: Array = np.sort(evidence, axis=0)[-UNUSUAL_REGIONS:].mean(0)
    return found


def cut(pixels: Pixels) -> Pixels:
    """(B, H, W, 3) to (B x regions, height, width, 3): disjoint regions on a grid."""
    count, *shape = pixels.shape[:3]
    grid = GRID if min(shape) >= SMALL else SMALL_GRID
    height, width = (side // grid for side in shape)
    parts = pixels[:, : grid * height, : grid * width].reshape(count, grid, height, grid, width, 3)
    return np.ascontiguousarray(parts.swapaxes(2, 3)).reshape(-1, height, width, 3)


def whiten(values: Array) -> tuple[Array, Array]:
    """The mean (d,), and the matrix (d, d) after which normal values are uncorrelated, with standard deviation 1."""
    centre, scale = values.mean(0), np.hypot(values.std(0), SMALLEST_SPREAD)
    standard = (values - centre) / scale
    covariance = product(standard.T, standard) / len(values)
    share = ledoit_wolf(standard, covariance)
    regular = torch.from_numpy((1 - share) * covariance + share * np.eye(len(centre)))
    variances, axes = (each.numpy() for each in torch.linalg.eigh(regular))
    return centre, product(axes / np.sqrt(variances), axes.T) / scale[:, None]


def product(one: Array, other: Array) -> Array:
    """The matrix product on the threads of torch: those of numpy contend with them, which takes ten times as long."""
    return (torch.from_numpy(one) @ torch.from_numpy(other)).numpy()


def usual_levels(z: Array, groups: GroupNumbers) -> tuple[float, float]:
    """The levels of the image and of its regions that at most NORMAL_RATE of new images, or of new groups, exceed.

    From (images, 2); see `usual_level`. One of the allowed exceedances is left to the regions, which give no reasons if
    only one is allowed.
    """
    whole = usual_level(z[:, 0], NORMAL_RATE, groups, spared=1)
    count = len(z) if groups is None else len(np.unique(groups))
    parts = float(z[:, 1].max()) if alarms_allowed(count, NORMAL_RATE) > 1 else NEVER
    return max(whole, SMALLEST_LEVEL), max(parts, SMALLEST_LEVEL)
