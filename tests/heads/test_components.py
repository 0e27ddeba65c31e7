"""The components head: acquisition, content and place, and the choice of parts."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp

from discopatch.calibration import fold_numbers, threshold
from discopatch.encoders import Features, FeatureSizes, PlaceSample
from discopatch.errors import WeightsError
from discopatch.heads import ComponentsHead, LocalMemory
from discopatch.heads.memory import Neighbours
from discopatch.heads.parts import COMPONENTS, PART_NAMES, USUAL_WITH_PLACES
from discopatch.heads.trials import Trials
from discopatch.metrics import auroc
from tests.heads.test_heads import log_distance
from tests.samples import without_logits

LAYERS = (8, 12, 20)
DIMENSIONS, CHANNELS, POSITIONS, PLACE = sum(LAYERS), 6, 9, 4
SIZES = FeatureSizes(DIMENSIONS, CHANNELS, PLACE, logits=True)


def features_of(images: int, *, seed: int = 0) -> Features:
    """All kinds, independent of one another; places near one of three points."""
    rng = np.random.default_rng([seed, 5])
    points = np.random.default_rng(1).normal(0, 3, (3, PLACE))
    places = points[rng.integers(3, size=(images, POSITIONS))] + 0.2 * rng.normal(size=(images, POSITIONS, PLACE))
    return Features(
        rng.normal(4, 1, (images, 9)).astype(np.float32),
        rng.normal(size=(images, DIMENSIONS)).astype(np.float32),
        (3 + rng.normal(size=(images, CHANNELS))).astype(np.float32),
        places.astype(np.float16),
    )


def shifts(seed: int = 3) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return {name: (rng.normal(size=(1, DIMENSIONS)) * rng.uniform(1, 2, (5, 1))).astype(np.float32) for name in "ab"}


def with_places_moved(features: Features, by: float) -> Features:
    places = features.places.copy()
    places[:, :2] += np.float16(by)
    return features._replace(places=places)


def with_logits_moved(features: Features, by: float) -> Features:
    return features._replace(logits=features.logits - np.float32(by))


def trials_of(features: Features, *, place: float, acquisition: float = 2.0, count: int = 60) -> Trials:
    """Every other trial is one of acquisition; the places of the rest move by so much."""
    rows = np.arange(count) % len(features.logits)
    of_place = np.arange(count) % 2 == 0
    parts = [
        with_places_moved(each, place) if local else with_logits_moved(each, acquisition)
        for each, local in zip(features.select(rows).one_by_one(), of_place, strict=True)
    ]
    return Trials(Features.concatenate(parts), rows, of_place)


def components_of(head: ComponentsHead, features: Features) -> dict[str, NDArray[np.float64]]:
    return dict(zip(head.component_names, head.outputs(features).components.T, strict=True))


def test_the_score_is_the_soft_maximum_of_parts_on_the_scale_of_images_that_were_not_fitted() -> None:
    normal, new, known = features_of(60), features_of(12, seed=1), shifts()
    head = ComponentsHead(layer_sizes=LAYERS).fit(normal, known)
    assert head.parts == PART_NAMES
    assert head.components == COMPONENTS
    early = sum(LAYERS[:2])

    def by_parts(part: ComponentsHead, features: Features) -> NDArray[np.float64]:
        statistics = features.statistics
        return np.column_stack(
            [
                -features.logits.astype(np.float64).mean(1),
                log_distance(part.early, statistics[:, :early]),
                log_distance(part.deep, statistics[:, early:]),
                part.neighbours(torch.from_numpy(features.pooled)).numpy(),
                part.memory.score(features.places),
                (statistics.astype(np.float64) - part.mean.numpy()) @ part.filters.numpy().T,
            ]
        )

    fold, held_out = fold_numbers(60), np.empty((60, 7))
    for number in range(5):
        part = ComponentsHead(layer_sizes=LAYERS).fit(normal.select(fold != number), known)
        held_out[fold == number] = by_parts(part, normal.select(fold == number))
    z = standardise(by_parts(head, new), held_out)
    largest = standardise(z[:, 5:].max(1, keepdims=True), standardise(held_out, held_out)[:, 5:].max(1, keepdims=True))
    expected = logsumexp(np.column_stack([z[:, :5], largest]), axis=1)
    np.testing.assert_allclose(head.score(new), expected, rtol=1e-6, atol=1e-6)


def standardise(values: NDArray[np.float64], reference: NDArray[np.float64]) -> NDArray[np.float64]:
    median, high = np.quantile(reference, [0.5, 0.9], axis=0)
    return np.asarray((values - median) / ((high - median) / 1.2816))


def test_each_component_responds_to_its_own_change() -> None:
    head = ComponentsHead(layer_sizes=LAYERS).fit(features_of(200), shifts())
    usual = features_of(50, seed=1)
    deep, pooled = usual.statistics.copy(), usual.pooled.copy()
    deep[:, sum(LAYERS[:2]) :] *= 3
    pooled[:, 0] -= 9
    changes = {
        "acquisition": [with_logits_moved(usual, 9)],
        "content": [usual._replace(statistics=deep), usual._replace(pooled=pooled)],
        "place": [with_places_moved(usual, 4)],
    }
    before = components_of(head, usual)
    assert set(before) == set(COMPONENTS)
    for component, changed in changes.items():
        for each in changed:
            after = components_of(head, each)
            assert auroc(head.score(usual), head.score(each)) > 0.9
            largest = max(after, key=lambda name: float(np.median(after[name])))
            assert largest == component
            for name in set(COMPONENTS) - {component}:
                assert np.median(after[name]) < 3


@pytest.mark.parametrize("fitted", [21, *(pytest.param(count, marks=pytest.mark.slow) for count in (60, 200))])
def test_few_new_normal_images_have_a_significant_component(fitted: int) -> None:
    shares = []
    for draw in range(12):
        head = ComponentsHead(layer_sizes=LAYERS).fit(features_of(fitted, seed=draw), shifts())
        found = components_of(head, features_of(100, seed=100 + draw))
        shares.append((np.stack(list(found.values())).max(0) > head.significance_level).mean())
    assert 0.005 < np.mean(shares) < 0.06


def test_the_map_of_places_is_above_0_where_few_places_of_other_images_are_as_far() -> None:
    normal, new = features_of(120), features_of(60, seed=1)
    head = ComponentsHead(layer_sizes=LAYERS).fit(normal)
    maps = [head.outputs(each).place_map for each in new.one_by_one()]
    assert {each.shape for each in maps if each is not None} == {(1, 3, 3)}
    anomalous = np.mean([(each > 0).mean() for each in maps if each is not None])
    assert anomalous == pytest.approx(1 - USUAL_WITH_PLACES, abs=0.03)
    places = new.places.copy()
    places[:, 5] += 4
    for each in new._replace(places=places).one_by_one():
        found = head.outputs(each).place_map
        assert found is not None
        assert found.argmax() == 5
    assert ComponentsHead(layer_sizes=LAYERS).fit(normal.without_places()).outputs(new).place_map is None


@pytest.mark.parametrize(
    ("left", "parts"),
    [
        ({"logits": np.empty((80, 0), np.float32)}, {"early", "probes", "deep", "neighbours", "places"}),
        ({"pooled": np.empty((80, 0), np.float32)}, {"logit", "early", "probes", "deep", "places"}),
        ({"places": np.empty((80, 0, 0), np.float16)}, {"logit", "early", "probes", "deep", "neighbours"}),
    ],
)
def test_a_missing_kind_of_features_leaves_its_part_out(left: dict[str, Any], parts: set[str]) -> None:
    normal = features_of(80)._replace(**left)
    head = ComponentsHead(layer_sizes=LAYERS).fit(normal, shifts())
    assert set(head.parts) == parts
    assert np.isfinite(head.score(normal)).all()
    assert ComponentsHead().fit(without_logits(normal.statistics)).parts == ("early",)


def test_places_that_do_not_help_are_neither_stored_nor_needed() -> None:
    normal = features_of(60)
    assert "places" in ComponentsHead(layer_sizes=LAYERS, trials=trials_of(normal, place=3)).fit(normal).parts
    head = ComponentsHead(layer_sizes=LAYERS, trials=trials_of(normal, place=0)).fit(normal)
    assert set(head.parts) == set(PART_NAMES) - {"places", "probes"}
    assert head.needs == ("logits", "statistics", "pooled")
    assert not len(head.memory.vectors)
    new = features_of(5, seed=1)
    assert np.array_equal(head.score(new), head.score(new.without_places()))


def test_trials_are_scored_by_parts_that_were_not_fitted_on_their_image(monkeypatch: pytest.MonkeyPatch) -> None:
    normal, seen = features_of(30), []
    fit = LocalMemory.fit.__func__  # type: ignore[attr-defined]

    def remember(cls: type[LocalMemory], local: NDArray[np.floating], *, seed: int = 0) -> LocalMemory:
        memory: LocalMemory = fit(cls, local, seed=seed)
        known, score = {row.tobytes() for row in local}, memory.score_and_distances

        def checked(values: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            seen.append(any(row.tobytes() in known for row in values))
            return score(values)

        monkeypatch.setattr(memory, "score_and_distances", checked)
        return memory

    monkeypatch.setattr(LocalMemory, "fit", classmethod(remember))
    ComponentsHead(trials=trials_of(normal, place=0)).fit(normal)
    assert len(seen) == 10, "of each fold its images and its trials"
    assert not any(seen)


def test_places_of_some_images_are_enough() -> None:
    normal = features_of(80)
    rows = np.arange(0, 80, 2)
    some = PlaceSample(rows, normal.places[rows])
    head = ComponentsHead(places=some).fit(normal.without_places())
    assert "places" in head.parts
    changed = with_places_moved(features_of(60, seed=2), 4)
    assert auroc(head.score(features_of(60, seed=1)), head.score(changed)) > 0.9
    assert "places" not in ComponentsHead(places=PlaceSample(rows[:0], normal.places[:0])).fit(normal).parts
    alike = np.zeros(80, np.intp)
    alike[1::2] = np.arange(1, 41)
    assert "places" not in ComponentsHead(places=some).fit(normal, groups=alike).parts, "all in one fold"


@pytest.mark.parametrize(
    ("images", "rate", "splits"), [(40, 0.1, 20), pytest.param(80, 0.05, 200, marks=pytest.mark.slow)]
)
def test_false_alarms_stay_exact_whatever_is_chosen(images: int, rate: float, splits: int) -> None:
    """Over many detectors whose trials, on images that they fit, sometimes keep a part and sometimes do not."""
    held_out, flagged, chosen = round(1 / rate) - 1, [], set()
    for seed in range(splits):
        drawn = features_of(images + 40, seed=100 + seed)
        fit = drawn.select(slice(held_out, images))
        trials = trials_of(fit, place=1.0, acquisition=0.7, count=20)
        head = ComponentsHead(layer_sizes=LAYERS, trials=trials, seed=seed).fit(fit, shifts(seed))
        chosen.add(head.parts)
        limit = threshold(head.score(drawn.select(slice(0, held_out))), rate)
        flagged.append(np.mean(head.score(drawn.select(slice(images, None))) > limit))
    assert len(chosen) > 1
    # A detector's own rate follows Beta(1, n): about as widely spread as its mean, which is the rate.
    assert np.mean(flagged) == pytest.approx(rate, abs=4 * rate / np.sqrt(splits))


@pytest.mark.parametrize("place", [0.0, 3.0])
def test_a_fitted_head_survives_as_tensors_to_the_bit(place: float) -> None:
    normal, new = features_of(40), features_of(7, seed=1)
    head = ComponentsHead(layer_sizes=LAYERS, trials=trials_of(normal, place=place)).fit(normal, shifts())
    again = ComponentsHead.from_tensors(head.to_tensors(), head.probes, SIZES)
    assert np.array_equal(again.score(new), head.score(new))
    assert (again.parts, again.needs, again.components) == (head.parts, head.needs, head.components)
    assert np.array_equal(again.outputs(new).components, head.outputs(new).components)
    for each in (head, again):  # where numbers begin decides with some libraries how a product's sums are divided
        assert all(
            buffer.is_contiguous() and buffer.data_ptr() % 64 == 0 for buffer in each.buffers() if buffer.numel()
        )


def test_tensors_of_another_network_or_of_nothing_are_refused() -> None:
    head = ComponentsHead(layer_sizes=LAYERS).fit(features_of(40))
    head.check_sizes(SIZES)
    for other in ({"places": 0}, {"pooled": CHANNELS + 1}, {"logits": False}, {"statistics": 2}):
        with pytest.raises(WeightsError):
            head.check_sizes(SIZES._replace(**other))
    empty = Neighbours.fit(np.empty((0, CHANNELS), np.float32))
    for changes in (
        {"counts": np.zeros(len(PART_NAMES))},
        {"neighbours.bank": empty.bank.numpy()},
        {"memory.vectors": np.empty((0, PLACE))},
        {"counts": np.ones(len(PART_NAMES) - 1)},
        {"spreads": np.zeros(len(PART_NAMES))},
    ):
        tensors = {**head.to_tensors(), **{name: torch.from_numpy(value) for name, value in changes.items()}}
        with pytest.raises(WeightsError):
            ComponentsHead.from_tensors(tensors, head.probes)
