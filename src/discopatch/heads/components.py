"""The components head: one score from acquisition, content and places of an image."""

from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from discopatch.calibration import Index, fold_numbers
from discopatch.encoders import Features, FeatureSizes, Kind, PlaceSample
from discopatch.errors import WeightsError
from discopatch.heads.base import NO_SHIFTS, Array, GroupNumbers, Head, HeadOutput, ProbeShifts, Shapes
from discopatch.heads.basic import check_statistics
from discopatch.heads.gaussian import ShrunkGaussian
from discopatch.heads.memory import LocalMemory, Neighbours, mean_of_farthest
from discopatch.heads.parts import (
    COLUMNS,
    COMPONENTS,
    PART_NAMES,
    component_values,
    part_scale,
    significance_level,
    soft_maximum,
    usual_distances,
)
from discopatch.heads.trials import Trials, choose_parts

N_REMEMBERED = 500  # images whose places are remembered
MAX_COMPARED = 200  # images on which the places are standardised
N_PARTS = len(PART_NAMES)


class ComponentsHead(Head):
    """The soft maximum of parts that belong to three components, each a z-score over normal images.

    - acquisition: minus the mean logit; the distance over the statistics of early layers; the largest response to a
      known change, by matched filters over all statistics.
    - content: the distance over the statistics of deep layers; that from the nearest neighbours in pooled features.
    - place: the local memory over places.

    A part whose features are missing is left out. Centre and spread of each come from normal images that it was not
    fitted on, fold by fold; so does the choice of the parts that count, from trials on the same images.

    layer_sizes: the number of statistics of each layer; without them all layers count as early.
    trials: changed versions of the images to fit, by which parts are chosen; without them all parts count.
    places: those of some images, in place of the features' own, which are remembered of at most `N_REMEMBERED`.
    """

    needs: tuple[Kind, ...] = ("logits", "statistics", "pooled", "places")
    parts: tuple[str, ...] = ()  # the names of the parts that count
    components: dict[str, tuple[str, ...]]  # these, by component; a component without any is left out

    shapes: ClassVar[Shapes] = {
        "filters": ("probes", "statistics"),
        "mean": ("statistics",),  # of the statistics
        "probe_centres": ("probes",),
        "probe_spreads": ("probes",),
        "counts": (N_PARTS,),  # 1 for a part that counts
        "centres": (N_PARTS,),
        "spreads": (N_PARTS,),
        "component_centres": (len(COMPONENTS),),  # of the soft maximum of each component's parts
        "component_spreads": (len(COMPONENTS),),
        "significance": (),  # the z-score above which a component is significant
        "place_centres": ("positions",),  # of the distances at each place
        "place_spreads": ("positions",),
        "place_level": (),  # the z-score above which a place is anomalous
    }
    positive = ("probe_spreads", "spreads", "component_spreads", "place_spreads")

    def __init__(
        self,
        *,
        layer_sizes: tuple[int, ...] = (),
        trials: Trials | None = None,
        places: PlaceSample | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.layer_sizes, self.trials, self.place_sample, self.seed = layer_sizes, trials, places, seed
        self.early, self.deep = ShrunkGaussian(), ShrunkGaussian()
        self.neighbours, self.memory = Neighbours(), LocalMemory()

    def derive(self) -> None:
        """Checks that the parts that count are there; features of other parts are not needed."""
        self.parts = tuple(part for part, counts in zip(PART_NAMES, self.counts.tolist(), strict=True) if counts > 0)
        held = {
            "early": len(self.early.mean),
            "probes": len(self.filters),
            "deep": len(self.deep.mean),
            "neighbours": self.neighbours.bank.numel(),
            "places": self.memory.vectors.numel(),
        }
        if not self.parts or any(held.get(part) == 0 for part in self.parts):
            raise WeightsError(f"it has the parts {', '.join(self.parts) or 'of nothing'}, and not their values")
        if len(self.early.mean) + len(self.deep.mean) > len(self.mean):
            raise WeightsError("it has more statistics of early and deep layers than of all")
        positions = len(self.place_centres) if "places" in self.parts else 0
        self.place_side = round(positions**0.5)
        if self.place_side**2 != positions:
            raise WeightsError(f"its {positions} places are no square")
        own = {name: tuple(part for part in parts if part in self.parts) for name, parts in COMPONENTS.items()}
        self.components = {name: parts for name, parts in own.items() if parts}
        self.component_names, self.significance_level = tuple(self.components), float(self.significance)
        used = {"pooled": "neighbours" in self.parts, "places": "places" in self.parts}
        self.needs = tuple(kind for kind in type(self).needs if used.get(kind, True))

    def check_sizes(self, sizes: FeatureSizes) -> None:
        check_statistics(len(self.mean), sizes)
        pairs = {
            "logit": (True, sizes.logits),
            "neighbours": (self.neighbours.bank.shape[1], sizes.pooled),
            "places": (self.memory.vectors.shape[1], sizes.places),
        }
        if wrong := [part for part, (fitted, given) in pairs.items() if part in self.parts and fitted != given]:
            raise WeightsError(f"its parts {', '.join(wrong)} do not belong to this network's features")

    def fit(self, features: Features, shifts: ProbeShifts = NO_SHIFTS, *, groups: GroupNumbers = None) -> Self:
        places, fold = self.place_sample, fold_numbers(len(features.logits), groups)
        if places is None:
            places = PlaceSample.evenly(features.places, most=N_REMEMBERED)
        features = features.without_places()
        there = {
            "logit": features.logits.shape[1],
            "probes": len(shifts),
            "deep": len(self.layer_sizes) > 1,
            "neighbours": features.pooled.shape[1],
            "places": places.values.size and len(np.unique(fold[places.rows])) > 1,  # on both sides of every fold
        }
        offered = counted = tuple(part for part in PART_NAMES if there.get(part, True))
        normal, changed, distances = self._held_out(features, places, shifts, offered, fold)
        probe_centres, probe_spreads = part_scale(normal[:, N_PARTS:])
        if shifts:
            for values in (normal, changed):
                values[:, COLUMNS["probes"]] = ((values[:, N_PARTS:] - probe_centres) / probe_spreads).max(1)
        centres, spreads = part_scale(normal[:, :N_PARTS])
        z, z_changed = ((values[:, :N_PARTS] - centres) / spreads for values in (normal, changed))
        if self.trials is not None:
            columns = [COLUMNS[part] for part in offered]
            compared = ~np.isnan(z[:, columns]).any(1)
            must_earn = np.isin(offered, COMPONENTS["place"])
            chosen = choose_parts(z[compared][:, columns], z_changed[:, columns], self.trials, must_earn=must_earn)
            counted = tuple(part for part, kept in zip(offered, chosen, strict=True) if kept)
        head = self._without_scale(features, places, shifts, counted)
        joined = component_values(z, counted)
        component_centres, component_spreads = part_scale(joined)
        unused = [part not in counted for part in PART_NAMES]
        head.hold(
            probe_centres=probe_centres[: len(head.probes)],
            probe_spreads=probe_spreads[: len(head.probes)],
            centres=np.where(unused, 0, centres),
            spreads=np.where(unused, 1, spreads),
            component_centres=component_centres,
            component_spreads=component_spreads,
            significance=significance_level((joined - component_centres) / component_spreads, groups),
            **usual_distances(distances if "places" in counted else distances[:, :0]),
        )
        head.derive()
        return head

    def _held_out(
        self, features: Features, places: PlaceSample, shifts: ProbeShifts, parts: tuple[str, ...], fold: Index
    ) -> tuple[Array, Array, Array]:
        """Values of the images and of the trials by parts that were fitted without their fold, as `_measure` has them.

        The third are the distances (images, positions) of the places of some images from those of others.
        """
        compared = np.random.default_rng([self.seed, 13]).permutation(len(places.rows))[:MAX_COMPARED]
        some = places.select(compared)
        tried = np.empty(0, np.intp) if self.trials is None else self.trials.rows
        normal, changed = (np.full((count, N_PARTS + len(shifts)), np.nan) for count in (len(fold), len(tried)))
        distances = [np.empty((0, places.values.shape[1]))]
        for number in np.unique(fold):
            inside = fold == number
            others = places.select(~inside[places.rows])
            part = self._without_scale(features.select(~inside), others, shifts, parts)
            normal[inside] = part._measure(features.select(inside))
            if "places" in parts:
                rows, values = some.select(inside[some.rows])
                normal[rows, COLUMNS["places"]], found = part.memory.score_and_distances(values)
                distances.append(found)
            if self.trials is not None:
                own = inside[tried]
                trials = self.trials.features.select(own)
                changed[own] = part._measure(trials)
                if "places" in parts and trials.places.size:
                    changed[own, COLUMNS["places"]] = part.memory.score(trials.places)
        return normal, changed, np.concatenate(distances)

    def _without_scale(
        self, features: Features, places: PlaceSample, shifts: ProbeShifts, parts: tuple[str, ...]
    ) -> Self:
        """A head with these parts, without their centres and spreads."""
        statistics, seed, size = features.statistics, self.seed, features.statistics.shape[1]
        early = sum(self.layer_sizes[: (len(self.layer_sizes) + 1) // 2]) or size
        head = type(self)(layer_sizes=self.layer_sizes, seed=seed)
        head.parts, head.probes = parts, tuple(shifts) if "probes" in parts else ()
        head.early = ShrunkGaussian.fit(statistics[:, :early]) if "early" in parts else ShrunkGaussian.empty()
        head.deep = ShrunkGaussian.fit(statistics[:, early:]) if "deep" in parts else ShrunkGaussian.empty()
        head.neighbours = Neighbours.fit(features.pooled, seed=seed) if "neighbours" in parts else Neighbours.empty()
        head.memory = LocalMemory.fit(places.values, seed=seed) if "places" in parts else LocalMemory.empty()
        filters = ShrunkGaussian.fit(statistics).matched_filters(shifts) if head.probes else np.empty((0, size))
        counts = [part in parts for part in PART_NAMES]
        return head.hold(filters=filters, mean=statistics.mean(0, dtype=np.float64), counts=counts)

    @torch.inference_mode()
    def _measure(self, features: Features) -> Array:
        """(images, parts + probes): the values of parts except probes and places, then the responses to the probes."""
        given = self.tensors(features.without_places())
        values = self.values(given["logits"], given["statistics"], given["pooled"], None)
        found = np.full((len(features.logits), N_PARTS + len(self.probes)), np.nan)
        found[:, N_PARTS:] = values.pop("probes", torch.empty(len(found), 0)).cpu().numpy()
        for part, value in values.items():
            found[:, COLUMNS[part]] = value.cpu().numpy()
        return found

    def values(
        self, logits: Tensor, statistics: Tensor, pooled: Tensor | None, distances: Tensor | None
    ) -> dict[str, Tensor]:
        """The parts that count, (B,), and the responses to the probes (B, probes); places only with their distances."""
        found = {}
        if "logit" in self.parts:
            found["logit"] = -logits.double().mean(1)
        if "early" in self.parts:
            found["early"] = self.early.log_distance(statistics[:, : len(self.early.mean)])
        if "probes" in self.parts:
            found["probes"] = (statistics.double() - self.mean) @ self.filters.T
        if "deep" in self.parts:
            found["deep"] = self.deep.log_distance(statistics[:, -len(self.deep.mean) :])
        if "neighbours" in self.parts and pooled is not None:
            found["neighbours"] = self.neighbours(pooled)
        if distances is not None:
            found["places"] = mean_of_farthest(distances)
        return found

    def forward(
        self, logits: Tensor, statistics: Tensor, pooled: Tensor | None = None, places: Tensor | None = None
    ) -> Tensor:
        """Features of the four kinds to scores (B,) in float64; kinds that are not needed may be missing or empty."""
        return self.output(logits, statistics, pooled, places).score

    def output(
        self, logits: Tensor, statistics: Tensor, pooled: Tensor | None = None, places: Tensor | None = None
    ) -> HeadOutput[Tensor]:
        distances = None if places is None or "places" not in self.parts else self.memory.distances(places)
        values = self.values(logits, statistics, pooled, distances)
        if "probes" in values:
            values["probes"] = ((values["probes"] - self.probe_centres) / self.probe_spreads).amax(1)
        z = {part: (values[part] - self.centres[COLUMNS[part]]) / self.spreads[COLUMNS[part]] for part in self.parts}
        components = [
            (soft_maximum(torch.stack([z[part] for part in self.components[name]], 1)) - centre) / spread
            for name, centre, spread in zip(COMPONENTS, self.component_centres, self.component_spreads, strict=True)
            if name in self.components
        ]
        place_map = None
        if distances is not None:
            above = (distances - self.place_centres) / self.place_spreads - self.place_level
            place_map = above.reshape(-1, self.place_side, self.place_side)
        return HeadOutput(soft_maximum(torch.stack(list(z.values()), 1)), torch.stack(components, 1), place_map)
