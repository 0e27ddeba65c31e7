"""The components head: how an image was taken, what is in it, and whether a place in it differs."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from discopatch.calibration import Index, fold_numbers
from discopatch.encoders import Features, FeatureSizes, Kind, SomePlaces
from discopatch.encoders.places import MAX_SIDE
from discopatch.errors import ParameterError, WeightsError
from discopatch.heads.base import (
    NO_SHIFTS,
    STATISTICS,
    Array,
    GroupNumbers,
    Head,
    HeadOutput,
    ProbeShifts,
    Size,
    Stored,
    declare,
)
from discopatch.heads.combined import PROBES, matched_filter, soft_maximum
from discopatch.heads.gaussian import ShrunkGaussian
from discopatch.heads.memory import LocalMemory, mean_of_farthest
from discopatch.heads.neighbours import Neighbours
from discopatch.heads.parts import (
    COLUMNS,
    COMPONENTS,
    PART_NAMES,
    component_values,
    part_scale,
    significance_level,
    usual_distances,
    with_largest_probe,
)
from discopatch.heads.statistics import fit_distance, log_distance
from discopatch.heads.trials import Trials, choose_parts

N_REMEMBERED = 500  # images whose places are remembered
MAX_COMPARED = 200  # images on which the places are standardised

POSITIONS = Size("positions", MAX_SIDE**2)
EARLY, DEEP = Size("early", STATISTICS.most), Size("deep", STATISTICS.most)
NO_FILTERS: Mapping[str, Array] = {}
PARTS, ALL = (Size(name, count, least=count) for name, count in (("parts", len(COLUMNS)), ("all", len(COMPONENTS))))


class HeldOut(NamedTuple):
    """What was found of images by parts that were not fitted on them, as `ComponentsHead.measure` has it."""

    normal: Array
    changed: Array  # of the trials
    distances: Array  # (images, positions), of some images: how far their places are from those of others


class ComponentsHead(Head):
    """The soft maximum of parts that belong to three components, each a z-score over normal images.

    - acquisition: minus the mean logit; the distance over the statistics of early layers; the largest response to a
      known change, by matched filters over all statistics.
    - content: the distance over the statistics of deep layers; that from the nearest neighbours in pooled features.
    - place: the local memory over places.

    A part whose features are missing is left out. Centre and spread of each come from normal images that it was not
    fitted on, fold by fold; so does the choice of those that count, from trials on the same images.

    layer_sizes: how many of the statistics are each layer's; without them all layers count as early.
    trials: made-up changes of the images to fit, by which parts are chosen; without them all parts count.
    places: those of some images, in place of the features' own, which are remembered of at most `N_REMEMBERED`.
    """

    needs: tuple[Kind, ...] = ("logits", "statistics", "pooled", "places")
    parts: tuple[str, ...] = ()  # the names of those that count

    filters: Tensor  # (probes, d)
    mean: Tensor  # (d,), of the statistics
    probe_centres: Tensor  # (probes,)
    probe_spreads: Tensor  # (probes,)
    counts: Tensor  # (parts,): 1 for a part that counts
    centres: Tensor  # (parts,)
    spreads: Tensor  # (parts,)
    component_centres: Tensor  # (components,): of the soft maximum of each component's parts
    component_spreads: Tensor  # (components,)
    speaking: Tensor  # (): the z-score above which a component significant
    place_centres: Tensor  # (positions,): of the distances at each place
    place_spreads: Tensor  # (positions,)
    place_level: Tensor  # (): the z-score above which a place is hot

    def __init__(
        self,
        *,
        layer_sizes: tuple[int, ...] = (),
        trials: Trials | None = None,
        places: SomePlaces | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.layer_sizes, self.trials, self.some_places, self.seed = layer_sizes, trials, places, seed
        self.early, self.deep = ShrunkGaussian(EARLY), ShrunkGaussian(DEEP)
        self.neighbours, self.memory = Neighbours(), LocalMemory()
        declare(
            self,
            filters=Stored(PROBES, STATISTICS),
            mean=Stored(STATISTICS),
            probe_centres=Stored(PROBES),
            probe_spreads=Stored(PROBES, positive=True),
            counts=Stored(PARTS),
            centres=Stored(PARTS),
            spreads=Stored(PARTS, positive=True),
            component_centres=Stored(ALL),
            component_spreads=Stored(ALL, positive=True),
            speaking=Stored(),
            place_centres=Stored(POSITIONS),
            place_spreads=Stored(POSITIONS, positive=True),
            place_level=Stored(),
        )

    def sizes(self, statistics: int | None = None) -> dict[str, int]:
        return {**super().sizes(statistics), PROBES.name: len(self.probes)}

    @property
    def components(self) -> dict[str, tuple[str, ...]]:
        """The parts that count, by component; a component without any is left out."""
        found = {name: tuple(part for part in parts if part in self.parts) for name, parts in COMPONENTS.items()}
        return {name: parts for name, parts in found.items() if parts}

    def derive(self) -> None:
        """Checks that the parts that count are there; the features of others are no longer needed."""
        self.parts = tuple(part for part, counts in zip(PART_NAMES, self.counts.tolist(), strict=True) if counts > 0)
        held = {
            "early": len(self.early.mean),
            "probes": len(self.filters),
            "deep": len(self.deep.mean),
            "neighbours": self.neighbours.bank.numel(),
            "places": self.memory.vectors.numel(),
        }
        if not self.parts or any(held.get(part) == 0 for part in self.parts):
            raise WeightsError(f"it has the parts {', '.join(self.parts) or 'of nothing'}, and not what they need")
        if len(self.early.mean) + len(self.deep.mean) > len(self.mean):
            raise WeightsError("it has more statistics of early and deep layers than of all")
        self.component_names, self.significance_level = tuple(self.components), float(self.speaking)
        self.place_side = round(len(self.place_centres) ** 0.5) if "places" in self.parts else 0
        used = {"pooled": "neighbours" in self.parts, "places": "places" in self.parts}
        self.needs = tuple(kind for kind in type(self).needs if used.get(kind, True))

    def check_sizes(self, sizes: FeatureSizes) -> None:
        """Raises WeightsError where a part that counts was not fitted on features of these sizes."""
        super().check_sizes(sizes)
        found = {"neighbours": self.neighbours.bank.shape[1], "places": self.memory.vectors.shape[1]}
        due = {"neighbours": sizes.pooled, "places": sizes.places}
        if wrong := [part for part in self.parts if part in due and found[part] != due[part]]:
            raise WeightsError(f"its parts {', '.join(wrong)} do not belong to this network's features")

    def fit(self, features: Features, shifts: ProbeShifts = NO_SHIFTS, *, groups: GroupNumbers = None) -> Self:
        places, fold = self.some_places, fold_numbers(len(features.logits), groups)
        if places is None:
            places = SomePlaces.evenly(features.places, most=N_REMEMBERED)
        features = features.without_places()
        offered = self._offered(features, places, shifts, fold)
        held_out = self._held_out(features, places, shifts, offered, fold)
        return self.scaled(held_out, offered, partial(self._unscaled, features, places, shifts), groups=groups)

    def scaled(
        self,
        held_out: HeldOut,
        offered: tuple[str, ...],
        unscaled: Callable[[tuple[str, ...]], Self],
        *,
        groups: GroupNumbers = None,
    ) -> Self:
        """The fitted head, from what was found of held-out images and a function that fits parts to all images."""
        normal, changed, distances = held_out
        probe_scale = part_scale(normal[:, len(PART_NAMES) :])
        normal, changed = (with_largest_probe(each, *probe_scale) for each in (normal, changed))
        centres, spreads = part_scale(normal)
        z, z_changed = ((each - centres) / spreads for each in (normal, changed))
        counted = offered
        if self.trials is not None:
            columns = [COLUMNS[part] for part in offered]
            compared = ~np.isnan(z[:, columns]).any(1)
            must_earn = np.isin(offered, COMPONENTS["place"])
            chosen = choose_parts(z[compared][:, columns], z_changed[:, columns], self.trials, must_earn=must_earn)
            counted = tuple(part for part, kept in zip(offered, chosen, strict=True) if kept)
        head = unscaled(counted)
        joined = [component_values(z, [part for part in parts if part in counted]) for parts in COMPONENTS.values()]
        component_centres, component_spreads = part_scale(np.stack(joined, 1))
        by_component = (np.stack(joined, 1) - component_centres) / component_spreads
        place_scale = usual_distances(distances if "places" in counted else distances[:, :0])
        unused = [part not in counted for part in PART_NAMES]
        head.hold(
            probe_centres=probe_scale[0][: len(head.probes)],
            probe_spreads=probe_scale[1][: len(head.probes)],
            centres=np.where(unused, 0, centres),
            spreads=np.where(unused, 1, spreads),
            component_centres=component_centres,
            component_spreads=component_spreads,
            speaking=significance_level(by_component, groups),
            **place_scale,
        )
        head.derive()
        return head

    def _offered(self, features: Features, places: SomePlaces, shifts: ProbeShifts, fold: Index) -> tuple[str, ...]:
        """The parts whose features are there; of places, on both sides of every fold."""
        there = {
            "logit": features.logits.shape[1],
            "probes": len(shifts),
            "deep": len(self.layer_sizes) > 1,
            "neighbours": features.pooled.shape[1],
            "places": places.values.size and len(np.unique(fold[places.rows])) > 1,
        }
        return tuple(part for part in PART_NAMES if there.get(part, True))

    def _held_out(
        self,
        features: Features,
        places: SomePlaces,
        shifts: ProbeShifts,
        parts: tuple[str, ...],
        fold: Index,
    ) -> HeldOut:
        """What is found for the images and for the trials, by parts that were fitted without their fold."""
        compared = np.random.default_rng([self.seed, 13]).permutation(len(places.rows))[:MAX_COMPARED]
        some = places.select(compared)
        tried = np.empty(0, np.intp) if self.trials is None else self.trials.rows
        normal, changed = (np.full((count, len(PART_NAMES) + len(shifts)), np.nan) for count in (len(fold), len(tried)))
        distances = [np.empty((0, places.values.shape[1]))]
        for number in np.unique(fold):
            inside = fold == number
            part = self._unscaled(features.select(~inside), places.of(~inside), shifts, parts)
            normal[inside] = part.measure(features.select(inside))
            if "places" in parts:
                rows, values = some.of(inside)
                normal[rows, COLUMNS["places"]], found = part.memory.score_and_distances(values)
                distances.append(found)
            if self.trials is not None:
                own = inside[tried]
                trials = self.trials.features.select(own)
                changed[own] = part.measure(trials)
                if "places" in parts and trials.places.size:
                    changed[own, COLUMNS["places"]] = part.memory.score(trials.places)
        return HeldOut(normal, changed, np.concatenate(distances))

    def _unscaled(self, features: Features, places: SomePlaces, shifts: ProbeShifts, parts: tuple[str, ...]) -> Self:
        """A head with these parts, without their centres and spreads."""
        statistics, first = features.statistics, self.early_size(features.statistics.shape[1])
        probes = tuple(shifts) if "probes" in parts else ()
        whole = fit_distance(statistics, STATISTICS) if probes else None
        return self.joined(
            parts,
            mean=statistics.mean(0, dtype=np.float64),
            early=fit_distance(statistics[:, :first], EARLY) if "early" in parts else None,
            deep=fit_distance(statistics[:, first:], DEEP) if "deep" in parts else None,
            neighbours=Neighbours.fit(features.pooled, seed=self.seed) if "neighbours" in parts else None,
            memory=LocalMemory.fit(places.values, seed=self.seed) if "places" in parts else None,
            filters={} if whole is None else {name: matched_filter(whole, shifts[name]) for name in probes},
        )

    def early_size(self, statistics: int) -> int:
        """How many of the statistics are of early layers."""
        return sum(self.layer_sizes[: (len(self.layer_sizes) + 1) // 2]) or statistics

    def joined(
        self,
        parts: tuple[str, ...],
        *,
        mean: Array,
        early: ShrunkGaussian | None = None,
        deep: ShrunkGaussian | None = None,
        neighbours: Neighbours | None = None,
        memory: LocalMemory | None = None,
        filters: Mapping[str, Array] = NO_FILTERS,
    ) -> Self:
        """A head of parts that were fitted, without their centres and spreads."""
        head = type(self)(layer_sizes=self.layer_sizes, seed=self.seed)
        head.early = early or ShrunkGaussian.empty(EARLY)
        head.deep = deep or ShrunkGaussian.empty(DEEP)
        head.neighbours = neighbours or Neighbours.fit(np.empty((0, 0), np.float32), seed=self.seed)
        head.memory = memory or LocalMemory.empty()
        head.parts, head.probes = parts, tuple(filters)
        return head.hold(
            filters=np.stack(list(filters.values())) if filters else np.empty((0, len(mean))),
            mean=mean,
            counts=[part in parts for part in PART_NAMES],
        )

    def values(
        self, logits: Tensor, statistics: Tensor, pooled: Tensor | None = None, distances: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Every part that counts but the probes, (B,), as far as its features, or distances of places, are given."""
        found = {}
        if "logit" in self.parts and logits.shape[1]:
            found["logit"] = -logits.double().mean(1)
        if "early" in self.parts:
            found["early"] = log_distance(self.early, statistics[:, : len(self.early.mean)])
        if "deep" in self.parts:
            found["deep"] = log_distance(self.deep, statistics[:, -len(self.deep.mean) :])
        if "neighbours" in self.parts and pooled is not None and pooled.shape[1]:
            found["neighbours"] = self.neighbours(pooled)
        if distances is not None:
            found["places"] = mean_of_farthest(distances)
        return found

    def distances(self, places: Tensor | None) -> Tensor | None:
        """(B, positions): how far the places are from those that are remembered, if place counts and they are given."""
        if "places" not in self.parts or places is None or not places.shape[1]:
            return None
        return self.memory.distances(places)

    def responses(self, statistics: Tensor) -> Tensor:
        """(B, probes): that of each matched filter."""
        return (statistics.double() - self.mean) @ self.filters.T

    @torch.inference_mode()
    def measure(self, features: Features) -> Array:
        """(images, parts + probes): the value of each part but the places, then the responses to the probes.

        A part without a value is NaN. Places are left to `LocalMemory.score_and_distances`, in bounded memory.
        """
        given = self.tensors(features.without_places())
        del given["places"]
        found = np.full((len(features.logits), len(PART_NAMES) + len(self.probes)), np.nan)
        for part, value in self.values(**given).items():
            found[:, COLUMNS[part]] = value.cpu().numpy()
        found[:, len(PART_NAMES) :] = self.responses(given["statistics"]).cpu().numpy()
        return found

    def z_scores(
        self, logits: Tensor, statistics: Tensor, pooled: Tensor | None = None, distances: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Each part that counts, (B,), as a z-score over normal images."""
        if statistics.shape[1] != len(self.mean):
            raise ParameterError(
                f"{statistics.shape[1]} statistics an image, and the head was fitted on {len(self.mean)}: "
                "take the same encoder"
            )
        found = self.values(logits, statistics, pooled, distances)
        if len(self.filters):
            probes = (self.responses(statistics) - self.probe_centres) / self.probe_spreads
            found["probes"] = probes.amax(1)
        if missing := [part for part in self.parts if part not in found]:
            raise ParameterError(f"features without what {', '.join(missing)} need: take the same encoder")
        return {part: (found[part] - self.centres[COLUMNS[part]]) / self.spreads[COLUMNS[part]] for part in self.parts}

    def forward(
        self, logits: Tensor, statistics: Tensor, pooled: Tensor | None = None, places: Tensor | None = None
    ) -> Tensor:
        """Features of the four kinds, those that are not needed left out or empty, to scores (B,) in float64."""
        return self.output(logits, statistics, pooled, places).score

    def output(
        self, logits: Tensor, statistics: Tensor, pooled: Tensor | None = None, places: Tensor | None = None
    ) -> HeadOutput:
        distances = self.distances(places)
        z = self.z_scores(logits, statistics, pooled, distances)
        components = [
            (soft_maximum(torch.stack([z[part] for part in self.components[name]], 1)) - centre) / spread
            for name, centre, spread in zip(COMPONENTS, self.component_centres, self.component_spreads, strict=True)
            if name in self.components
        ]
        place_map = None if distances is None else self._place_map(distances)
        return HeadOutput(soft_maximum(torch.stack(list(z.values()), 1)), torch.stack(components, 1), place_map)

    def _place_map(self, distances: Tensor) -> Tensor:
        """(B, positions) to (B, side, side): by how much each place is farther than usual, as a z-score."""
        count = distances.shape[1]
        if count != len(self.place_centres):
            raise ParameterError(
                f"{count} places, and the head was fitted on {len(self.place_centres)}: take the same encoder"
            )
        z = (distances - self.place_centres) / self.place_spreads
        return (z - self.place_level).reshape(-1, self.place_side, self.place_side)

    def component_scores(self, features: Features) -> dict[str, Array]:
        """Each component of which a part counts, (images,), as a z-score over normal images."""
        return dict(zip(self.component_names, self.outputs(features).components.T, strict=True))

    def probe_scores(self, features: Features) -> Array:
        self.check_fitted()
        with torch.inference_mode():
            responses = self.responses(self.tensors(features)["statistics"])
            return ((responses - self.probe_centres) / self.probe_spreads).cpu().numpy()
