"""Audit of normal images before a fit: which of them the others do not support, copies, odd files, groups and drift."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from discopatch.calibration import Index, check_enough, p_values, select
from discopatch.encoders import (
    AnyWeights,
    Encoder,
    load_networks,
    make_encoders,
    pack_maps,
    resolve_device,
    stream_on_cores,
    unpack_maps,
)
from discopatch.explain.anomaly_map import enlarge
from discopatch.fitting import (
    MAX_IMAGES,
    MIN_IMAGES,
    N_PROBED,
    Split,
    compare_places,
    one_shape,
    possible_transforms,
    read_maps,
)
from discopatch.groups import (
    TWO_KINDS,
    Grouped,
    comparable_images,
    find_near_copies,
    group_numbers,
    pairwise_distances,
    two_kinds,
)
from discopatch.heads import ComponentsHead, measure_shifts
from discopatch.heads.base import Array
from discopatch.heads.components import joined_windows
from discopatch.heads.parts import COLUMNS, RARITIES, fit_tails, join_parts, part_scale, rarity
from discopatch.heads.places import PlaceFit, maxima_of
from discopatch.heads.probes import central
from discopatch.images import (
    DEFAULT_LIMITS,
    DEFAULT_WORKERS,
    Limits,
    Pixels,
    Refusal,
    RefusalReport,
    Source,
    Workers,
    list_source,
)
from discopatch.normal_images import NEARER, NormalImages, Progress, check_distinct, find_drift
from discopatch.pretrained import DEFAULT_WEIGHTS
from discopatch.results import Explanation, Prediction, Predictions, component_scores, explain_components

SIDE = 256  # pixels along the short side at which images are compared
TRIMMED = 0.1  # share of the highest scores that are left out where tails are fitted: they may be the anomalous ones
FALSE_NAMES = 0.2  # about the largest share of named images that are normal, and of clean folders in which one is named
MIDDLE, UPPER = 0.5, 0.9  # quantiles of scores, above the second of which they are extrapolated
USUAL_SHARE = 0.9  # of images that are alike, from which on the others are odd
N_AXES = 8  # principal axes along which groups are looked for
MAX_CLOSE_UPS, MAX_GROUPS, MAX_SHOWN = 60, 24, 8  # pictures on the page: unsupported images; groups, and images of each


@dataclass(frozen=True, eq=False)
class Audit:
    """What stands out among normal images; all images are named as the source names them."""

    predictions: Predictions  # of all images in order: `is_ood` where the others do not support it, broken ones' errors
    exact_copies: tuple[tuple[str, ...], ...]
    near_copies: tuple[tuple[str, ...], ...]  # and bursts
    groups: tuple[tuple[str, ...], ...]  # that look different from all others, the most different first
    odd: Mapping[str, str]  # by name, how size, shape, format or mode differ from nearly all others
    drifts: tuple[str, ...]
    pictures: dict[str, Pixels] = field(default_factory=dict, repr=False)  # of the first images of each finding
    close_ups: list[Explanation] = field(default_factory=list, repr=False)  # of the first unsupported images

    @property
    def unsupported(self) -> list[Prediction]:
        """The images that the others do not support, most unusual first."""
        return sorted((each for each in self.predictions if each.is_ood), key=lambda each: -(each.score or 0))

    @property
    def broken(self) -> list[Prediction]:
        return [each for each in self.predictions if each.error is not None]

    @property
    def exclude(self) -> list[str]:
        """Names to leave out of a fit: unsupported and broken images, and all but one of exact copies."""
        copies = [name for names in self.exact_copies for name in names[1:]]
        return list(dict.fromkeys([*(each.name for each in (*self.unsupported, *self.broken)), *copies]))

    @property
    def counts(self) -> dict[str, int]:
        return {
            "not supported by the others": len(self.unsupported),
            "exact copies of others": sum(len(names) - 1 for names in self.exact_copies),
            "near-copies and bursts": sum(map(len, self.near_copies)),
            "in groups that look different": len({name for names in self.groups for name in names}),
            "odd size, shape, format or mode": len(self.odd),
            "cannot be read": len(self.broken),
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "images": len(self.predictions),
            "unsupported": [
                {"name": each.name, "score": each.score, "p_value": each.p_value} for each in self.unsupported
            ],
            "broken": [{"name": each.name, "error": each.error} for each in self.broken],
            **{name: [*map(list, getattr(self, name))] for name in ("exact_copies", "near_copies", "groups")},
            "odd": dict(self.odd),
            "drifts": list(self.drifts),
            "exclude": self.exclude,
        }


@dataclass(slots=True)
class AllRefusals(RefusalReport):
    """A report that keeps all refusals, in order."""

    kept: list[Refusal] = field(default_factory=list)

    def add(self, refusal: Refusal) -> None:
        self.kept.append(refusal)
        RefusalReport.add(self, refusal)


def audit(
    images: object,
    *,
    weights: AnyWeights | Sequence[AnyWeights] = DEFAULT_WEIGHTS,
    device: str = "auto",
    seed: int = 0,
    workers: Workers = DEFAULT_WORKERS,
    progress: Progress | None = None,
) -> Audit:
    """What stands out among normal images: which of them the others do not support, copies, broken and odd files.

    Each image is scored by a head that was fitted on other images: neither it nor its near-copies are among them. How
    rare a score is follows from the bulk of the scores, so that a few anomalous images do not hide each other. Of the
    images that are not supported at most about a fifth are normal (Benjamini and Hochberg, 1995); in most folders
    without anomalous images none is named.

    Parameters
    ----------
    images
        Normal images, as in `Detector.fit`: 30 that can be read, or more. Of more than 20,000 so many are drawn evenly.
    weights, device, seed, workers, progress
        As in `Detector` and `Detector.fit`.

    Examples
    --------
    >>> found = audit("photos/")
    >>> Detector().fit("photos/", exclude=found.exclude)
    """
    networks, limits = load_networks(weights), DEFAULT_LIMITS
    source = list_source(images).repeatable(limits).draw(MAX_IMAGES)
    transform = possible_transforms(source, networks.transform, SIDE, ignore=None, limits=limits)[0]
    same: dict[str, Any] = {"device": resolve_device(device), "limits": limits, "transform": transform}
    encoder = make_encoders(networks, kinds=ComponentsHead.needs, compare=pack_maps, **same)
    refusals = AllRefusals()
    normal = NormalImages.collect(encoder, source, refusals, workers=workers, progress=progress, seed=seed)
    check_enough(len(normal), MIN_IMAGES, refusals.summary() if refusals else "")
    check_distinct(normal.digests, normal.names, needed=MIN_IMAGES)
    own = group_numbers(normal.digests)  # the number of each image among those that differ
    rows = np.unique(own, return_index=True)[1]
    features, near = normal.features.select(rows), near_copies(normal.features.statistics[rows])
    fitted = CrossFit.make(encoder, normal, rows, near, seed=seed)
    score, z = fitted.score()
    p = tail_p_values(score)
    named = np.isin(np.arange(len(p)), select(p, FALSE_NAMES))

    predictions = list[Prediction]()
    for name, row in zip(normal.names, own.tolist(), strict=True):
        components = component_scores(fitted.head.component_names, z[row].tolist(), fitted.head.significance_level)
        values = float(score[row]), float(p[row]), bool(named[row])
        predictions.append(Prediction(name, *values, None, components))
    for position, each in zip(np.setdiff1d(range(normal.passed), normal.positions), refusals.kept, strict=True):
        predictions.insert(position, Prediction(each.name, None, None, None, each.error))

    odd, order = read_headers(source, normal, limits)
    drifts = [find_drift(features, ComponentsHead(), near, seed=seed)]
    if (in_time := order[np.isin(order, rows)]).size and (np.diff(in_time) < 0).any():
        chosen = np.searchsorted(rows, in_time)
        drifts.append(
            find_drift(features.select(chosen), ComponentsHead(), near[chosen], seed=seed, order="in order of time")
        )
    found = Audit(
        predictions=Predictions(predictions),
        exact_copies=named_groups(own, normal.names),
        near_copies=named_groups(near, [normal.names[row] for row in rows]),
        groups=tuple(tuple(normal.names[row] for row in rows[each]) for each in kinds_apart(features.statistics)),
        odd=odd,
        drifts=tuple(filter(None, drifts)),
    )
    together = (found.exact_copies, found.near_copies, found.groups)
    shown = [names[:MAX_SHOWN] for each in together for names in each[:MAX_GROUPS]]
    explained = {each.name: each for each in found.unsupported[:MAX_CLOSE_UPS]}
    wanted = {name for names in (*shown, explained, list(odd)[:MAX_GROUPS]) for name in names}
    items = [item for item in source.items(limits) if item.name in wanted]
    by_name = dict(zip(normal.names, own.tolist(), strict=True))
    for pair in encoder.extract(items, workers=workers):
        if isinstance(pair, Refusal):
            continue
        image, extracted = pair
        found.pictures[image.name] = image.pixels
        if (prediction := explained.pop(image.name, None)) is not None:
            with torch.inference_mode():
                places = fitted.places.compare(by_name[image.name])(unpack_maps(torch.from_numpy(extracted.places)))[0]
            heat = enlarge(places.numpy(), fitted.places.model.level.item(), image.pixels.shape[:2])
            texts = explain_components(prediction, (), heat)
            found.close_ups.append(Explanation(prediction, image.pixels, heat, (), texts, image.size))
    found.close_ups.sort(key=lambda each: -(each.prediction.score or 0))
    return found


class CrossFit(NamedTuple):
    """A head of different images, with the values of each by parts that were fitted without its fold."""

    head: ComponentsHead
    places: PlaceFit

    @classmethod
    def make(cls, encoder: Encoder, normal: NormalImages, rows: Index, near: Index, *, seed: int) -> Self:
        """Near-copies are in one fold, unless nearly all images are near-copies."""
        groups = near if len(np.unique(near)) >= MIN_IMAGES else np.arange(len(rows))
        numbers = np.zeros(len(normal), np.intp)
        numbers[rows] = groups
        split = Split(rows, np.empty(0, np.intp), FALSE_NAMES, Grouped(numbers, "auto", numbers), None)
        kept = normal.pixels.among(rows)
        pixels = one_shape(list(normal.pixels.read(np.random.default_rng(seed).permutation(kept)[:N_PROBED])))
        shifts = measure_shifts(encoder.extract_pixels, central(pixels), seed=seed)
        places, compared = compare_places(encoder, normal, split, seed=seed), np.searchsorted(rows, kept)
        pairs = zip(compared, read_maps(encoder, normal, kept), strict=True)
        maxima = stream_on_cores(lambda pair: maxima_of(pair[1][None].numpy(), places.compare(pair[0])), pairs)
        places = places._replace(rows=compared, maxima=np.concatenate(list(maxima)))
        head = ComponentsHead(layer_sizes=encoder.layer_sizes, places=places, seed=seed)
        return cls(head.fit(normal.features.select(rows), shifts, groups=groups), places)

    def score(self) -> tuple[Array, Array]:
        """The scores (images,) and the z-scores of components (images, components).

        The tails of parts are fitted twice, the second time without the highest scores of the first.
        """
        parts, values, usual = self.head.parts, self.head.cross_fitted, np.ones(len(self.head.cross_fitted), bool)
        for _ in range(2):
            if "places" in parts:
                window_tails = fit_tails(self.places.maxima[usual[self.places.rows]])
                values[self.places.rows, COLUMNS["places"]] = joined_windows(self.places.maxima, window_tails)
            own = values[:, [COLUMNS[part] for part in parts]]
            rare = rarity(torch.from_numpy(own), torch.from_numpy(fit_tails(own[usual])))
            rare = rare.nan_to_num(RARITIES[1])  # places of images that are not compared
            score, joined = (each.numpy() for each in join_parts(rare, parts))
            usual = score <= np.quantile(score, 1 - TRIMMED)
        centres, spreads = part_scale(joined)
        return score, (joined - centres) / spreads


def tail_p_values(scores: Array) -> Array:
    """How rare each score is: by its rank, and above a high quantile by an exponential tail from the bulk of scores."""
    middle, upper = np.quantile(scores, [MIDDLE, UPPER])
    scale = max(float(upper - middle), 1e-9) / np.log((1 - MIDDLE) / (1 - UPPER))
    beyond = (1 - UPPER) * np.exp(-np.maximum(scores - upper, 0) / scale)
    return np.where(scores > upper, beyond, p_values(scores, scores))


def near_copies(statistics: NDArray[np.floating]) -> Index:
    """The groups of near-copies among all images, or among those that can be compared; others are groups of their own.

    Where few images are near-copies, those are that are much nearer to each other than images usually are.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    numbers, compared = np.arange(len(statistics)), comparable_images(len(statistics))
    found, _ = find_near_copies(statistics[compared])
    if len(np.unique(found)) == len(compared):
        distances = pairwise_distances(statistics[compared])
        np.fill_diagonal(distances, np.inf)
        linked = distances < NEARER * np.median(distances.min(1))
        found = connected_components(csr_array(linked), directed=False)[1]
    numbers[compared] = len(numbers) + found
    return np.unique(numbers, return_inverse=True)[1]


def kinds_apart(statistics: NDArray[np.floating]) -> list[Index]:
    """The smaller of two kinds of images along each principal axis that has two, those farthest apart first."""
    values = np.asarray(statistics, np.float64)
    standard = (values - values.mean(0)) / np.maximum(values.std(0), 1e-9)
    found = []
    for axis in np.linalg.svd(standard, full_matrices=False)[0].T[:N_AXES]:
        order = np.argsort(axis)
        cut, separation = two_kinds(axis[order])
        if separation >= TWO_KINDS:
            found.append((separation, np.sort(min(order[:cut], order[cut:], key=len))))
    return [rows for _, rows in sorted(found, key=lambda each: -each[0])]


def named_groups(numbers: Index, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The names in each group of several images, largest groups first."""
    found = defaultdict[int, list[str]](list)
    for number, name in zip(numbers.tolist(), names, strict=True):
        found[number].append(name)
    return tuple(sorted((tuple(each) for each in found.values() if len(each) > 1), key=len, reverse=True))


def read_headers(source: Source, normal: NormalImages, limits: Limits) -> tuple[dict[str, str], Index]:
    """How images differ from nearly all others in size, shape, format or mode; and all rows in order of time.

    Time is the date in EXIF if all images have one, or else that of the files' last change.
    """
    accepted, looks, times = set(normal.positions.tolist()), list[dict[str, str]](), list[tuple[str, int]]()
    for item in (each for position, each in enumerate(source.items(limits)) if position in accepted):
        kind, mode, (height, width), date = item.header(limits)
        size, shape = f"{width} x {height}", f"{width / height:.2f}"
        looks.append({"size": size, "shape": shape, "format": kind, "mode": mode})
        times.append((date, item.content.stat().st_mtime_ns if isinstance(item.content, Path) else 0))
    dated = all(date for date, _ in times)
    order = np.array(sorted(range(len(times)), key=lambda row: times[row][not dated]), np.intp)
    odd = defaultdict[str, list[str]](list)
    for kind in looks[0]:
        usual, count = Counter(each[kind] for each in looks).most_common(1)[0]
        if count >= USUAL_SHARE * len(looks):
            for name, each in zip(normal.names, looks, strict=True):
                if each[kind] != usual and not (kind == "shape" and odd[name]):
                    odd[name].append(f"{kind} {each[kind]}, others {usual}")
    return {name: "; ".join(texts) for name, texts in odd.items() if texts}, order
