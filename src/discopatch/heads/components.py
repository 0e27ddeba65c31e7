"""The components head: one score from acquisition, content and places of an image."""

from collections.abc import Collection, Sequence
from copy import deepcopy
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from discopatch.calibration import Index, fold_numbers
from discopatch.encoders import N_TONES, Features, FeatureSizes, Kind
from discopatch.errors import WeightsError
from discopatch.heads.base import NO_SHIFTS, Array, GroupNumbers, Head, HeadOutput, ProbeShifts, Shapes
from discopatch.heads.basic import check_statistics
from discopatch.heads.examples import Examples
from discopatch.heads.gaussian import ShrunkGaussian
from discopatch.heads.memory import Neighbours
from discopatch.heads.modes import Mode
from discopatch.heads.parts import (
    COLUMNS,
    COMPONENTS,
    PART_NAMES,
    TAIL,
    WEIGHTS,
    fit_tails,
    join_parts,
    part_scale,
    rarity,
    significance_level,
)
from discopatch.heads.places import WINDOWS, PlaceFit, window_maxima
from discopatch.heads.trials import Trials, choose_parts
from discopatch.metrics import auroc

N_PARTS = len(PART_NAMES)
# Least shrinkage of embeddings, and of filters where scenes differ: new changes move them otherwise than the probes.
STEADY = 0.7
STEADY_TONES = 0.1  # least shrinkage of the filters over tones
PLAIN_GAIN = 0.05  # in AUROC, from which scenes count as different
N_MOVED = 100  # images by which that is found out


class ComponentsHead(Head):
    """Parts of three components, each by how rare its value is among normal images, joined by soft maxima.

    - acquisition: minus the mean logit; the distance over the statistics of early layers; the largest response to a
      known change, by matched filters over all statistics; where the network has an embedding of how images are
      degraded, which follows the statistics of all layers, the distance over it; the mean squared response above 0 to
      all known changes by filters over the tones. Where scenes differ, logits and early statistics vary with content
      and do not count: a filter over all statistics compares an image with images of similar content.
    - content: the distance over the statistics of deep layers; that from the nearest neighbours in pooled features.
    - place: the z-scores of places, averaged over squares of several sizes; the largest of each size. Where
      scenes differ, they do not count: any place may be unlike the others, and they hide changes of the whole image.

    A part whose features are missing is left out. The tail of each comes from normal images that it was not fitted on,
    fold by fold; so does the choice of the parts that count, from trials on the same images.

    layer_sizes: the number of statistics of each layer; without them all layers count as early.
    trials: changed versions of the images to fit, by which parts are chosen; without them all parts count.
    places: the comparison of places of the same images; without it places do not count.
    defects: statistics of examples of defects; what they have in common counts beside the components.
    """

    needs: tuple[Kind, ...] = ("logits", "statistics", "pooled", "places", "tones")
    parts: tuple[str, ...] = ()  # the names of the parts that count
    modes: tuple[Mode, ...] = ()  # of accepted images
    examples: Examples | None  # of defects that were not found
    first_deep: int = 0  # the first statistic of a deep layer
    cross_fitted: Array  # after a fit, (images, parts): their values by parts that were fitted without their fold
    components: dict[str, tuple[str, ...]]  # these, by component; a component without any is left out

    shapes: ClassVar[Shapes] = {
        "filters": ("probes", "statistics"),
        "mean": ("statistics",),  # of the statistics
        "tone_filters": ("changes", "tones"),
        "tone_mean": ("tones",),
        "deep_start": (),  # the first statistic of a deep layer
        "probe_centres": ("probes",),
        "probe_spreads": ("probes",),
        "counts": (N_PARTS,),  # 1 for a part that counts
        "tails": (N_PARTS, TAIL),
        "window_tails": (len(WINDOWS), TAIL),
        "component_centres": (len(COMPONENTS),),  # of the soft maximum of each component's parts
        "component_spreads": (len(COMPONENTS),),
        "significance": (),  # the z-score above which a component is significant
    }
    positive = ("probe_spreads", "component_spreads")
    # The last four are of modes: mean features, and by how much deviations from them are scaled.
    derived = (
        *("counted_tails", "own_centres", "own_spreads"),
        *("mode_logits", "mode_statistics", "mode_tones", "mode_scales"),
    )

    def __init__(
        self,
        *,
        layer_sizes: tuple[int, ...] = (),
        trials: Trials | None = None,
        places: PlaceFit | None = None,
        defects: NDArray[np.floating] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.defects, self.examples = defects, None
        self.layer_sizes, self.trials, self.place_fit, self.seed = layer_sizes, trials, places, seed
        self.early, self.deep, self.embedding = ShrunkGaussian(), ShrunkGaussian(), ShrunkGaussian()
        self.neighbours = Neighbours()

    def prepare(self, tensors: Collection[str]) -> None:
        super().prepare(tensors)
        if any(name.startswith("examples.") for name in tensors):
            self.examples = Examples()

    def derive(self) -> None:
        """Checks that the parts that count are there; features of other parts are not needed."""
        self.parts = tuple(part for part, counts in zip(PART_NAMES, self.counts.tolist(), strict=True) if counts > 0)
        held = {
            "early": len(self.early.mean),
            "probes": len(self.filters),
            "embedding": len(self.embedding.mean),
            "deep": len(self.deep.mean),
            "neighbours": self.neighbours.bank.numel(),
            "tones": len(self.tone_filters) * (len(self.tone_mean) == N_TONES),
        }
        if not self.parts or any(held.get(part) == 0 for part in self.parts):
            raise WeightsError(f"it has the parts {', '.join(self.parts) or 'of nothing'}, and not their values")
        self.first_deep = int(self.deep_start)
        ends = len(self.early.mean), self.first_deep + len(self.deep.mean), len(self.embedding.mean)
        if self.first_deep < 0 or max(ends) > len(self.mean):
            raise WeightsError("it has more statistics of early and deep layers or the embedding than of all")
        if not bool((torch.cat((self.tails, self.window_tails))[:, 2:] > 0).all()):
            raise WeightsError("it has a tail whose slopes, scale or shape are not above 0")
        own = {name: tuple(part for part in parts if part in self.parts) for name, parts in COMPONENTS.items()}
        self.components = {name: parts for name, parts in own.items() if parts}
        self.counted_tails = self.tails[self.counts > 0]
        own_scales = torch.tensor([name in self.components for name in COMPONENTS])
        self.own_centres, self.own_spreads = self.component_centres[own_scales], self.component_spreads[own_scales]
        usual = float(self.tails[COLUMNS["logit"], 0])
        self.mode_logits = tensor([-float(one.logit) - usual for one in self.modes])
        self.mode_statistics, self.mode_tones = (
            torch.cat([mean[None, :][:0], *(tensor(getattr(one, name))[None] for one in self.modes)])
            for name, mean in (("statistics", self.mean), ("tones", self.tone_mean))
        )
        # The difference of two images varies twice as much as that of an image and the mean of many.
        self.mode_scales = tensor([1.0 if one.source.is_update else 0.5**0.5 for one in self.modes])
        self.component_names, self.significance_level = tuple(self.components), float(self.significance)
        used = {"pooled": "neighbours" in self.parts, **{each: each in self.parts for each in ("places", "tones")}}
        self.needs = tuple(kind for kind in type(self).needs if used.get(kind, True))

    def check_sizes(self, sizes: FeatureSizes) -> None:
        check_statistics(len(self.mean), sizes)
        if self.examples is not None and len(self.examples.mean) != len(self.mean):
            raise WeightsError("its examples do not belong to its statistics")
        pairs = {
            "logit": (True, sizes.logits),
            "neighbours": (self.neighbours.bank.shape[1], sizes.pooled),
            "places": (True, sizes.places > 0),
        }
        if wrong := [part for part, (fitted, given) in pairs.items() if part in self.parts and fitted != given]:
            raise WeightsError(f"its parts {', '.join(wrong)} do not belong to this network's features")

    def accept(self, modes: Sequence[Mode]) -> Self:
        """The same head with these modes, in place of those that it had."""
        found = deepcopy(self)
        found.modes = tuple(modes)
        if "neighbours" in self.parts:
            found.neighbours.accepted = torch.cat([self.neighbours.bank[:0], *(tensor(one.pooled) for one in modes)])
        found.derive()
        return found

    def fit(self, features: Features, shifts: ProbeShifts = NO_SHIFTS, *, groups: GroupNumbers = None) -> Self:
        features, fold = features.without_places(), fold_numbers(len(features.logits), groups)
        similar = self._scenes_differ(features, shifts, fold)
        there = {
            "logit": features.logits.shape[1] and not similar,
            "early": not similar,
            "probes": len(shifts),
            "embedding": 0 < sum(self.layer_sizes) < features.statistics.shape[1],
            "deep": len(self.layer_sizes) > 1,
            "neighbours": features.pooled.shape[1],
            "tones": features.tones.shape[1] and len(shifts),
            "places": self.place_fit is not None and not similar,
        }
        offered = counted = tuple(part for part in PART_NAMES if there[part])
        normal, changed = self._held_out(features, shifts, offered, fold, similar=similar)
        probe_centres, probe_spreads = part_scale(normal[:, N_PARTS:])
        if shifts:
            for values in (normal, changed):
                values[:, COLUMNS["probes"]] = ((values[:, N_PARTS:] - probe_centres) / probe_spreads).max(1)
        window_tails = fit_tails(np.empty((0, len(WINDOWS))) if self.place_fit is None else self.place_fit.maxima)
        if self.place_fit is not None:
            normal[self.place_fit.rows, COLUMNS["places"]] = joined_windows(self.place_fit.maxima, window_tails)
            if self.trials is not None:
                changed[:, COLUMNS["places"]] = joined_windows(self.trials.maxima, window_tails)
        tails = fit_tails(normal[:, :N_PARTS])
        rare, rare_changed = (
            rarity(torch.from_numpy(values[:, :N_PARTS]), torch.from_numpy(tails)).numpy()
            for values in (normal, changed)
        )
        if self.trials is not None:
            columns = [COLUMNS[part] for part in offered]
            compared = ~np.isnan(rare[:, columns]).any(1)
            counted = choose_parts(rare[compared][:, columns], rare_changed[:, columns], self.trials, offered)
        head = self._without_scale(features, shifts, counted, similar=similar)
        head.cross_fitted = normal[:, :N_PARTS]
        joined = np.full((len(rare), len(COMPONENTS)), np.nan)
        own = [any(part in counted for part in parts) for parts in COMPONENTS.values()]
        joined[:, own] = join_parts(torch.from_numpy(rare[:, [COLUMNS[part] for part in counted]]), counted)[1].numpy()
        component_centres, component_spreads = part_scale(joined)
        head.hold(
            probe_centres=probe_centres[: len(head.probes)],
            probe_spreads=probe_spreads[: len(head.probes)],
            tails=tails,
            window_tails=window_tails,
            component_centres=component_centres,
            component_spreads=component_spreads,
            significance=significance_level((joined - component_centres) / component_spreads, groups),
        )
        if self.defects is not None:
            head.examples = Examples.fit(features.statistics, self.defects, fold)
        head.derive()
        return head

    def _scenes_differ(self, features: Features, shifts: ProbeShifts, fold: Index) -> bool:
        """Whether responses find known changes plainly better than the distance over early statistics does.

        Half of the images and of the shifts are fitted. Of the other images, some are moved by the other shifts.
        """
        if min(map(len, shifts.values()), default=0) < 2:
            return False
        gains, size = [], features.statistics.shape[1]
        for half in (0, 1):
            inside = fold % 2 == half
            own = {name: moved[half::2] for name, moved in shifts.items()}
            others = torch.from_numpy(np.concatenate([moved[1 - half :: 2] for moved in shifts.values()]))[:, :size]
            fitted, new = features.select(inside), torch.from_numpy(features.statistics[~inside][:N_MOVED])
            before = self._without_scale(fitted, own, ("early",), similar=False).early_distance
            after = self._without_scale(fitted, own, ("probes",), similar=True).mean_response
            without, by_responses = (
                np.mean([auroc(usual, value(new + each)) for each in others])
                for value, usual in ((before, before(new)), (after, after(new)))
            )
            gains.append(by_responses - without)
        return bool(np.mean(gains) > PLAIN_GAIN)

    def _held_out(
        self, features: Features, shifts: ProbeShifts, parts: tuple[str, ...], fold: Index, *, similar: bool
    ) -> tuple[Array, Array]:
        """Values of the images and of the trials by parts that were fitted without their fold, as of `_measure`."""
        tried = np.empty(0, np.intp) if self.trials is None else self.trials.rows
        normal, changed = (np.full((count, N_PARTS + len(shifts)), np.nan) for count in (len(fold), len(tried)))
        for number in np.unique(fold):
            inside = fold == number
            part = self._without_scale(features.select(~inside), shifts, parts, similar=similar)
            normal[inside] = part._measure(features.select(inside))
            if self.trials is not None:
                changed[inside[tried]] = part._measure(self.trials.features.select(inside[tried]))
        return normal, changed

    def _without_scale(self, features: Features, shifts: ProbeShifts, parts: tuple[str, ...], *, similar: bool) -> Self:
        """A head with these parts, without their tails; `similar` steadies the filters against other content."""
        statistics, seed, size = features.statistics, self.seed, features.statistics.shape[1]
        early = sum(self.layer_sizes[: (len(self.layer_sizes) + 1) // 2]) or size
        head = type(self)(layer_sizes=self.layer_sizes, seed=seed)
        head.parts, head.probes = parts, tuple(shifts) if "probes" in parts else ()
        head.early = ShrunkGaussian.fit(statistics[:, :early]) if "early" in parts else ShrunkGaussian.empty()
        embedding = sum(self.layer_sizes) or size  # where it begins
        deep, embedded = statistics[:, early:embedding], statistics[:, embedding:]
        head.deep = ShrunkGaussian.fit(deep) if "deep" in parts else ShrunkGaussian.empty()
        head.embedding = ShrunkGaussian.fit(embedded, least=STEADY) if "embedding" in parts else ShrunkGaussian.empty()
        head.neighbours = Neighbours.fit(features.pooled, seed=seed) if "neighbours" in parts else Neighbours.empty()
        filters = np.empty((0, size))
        if head.probes:
            own = {name: moved[:, :size] for name, moved in shifts.items()}
            filters = ShrunkGaussian.fit(statistics, least=STEADY if similar else 0.0).matched_filters(own)
        tones, tone_filters = features.tones, np.empty((0, features.tones.shape[1]))
        if "tones" in parts:
            own = {name: moved[:, size:] for name, moved in shifts.items()}
            tone_filters = ShrunkGaussian.fit(tones, least=STEADY_TONES).matched_filters(own)
        counts = [part in parts for part in PART_NAMES]
        head.first_deep = early
        means = {"mean": statistics.mean(0, dtype=np.float64), "tone_mean": tones.mean(0, dtype=np.float64)}
        return head.hold(filters=filters, tone_filters=tone_filters, deep_start=early, counts=counts, **means)

    @torch.inference_mode()
    def _measure(self, features: Features) -> Array:
        """(images, parts + probes): the values of parts except probes and places, then the responses to the probes."""
        given = self.tensors(features.without_places())
        values = self.values(given["logits"], given["statistics"], given["pooled"], None, given["tones"])
        found = np.full((len(features.logits), N_PARTS + len(self.probes)), np.nan)
        found[:, N_PARTS:] = values.pop("probes", torch.empty(len(found), 0)).cpu().numpy()
        for part, value in values.items():
            found[:, COLUMNS[part]] = value.cpu().numpy()
        return found

    def values(
        self, logits: Tensor, statistics: Tensor, pooled: Tensor | None, places: Tensor | None, tones: Tensor | None
    ) -> dict[str, Tensor]:
        """The parts that count, (B,), and the responses to the probes (B, probes); places only with their z-scores."""
        found = {}
        if "logit" in self.parts:
            found["logit"] = -logits.double().mean(1)
        if "early" in self.parts:
            found["early"] = self.early_distance(statistics)
        if "probes" in self.parts:
            found["probes"] = self.responses(statistics)
        if "embedding" in self.parts:
            found["embedding"] = self.embedding.log_distance(statistics[:, -len(self.embedding.mean) :])
        if "deep" in self.parts:
            found["deep"] = self.deep.log_distance(
                statistics[:, self.first_deep : self.first_deep + len(self.deep.mean)]
            )
        if "neighbours" in self.parts and pooled is not None:
            found["neighbours"] = self.neighbours(pooled)
        if "tones" in self.parts and tones is not None:
            found["tones"] = ((tones.double() - self.tone_mean) @ self.tone_filters.T).clamp(min=0).square().mean(1)
        if self.examples is not None:
            found["examples"] = self.examples(statistics)
        if "places" in self.parts and places is not None:
            found["places"] = rarity(window_maxima(places).double(), self.window_tails).sum(1)
        return found

    @torch.inference_mode()
    def likeness(self, features: Features) -> float | None:
        if self.examples is None:
            return None
        return float(self.examples.z(self.tensors(features)["statistics"])[0])

    def early_distance(self, statistics: Tensor) -> Tensor:
        """(B,): the logarithm of the distance over early statistics."""
        return self.early.log_distance(statistics[:, : len(self.early.mean)])

    def mean_response(self, statistics: Tensor) -> Tensor:
        """(B,): the mean squared response above 0."""
        return self.responses(statistics).clamp(min=0).square().mean(1)

    def responses(self, statistics: Tensor) -> Tensor:
        """(B, probes): the responses of the matched filters."""
        return (statistics.double() - self.mean) @ self.filters.T

    def forward(self, *features: Tensor, **named: Any) -> Tensor:
        """Features, as `output` takes them, to scores (B,) in float64."""
        return self.output(*features, **named).score

    def output(
        self,
        logits: Tensor,
        statistics: Tensor,
        pooled: Tensor | None = None,
        places: Tensor | None = None,
        tones: Tensor | None = None,
    ) -> HeadOutput[Tensor]:
        """The whole output; kinds of features that are not needed may be missing or empty."""
        values = self.values(logits, statistics, pooled, places, tones)
        shared = {part: values[part] for part in ("neighbours", "places") if part in values}
        score, joined = self._join(values)
        if count := len(self.mode_scales):
            moved = self.values(
                (logits.double()[:, None] + self.mode_logits[:, None]).flatten(0, 1),
                self._moved(statistics, self.mode_statistics, self.mean),
                None,
                None,
                None if tones is None else self._moved(tones, self.mode_tones, self.tone_mean),
            )
            moved |= {part: value[:, None].expand(-1, count).flatten() for part, value in shared.items()}
            scores, others = self._join(moved)
            scores = torch.cat((score[:, None], scores.view(-1, count)), 1)
            others = torch.cat((joined[:, None], others.view(-1, count, joined.shape[1])), 1)
            nearest = scores.argmin(1, keepdim=True)
            score = scores.gather(1, nearest)[:, 0]
            joined = others.gather(1, nearest[..., None].expand(-1, 1, joined.shape[1]))[:, 0]
        return HeadOutput(score, (joined - self.own_centres) / self.own_spreads)

    def _join(self, values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The values of the parts to the score and the values of components."""
        if "probes" in values:
            values["probes"] = ((values["probes"] - self.probe_centres) / self.probe_spreads).amax(1)
        rare = rarity(torch.stack([values[part] for part in self.parts], 1), self.counted_tails)
        score, joined = join_parts(rare, self.parts)
        if self.examples is not None:
            score = self.examples.join(score, values["examples"], sum(WEIGHTS[name] for name in self.components))
        return score, joined

    def _moved(self, given: Tensor, means: Tensor, mean: Tensor) -> Tensor:
        """(B, d) to (B x modes, d): each with its deviation from a mode in place of that from the mean."""
        return (mean + (given.double()[:, None] - means) * self.mode_scales[:, None]).flatten(0, 1)


def tensor(values: ArrayLike) -> Tensor:
    return torch.from_numpy(np.array(values, np.float64))


def joined_windows(maxima: Array, tails: Array) -> Array:
    """The largest z-scores (images, windows) as one value of each image: how rare they are, added up."""
    return rarity(torch.from_numpy(maxima), torch.from_numpy(tails)).sum(1).numpy()
