"""The components head: one score from acquisition, content and places of an image."""

from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from discopatch.calibration import Index, fold_numbers
from discopatch.encoders import Features, FeatureSizes, Kind, PlaceSample
from discopatch.errors import ParameterError, WeightsError
from discopatch.heads.base import NO_SHIFTS, Array, GroupNumbers, Head, HeadOutput, ProbeShifts, Shapes
from discopatch.heads.combined import matched_filter, soft_maximum
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
from discopatch.heads.statistics import check_statistics, fit_distance, log_distance
from discopatch.heads.trials import Trials, choose_parts

N_REMEMBERED = 500  # images whose places are remembered
MAX_COMPARED = 200  # images on which the places are standardised


class HeldOut(NamedTuple):
    """Values of images by parts that were not fitted on them, as `ComponentsHead.measure` returns them."""

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
    fitted on, fold by fold; so does the choice of the parts that count, from trials on the same images.

    layer_sizes: the number of statistics of each layer; without them all layers count as early.
    trials: changed versions of the images to fit, by which parts are chosen; without them all parts count.
    places: those of some images, in place of the features' own, which are remembered of at most `N_REMEMBERED`.
    """

    needs: tuple[Kind, ...] = ("logits", "statistics", "pooled", "places")
    parts: tuple[str, ...] = ()  # the names of the parts that count

    shapes: ClassVar[Shapes] = {
        "filters": ("probes", "statistics"),
        "mean": ("statistics",),
        "probe_centres": ("probes",),
        "probe_spreads": ("probes",),
        "counts": ("parts",),
        "centres": ("parts",),
        "spreads": ("parts",),
        "component_centres": ("components",),
        "component_spreads": ("components",),
        "significance": (),
        "place_centres": ("positions",),
        "place_spreads": ("positions",),
        "place_level": (),
    }
    positive = ("probe_spreads", "spreads", "component_spreads", "place_spreads")

    filters: Tensor
    mean: Tensor  # of the statistics
    probe_centres: Tensor
    probe_spreads: Tensor
    counts: Tensor  # 1 for a part that counts
    centres: Tensor
    spreads: Tensor
    component_centres: Tensor  # of the soft maximum of each component's parts
    component_spreads: Tensor
    significance: Tensor  # the z-score above which a component is significant
    place_centres: Tensor  # of the distances at each place
    place_spreads: Tensor
    place_level: Tensor  # the z-score above which a place is anomalous

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

    def lengths(self) -> dict[str, int]:
        return {"probes": len(self.probes), "parts": len(PART_NAMES), "components": len(COMPONENTS)}

    @property
    def components(self) -> dict[str, tuple[str, ...]]:
        """The parts that count, by component; a component without any is left out."""
        found = {name: tuple(part for part in parts if part in self.parts) for name, parts in COMPONENTS.items()}
        return {name: parts for name, parts in found.items() if parts}

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
        self.component_names, self.significance_level = tuple(self.components), float(self.significance)
        self.place_side = round(len(self.place_centres) ** 0.5) if "places" in self.parts else 0
        if self.place_side**2 != (len(self.place_centres) if "places" in self.parts else 0):
            raise WeightsError(f"its {len(self.place_centres)} places are no square")
        used = {"pooled": "neighbours" in self.parts, "places": "places" in self.parts}
        self.needs = tuple(kind for kind in type(self).needs if used.get(kind, True))

    def check_sizes(self, sizes: FeatureSizes) -> None:
        check_statistics(len(self.mean), sizes)
        fitted = {
            "logit": True,
            "neighbours": self.neighbours.bank.shape[1],
            "places": self.memory.vectors.shape[1],
        }
        given = {"logit": sizes.logits, "neighbours": sizes.pooled, "places": sizes.places}
        if wrong := [part for part in self.parts if part in given and fitted[part] != given[part]]:
            raise WeightsError(f"its parts {', '.join(wrong)} do not belong to this network's features")

    def fit(self, features: Features, shifts: ProbeShifts = NO_SHIFTS, *, groups: GroupNumbers = None) -> Self:
        places, fold = self.place_sample, fold_numbers(len(features.logits), groups)
        if places is None:
            places = PlaceSample.evenly(features.places, most=N_REMEMBERED)
        features = features.without_places()
        offered = self._offered(features, places, shifts, fold)
        normal, changed, distances = self._held_out(features, places, shifts, offered, fold)
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
        head = self._unscaled(features, places, shifts, counted)
        joined = [component_values(z, [part for part in parts if part in counted]) for parts in COMPONENTS.values()]
        component_centres, component_spreads = part_scale(np.stack(joined, 1))
        by_component = (np.stack(joined, 1) - component_centres) / component_spreads
        unused = [part not in counted for part in PART_NAMES]
        head.hold(
            probe_centres=probe_scale[0][: len(head.probes)],
            probe_spreads=probe_scale[1][: len(head.probes)],
            centres=np.where(unused, 0, centres),
            spreads=np.where(unused, 1, spreads),
            component_centres=component_centres,
            component_spreads=component_spreads,
            significance=significance_level(by_component, groups),
            **usual_distances(distances if "places" in counted else distances[:, :0]),
        )
        head.derive()
        return head

    def _offered(self, features: Features, places: PlaceSample, shifts: ProbeShifts, fold: Index) -> tuple[str, ...]:
        """The parts whose features are there; places must be on both sides of every fold."""
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
        places: PlaceSample,
        shifts: ProbeShifts,
        parts: tuple[str, ...],
        fold: Index,
    ) -> HeldOut:
        """The values of the images and of the trials by parts that were fitted without their fold."""
        compared = np.random.default_rng([self.seed, 13]).permutation(len(places.rows))[:MAX_COMPARED]
        some = places.select(compared)
        tried = np.empty(0, np.intp) if self.trials is None else self.trials.rows
        normal, changed = (np.full((count, len(PART_NAMES) + len(shifts)), np.nan) for count in (len(fold), len(tried)))
        distances = [np.empty((0, places.values.shape[1]))]
        for number in np.unique(fold):
            inside = fold == number
            others = places.select(~inside[places.rows])
            part = self._unscaled(features.select(~inside), others, shifts, parts)
            normal[inside] = part.measure(features.select(inside))
            if "places" in parts:
                rows, values = some.select(inside[some.rows])
                normal[rows, COLUMNS["places"]], found = part.memory.score_and_distances(values)
                distances.append(found)
            if self.trials is not None:
                own = inside[tried]
                trials = self.trials.features.select(own)
                changed[own] = part.measure(trials)
                if "places" in parts and trials.places.size:
                    changed[own, COLUMNS["places"]] = part.memory.score(trials.places)
        return HeldOut(normal, changed, np.concatenate(distances))

    def _unscaled(self, features: Features, places: PlaceSample, shifts: ProbeShifts, parts: tuple[str, ...]) -> Self:
        """A head with these parts, without their centres and spreads."""
        statistics, pooled = features.statistics, features.pooled
        early = sum(self.layer_sizes[: (len(self.layer_sizes) + 1) // 2]) or statistics.shape[1]
        filters = np.empty((0, statistics.shape[1]))
        if "probes" in parts:
            whole = fit_distance(statistics)
            filters = np.stack([matched_filter(whole, moved) for moved in shifts.values()])
        head = type(self)(layer_sizes=self.layer_sizes, seed=self.seed)
        head.parts, head.probes = parts, tuple(shifts) if "probes" in parts else ()
        head.early = fit_distance(statistics[:, :early]) if "early" in parts else ShrunkGaussian.empty()
        head.deep = fit_distance(statistics[:, early:]) if "deep" in parts else ShrunkGaussian.empty()
        head.neighbours = Neighbours.fit(
            pooled if "neighbours" in parts else np.empty((0, 0), np.float32), seed=self.seed
        )
        head.memory = LocalMemory.fit(places.values, seed=self.seed) if "places" in parts else LocalMemory.empty()
        return head.hold(
            filters=filters,
            mean=statistics.mean(0, dtype=np.float64),
            counts=[part in parts for part in PART_NAMES],
        )

    def values(
        self, logits: Tensor, statistics: Tensor, pooled: Tensor | None = None, distances: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The parts that count except the probes, (B,); places only with their distances."""
        found = {}
        if "logit" in self.parts:
            found["logit"] = -logits.double().mean(1)
        if "early" in self.parts:
            found["early"] = log_distance(self.early, statistics[:, : len(self.early.mean)])
        if "deep" in self.parts:
            found["deep"] = log_distance(self.deep, statistics[:, -len(self.deep.mean) :])
        if "neighbours" in self.parts and pooled is not None:
            found["neighbours"] = self.neighbours(pooled)
        if distances is not None:
            found["places"] = mean_of_farthest(distances)
        return found

    def distances(self, places: Tensor | None) -> Tensor | None:
        """(B, positions): the distances of the places from the remembered ones, if places count."""
        return None if places is None or "places" not in self.parts else self.memory.distances(places)

    def responses(self, statistics: Tensor) -> Tensor:
        """(B, probes): the response of each matched filter."""
        return (statistics.double() - self.mean) @ self.filters.T

    @torch.inference_mode()
    def measure(self, features: Features) -> Array:
        """(images, parts + probes): the value of each part except places, then the responses to the probes.

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
        found = self.values(logits, statistics, pooled, distances)
        if len(self.filters):
            probes = (self.responses(statistics) - self.probe_centres) / self.probe_spreads
            found["probes"] = probes.amax(1)
        return {part: (found[part] - self.centres[COLUMNS[part]]) / self.spreads[COLUMNS[part]] for part in self.parts}

    def forward(
        self, logits: Tensor, statistics: Tensor, pooled: Tensor | None = None, places: Tensor | None = None
    ) -> Tensor:
        """Features of the four kinds to scores (B,) in float64; kinds that are not needed may be missing or empty."""
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
        """(B, positions) to (B, side, side): the z-score of each place above the usual level."""
        count = distances.shape[1]
        if count != len(self.place_centres):
            raise ParameterError(
                f"{count} places, and the head was fitted on {len(self.place_centres)}: use the same encoder"
            )
        z = (distances - self.place_centres) / self.place_spreads
        return (z - self.place_level).reshape(-1, self.place_side, self.place_side)
