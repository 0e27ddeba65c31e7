"""The components head: acquisition, content and place, and the choice of parts."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp

from discopatch.calibration import fold_numbers, threshold
from discopatch.encoders import N_TONES, Features, FeatureSizes
from discopatch.errors import WeightsError
from discopatch.heads import ComponentsHead, PlaceModel
from discopatch.heads.memory import Neighbours
from discopatch.heads.parts import COMPONENTS, PART_NAMES, SHARPNESS, fit_tails, rarity
from discopatch.heads.places import PlaceFit, fit_places, maxima_of
from discopatch.heads.trials import Trials
from discopatch.metrics import auroc
from tests.heads.test_heads import log_distance
from tests.samples import without_logits

LAYERS, EMBEDDING = (8, 12, 14), 6
DIMENSIONS, CHANNELS, GRID, PLACE = sum(LAYERS) + EMBEDDING, 6, (3, 3), 4
MOVED = DIMENSIONS + N_TONES  # by known changes
SIZES = FeatureSizes(DIMENSIONS, CHANNELS, PLACE, logits=True)


def features_of(images: int, *, seed: int = 0) -> Features:
    """All kinds, independent of one another; the features of places are near one of three points."""
    rng = np.random.default_rng([seed, 5])
    points = np.random.default_rng(1).normal(0, 3, (3, PLACE))
    places = points[rng.integers(3, size=(images, *GRID))] + 0.2 * rng.normal(size=(images, *GRID, PLACE))
    return Features(
        rng.normal(4, 1, (images, 9)).astype(np.float32),
        rng.normal(size=(images, DIMENSIONS)).astype(np.float32),
        (3 + rng.normal(size=(images, CHANNELS))).astype(np.float32),
        places.astype(np.float32),
        rng.normal(size=(images, N_TONES)).astype(np.float32),
    )


def shifts(seed: int = 3) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return {name: (rng.normal(size=(1, MOVED)) * rng.uniform(1, 2, (5, 1))).astype(np.float32) for name in "ab"}


def scenes(images: int, *, seed: int = 0, moved: float = 0.0) -> Features:
    """Images whose early statistics follow the deep ones, moved by so much along the known change."""
    features, follow = features_of(images, seed=seed), np.random.default_rng(0).normal(size=(20, 20)) / 4
    statistics = features.statistics.copy()
    statistics[:, :20] = 0.3 * statistics[:, :20] + statistics[:, 20:] @ follow.astype(np.float32) + np.float32(moved)
    return features._replace(statistics=statistics)


def scene_shifts() -> dict[str, NDArray[np.float32]]:
    return {"a": np.repeat([[0.4] * 20 + [0.0] * (MOVED - 20)], 4, 0).astype(np.float32)}


def with_places_moved(features: Features, by: float) -> Features:
    places = features.places.copy()
    places[:, 0, :2] += np.float32(by)
    return features._replace(places=places)


def with_logits_moved(features: Features, by: float) -> Features:
    return features._replace(logits=features.logits - np.float32(by))


def compare_places(normal: Features, rows: NDArray[np.intp] | None = None) -> PlaceFit:
    """The comparison of places of the images, or of some of them."""
    numbers = np.arange(len(normal.places)) if rows is None else rows
    fold = fold_numbers(len(numbers))
    images = torch.from_numpy(normal.places[numbers])
    return fit_places(lambda chosen: (images[row] for row in chosen), fold, numbers, blocks=(PLACE,), seed=0)


def trials_of(
    features: Features, places: PlaceFit, *, place: float, acquisition: float = 2.0, count: int = 60
) -> Trials:
    """Every other trial is one of acquisition; the places of the rest move by so much."""
    rows = np.arange(count) % len(features.logits)
    of_place = np.arange(count) % 2 == 0
    parts = [
        with_places_moved(each, place) if local else with_logits_moved(each, acquisition)
        for each, local in zip(features.select(rows).one_by_one(), of_place, strict=True)
    ]
    maxima = np.stack(
        [maxima_of(each.places, places.compare(int(row)))[0] for each, row in zip(parts, rows, strict=True)]
    )
    return Trials(Features.concatenate(parts).without_places(), rows, of_place, maxima)


class Scoring(NamedTuple):
    """A head, and the comparison that turns places into its z-scores, as in an encoder."""

    head: ComponentsHead
    model: PlaceModel

    @torch.inference_mode()
    def seen(self, features: Features) -> Features:
        return features._replace(places=self.model([torch.from_numpy(features.places).permute(0, 3, 1, 2)]).numpy())

    def score(self, features: Features) -> NDArray[np.float64]:
        return self.head.score(self.seen(features))

    def components(self, features: Features) -> dict[str, NDArray[np.float64]]:
        found = self.head.outputs(self.seen(features)).components
        return dict(zip(self.head.component_names, found.T, strict=True))


def fit_head(
    normal: Features,
    known: dict[str, NDArray[np.float32]] | None = None,
    *,
    trials: dict[str, Any] | None = None,
    seed: int = 0,
) -> Scoring:
    """The head of these images; `trials` are the arguments of `trials_of`."""
    places = compare_places(normal)
    tried = None if trials is None else trials_of(normal, places, **trials)
    head = ComponentsHead(layer_sizes=LAYERS, trials=tried, places=places, seed=seed)
    return Scoring(head.fit(normal, known or {}), places.model)


def test_the_score_joins_how_rare_parts_are_among_images_that_were_not_fitted() -> None:
    normal, new, known = features_of(60), features_of(12, seed=1), shifts()
    places = compare_places(normal)
    head = ComponentsHead(layer_sizes=LAYERS, places=places).fit(normal, known)
    assert head.parts == PART_NAMES
    assert head.components == COMPONENTS
    early, embedding = sum(LAYERS[:2]), sum(LAYERS)

    def by_parts(part: ComponentsHead, features: Features) -> NDArray[np.float64]:
        statistics = features.statistics
        tone_mean, tone_filters = part.tone_mean.numpy(), part.tone_filters.numpy()
        return np.column_stack(
            [
                -features.logits.astype(np.float64).mean(1),
                log_distance(part.early, statistics[:, :early]),
                log_distance(part.embedding, statistics[:, embedding:]),
                log_distance(part.deep, statistics[:, early:embedding]),
                part.neighbours(torch.from_numpy(features.pooled)).numpy(),
                np.square(np.maximum((features.tones - tone_mean) @ tone_filters.T, 0)).mean(1),
                (statistics.astype(np.float64) - part.mean.numpy()) @ part.filters.numpy().T,
            ]
        )

    fold, held_out = fold_numbers(60), np.empty((60, 8))
    for number in range(5):
        part = ComponentsHead(layer_sizes=LAYERS).fit(normal.select(fold != number), known)
        held_out[fold == number] = by_parts(part, normal.select(fold == number))
    found = by_parts(head, new)
    responses = [standardise(values[:, 6:], held_out[:, 6:]).max(1, keepdims=True) for values in (held_out, found)]
    maxima = np.concatenate([maxima_of(each.places, places.model) for each in new.one_by_one()])
    squares = [rare(values, places.maxima).sum(1) for values in (places.maxima, maxima)]
    order = [0, 1, 6, 2, 5, 3, 4]  # of the parts
    before = np.column_stack([held_out[:, :6], responses[0]])[:, order]
    before = np.column_stack([before, squares[0][np.argsort(places.rows)]])
    after = np.column_stack([np.column_stack([found[:, :6], responses[1]])[:, order], squares[1]])
    weights = np.log([0.8 / 19] * 5 + [2.5 / 19] * 2 + [10 / 19])  # of components, shared by their parts
    expected = logsumexp(SHARPNESS * rare(after, before) + weights, axis=1) / SHARPNESS
    np.testing.assert_allclose(Scoring(head, places.model).score(new), expected, rtol=1e-5, atol=1e-5)


def rare(values: NDArray[np.float64], reference: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(rarity(torch.from_numpy(values), torch.from_numpy(fit_tails(reference))).numpy())


def standardise(values: NDArray[np.float64], reference: NDArray[np.float64]) -> NDArray[np.float64]:
    median, high = np.quantile(reference, [0.5, 0.9], axis=0)
    return np.asarray((values - median) / ((high - median) / 1.2816))


def test_each_component_responds_to_its_own_change() -> None:
    found = fit_head(features_of(200), shifts())
    usual = features_of(50, seed=1)
    deep, pooled = usual.statistics.copy(), usual.pooled.copy()
    deep[:, sum(LAYERS[:2]) : sum(LAYERS)] *= 3
    pooled[:, 0] -= 9
    changes = {
        "acquisition": [with_logits_moved(usual, 9)],
        "content": [usual._replace(statistics=deep), usual._replace(pooled=pooled)],
        "place": [with_places_moved(usual, 4)],
    }
    before = found.components(usual)
    assert set(before) == set(COMPONENTS)
    for component, changed in changes.items():
        for each in changed:
            after = found.components(each)
            assert auroc(found.score(usual), found.score(each)) > 0.9
            largest = max(after, key=lambda name: float(np.median(after[name])))
            assert largest == component
            for name in set(COMPONENTS) - {component}:
                assert np.median(after[name]) < 3


def test_where_scenes_differ_an_image_is_compared_with_images_of_similar_content() -> None:
    """A change that leaves early statistics in their range, but not in that of the scene."""
    known, before, after = scene_shifts(), scenes(200, seed=2), scenes(200, seed=3, moved=0.4)
    similar = ComponentsHead(layer_sizes=LAYERS).fit(scenes(300, seed=1), known)
    everything = ComponentsHead(layer_sizes=LAYERS).fit(scenes(300, seed=1))
    assert auroc(similar.score(before), similar.score(after)) > auroc(everything.score(before), everything.score(after))
    assert not {"logit", "early"} & set(similar.parts)
    again = ComponentsHead.from_tensors(similar.to_tensors(), similar.probes, SIZES)
    assert np.array_equal(again.score(after), similar.score(after))


def test_other_tones_are_found_whatever_the_network_makes_of_them() -> None:
    """A known change moves them one way: the same distance the other way counts less."""
    known, usual = shifts(), features_of(60, seed=1)
    head = ComponentsHead(layer_sizes=LAYERS).fit(features_of(300), known)
    moved = 6 * known["a"][0, DIMENSIONS:] / np.linalg.norm(known["a"][0, DIMENSIONS:])
    before, after, other_way = (head.score(usual._replace(tones=usual.tones + by)) for by in (0 * moved, moved, -moved))
    assert auroc(before, after) > 0.9
    assert np.median(after) > np.median(other_way)


def test_where_images_look_alike_known_changes_leave_the_early_distance_as_it_is() -> None:
    found, plain = (ComponentsHead(layer_sizes=LAYERS).fit(features_of(100), known) for known in (shifts(), {}))
    assert "early" in found.parts
    for name, values in plain.early.named_buffers():
        assert torch.equal(found.early.get_buffer(name), values)


@pytest.mark.parametrize("fitted", [21, *(pytest.param(count, marks=pytest.mark.slow) for count in (60, 200))])
def test_few_new_normal_images_have_a_significant_component(fitted: int) -> None:
    shares = []
    for draw in range(12):
        found = fit_head(features_of(fitted, seed=draw), shifts())
        components = found.components(features_of(100, seed=100 + draw))
        shares.append((np.stack(list(components.values())).max(0) > found.head.significance_level).mean())
    assert 0.005 < np.mean(shares) < 0.06


@pytest.mark.parametrize(
    ("left", "parts"),
    [
        ({"logits": np.empty((80, 0), np.float32)}, set(PART_NAMES) - {"logit"}),
        ({"pooled": np.empty((80, 0), np.float32)}, set(PART_NAMES) - {"neighbours"}),
        ({"tones": np.empty((80, 0), np.float32)}, set(PART_NAMES) - {"tones"}),
    ],
)
def test_a_missing_kind_of_features_leaves_its_part_out(left: dict[str, Any], parts: set[str]) -> None:
    normal = features_of(80)._replace(**left)
    found = fit_head(normal, shifts())
    assert set(found.head.parts) == parts
    assert np.isfinite(found.score(normal)).all()
    assert set(ComponentsHead(layer_sizes=LAYERS).fit(normal, shifts()).parts) == parts - {"places"}
    assert ComponentsHead().fit(without_logits(normal.statistics)).parts == ("early",)


def test_places_that_do_not_help_are_not_needed() -> None:
    normal = features_of(60)
    assert "places" in fit_head(normal, trials={"place": 3}).head.parts
    head = fit_head(normal, trials={"place": 0}).head
    assert set(head.parts) == set(PART_NAMES) - {"places", "probes", "tones"}
    assert head.needs == ("logits", "statistics", "pooled")
    new = features_of(5, seed=1)
    assert np.array_equal(head.score(new), head.score(new.without_places()))


def test_places_do_not_count_where_scenes_differ() -> None:
    assert "places" in fit_head(features_of(300), shifts(), trials={"place": 3}).head.parts
    assert "places" not in fit_head(scenes(300), scene_shifts(), trials={"place": 3}).head.parts


def test_trials_are_scored_by_parts_that_were_not_fitted_on_their_image(monkeypatch: pytest.MonkeyPatch) -> None:
    normal, seen = features_of(30), []
    fit = Neighbours.fit.__func__  # type: ignore[attr-defined]

    def remember(cls: type[Neighbours], pooled: NDArray[np.floating], *, seed: int = 0) -> Neighbours:
        neighbours: Neighbours = fit(cls, pooled, seed=seed)
        known, forward = {row.tobytes() for row in pooled}, neighbours.forward

        def checked(values: torch.Tensor) -> torch.Tensor:
            seen.append(any(row.tobytes() in known for row in values.numpy()))
            return forward(values)

        monkeypatch.setattr(neighbours, "forward", checked)
        return neighbours

    monkeypatch.setattr(Neighbours, "fit", classmethod(remember))
    places = compare_places(normal)
    ComponentsHead(trials=trials_of(normal, places, place=0), places=places).fit(normal)
    assert len(seen) == 10, "of each fold its images and its trials"
    assert not any(seen)


def test_places_of_some_images_are_enough() -> None:
    normal = features_of(80)
    places = compare_places(normal, np.arange(0, 80, 2))
    found = Scoring(ComponentsHead(places=places).fit(normal), places.model)
    assert "places" in found.head.parts
    changed = with_places_moved(features_of(60, seed=2), 4)
    assert auroc(found.score(features_of(60, seed=1)), found.score(changed)) > 0.9


@pytest.mark.parametrize(
    ("images", "rate", "splits"), [(40, 0.1, 20), pytest.param(80, 0.05, 200, marks=pytest.mark.slow)]
)
def test_false_alarms_stay_exact_whatever_is_chosen(images: int, rate: float, splits: int) -> None:
    """Over many detectors whose trials, on images that they fit, sometimes keep a part and sometimes do not."""
    held_out, flagged, chosen, similar = round(1 / rate) - 1, [], set(), set()
    for seed in range(splits):
        make, known = (scenes, scene_shifts()) if seed % 2 else (features_of, shifts(seed))
        drawn = make(images + 40, seed=100 + seed)
        fit = drawn.select(slice(held_out, images))
        found = fit_head(fit, known, trials={"place": 1.0, "acquisition": 0.7, "count": 20}, seed=seed)
        chosen.add(found.head.parts)
        similar.add(len(found.head.early.mean))
        limit = threshold(found.score(drawn.select(slice(0, held_out))), rate)
        flagged.append(np.mean(found.score(drawn.select(slice(images, None))) > limit))
    assert len(chosen) > 1
    assert len(similar) > 1
    # A detector's own rate follows Beta(1, n): about as widely spread as its mean, which is the rate.
    assert np.mean(flagged) == pytest.approx(rate, abs=4 * rate / np.sqrt(splits))


@pytest.mark.parametrize("place", [0.0, 3.0])
def test_a_fitted_head_survives_as_tensors_to_the_bit(place: float) -> None:
    found = fit_head(features_of(40), shifts(), trials={"place": place})
    head, new = found.head, found.seen(features_of(7, seed=1))
    assert ("places" in head.parts) == (place > 0)
    again = ComponentsHead.from_tensors(head.to_tensors(), head.probes, SIZES)
    assert np.array_equal(again.score(new), head.score(new))
    assert (again.parts, again.needs, again.components) == (head.parts, head.needs, head.components)
    assert np.array_equal(again.outputs(new).components, head.outputs(new).components)
    np.testing.assert_allclose([head.score(each)[0] for each in new.one_by_one()], head.score(new), rtol=1e-9)
    for each in (head, again):  # where numbers begin decides with some libraries how a product's sums are divided
        assert all(
            buffer.is_contiguous() and buffer.data_ptr() % 64 == 0 for buffer in each.buffers() if buffer.numel()
        )


def test_features_of_another_network_are_refused() -> None:
    head = fit_head(features_of(40)).head
    head.check_sizes(SIZES)
    for other in ({"places": 0}, {"pooled": CHANNELS + 1}, {"logits": False}, {"statistics": 2}):
        with pytest.raises(WeightsError):
            head.check_sizes(SIZES._replace(**other))
