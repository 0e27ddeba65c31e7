"""A detector of named components: fitted on images, bounded in memory, stored and refused as any other."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates

from discopatch import Detector, fitting, normal_images
from discopatch.calibration import Index
from discopatch.encoders import Features
from discopatch.errors import WeightsError
from discopatch.explain.anomaly_map import GRID
from discopatch.heads import ComponentsHead, make_trials
from discopatch.heads.parts import PART_NAMES
from discopatch.heads.trials import N_ACQUISITION, N_PLACE, Trials
from discopatch.images import Pixels
from discopatch.normal_images import NormalImages
from discopatch.results import position_of
from tests.samples import new_detector, one_camera, with_tensors

RATE = 0.1


@cache
def detector() -> Detector:
    return new_detector(head="components", false_alarm_rate=RATE).fit(one_camera(60), workers=1)


def head_of(found: Detector) -> ComponentsHead:
    assert isinstance(found.head_, ComponentsHead)
    return found.head_


@cache
def place_detector() -> Detector:
    """One whose places count, whatever the trials of so small a network say."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("discopatch.heads.trials.EARNING", -100.0)
        patch.setattr("discopatch.heads.trials.PLAIN_LOSS", 1.0)
        return new_detector(head="components", false_alarm_rate=RATE).fit(one_camera(60), workers=1)


def test_it_fits_scores_and_explains_images() -> None:
    found, new = place_detector(), one_camera(12, seed=1)
    assert head_of(found).parts == PART_NAMES
    assert found.encoder_.kinds == {"logits", "statistics", "pooled", "places"}
    usual = found.score(new)
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    assert found.score([noise])[0] > usual.max()
    assert found.explain(new[0]).prediction.score == usual[0]
    assert np.array_equal(found.score(new), [found.score([image])[0] for image in new])


def test_predictions_and_explanations_say_which_components_speak(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a level that two of the three exceed: so small a network hears little."""
    found, image = place_detector(), one_camera(1, seed=1)[0].pixels
    monkeypatch.setattr(head_of(found), "significance_level", -0.3)
    assert found.component_names == ("acquisition", "content", "place")
    changed = image.copy()
    changed[44:, 44:] = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    (prediction,) = found.predict([changed])
    z = head_of(found).component_scores(found.extract_features([changed], workers=1))
    assert {each.name: each.z for each in prediction.components} == {name: values[0] for name, values in z.items()}
    assert [each.significant for each in prediction.components] == [each.z > -0.3 for each in prediction.components]
    explanation = found.explain(changed)
    assert explanation.prediction.components == prediction.components
    assert [(each.name, each.z) for each in explanation.components] == [each[:2] for each in prediction.significant]
    features = found.extract_features([changed], workers=1)
    places = head_of(found).place_map(features)
    assert places is not None
    texts = {each.name: each.text for each in explanation.components}
    assert texts["place"] == f"a place in it: {position_of(places)}"
    assert "content" not in texts
    assert explanation.anomaly_map[40:, 40:].mean() > 3 * explanation.anomaly_map[:40, :40].mean()
    assert found.predict_features(features)[0].components == prediction.components


def test_an_explanation_compares_the_places_with_the_memory_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found, image = place_detector(), one_camera(1, seed=1)[0].pixels
    compared, memory = [], head_of(found).memory
    compare = memory.distances

    def distances(local: torch.Tensor) -> torch.Tensor:
        compared.append(len(local))
        return compare(local)

    monkeypatch.setattr(memory, "distances", distances)
    explanation = found.explain(image)
    assert compared == [1]
    assert explanation.prediction == found.predict([image])[0]


def test_other_heads_have_no_components() -> None:
    found = new_detector(head="combined").fit(one_camera(40), workers=1)
    image = one_camera(1, seed=1)[0]
    assert found.component_names == ()
    assert found.predict([image])[0].components == ()
    explanation = found.explain(image)
    assert explanation.components == ()
    regions = found.encoder_.extract_regions(image.pixels, GRID**2)
    expected = found.regions_.anomaly_map(regions, size=64, patch_size=found.encoder_.patch_size)
    assert np.array_equal(explanation.anomaly_map, expected)


def hot_regions(found: Detector, image: Pixels) -> float:
    excess = found.regions_.excess(found.encoder_.extract_regions(image, GRID**2)).reshape(GRID, GRID)
    places = head_of(found).place_map(found.encoder_.extract_pixels(image[None]))
    assert places is not None
    middles = (np.linspace(0, 32, GRID) + 16) / 64 * len(places) - 0.5
    at = np.stack(np.meshgrid(middles, middles, indexing="ij"))
    return float(((excess > 0) | (map_coordinates(places, at, order=1, mode="nearest") > 0)).mean())


@pytest.mark.slow
def test_about_one_in_ten_regions_of_new_normal_images_is_hot_with_places_too() -> None:
    """By its own score, or by the places at its middle."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("discopatch.heads.trials.EARNING", -100.0)
        patch.setattr("discopatch.heads.trials.PLAIN_LOSS", 1.0)
        hot = []
        for draw in range(3):
            images = one_camera(84, seed=20 + draw)
            found = new_detector(head="components", seed=draw).fit(images[:60], workers=1)
            hot += [hot_regions(found, each.pixels) for each in images[60:]]
    assert 0.05 <= np.mean(hot) <= 0.15


def test_the_encoder_of_a_fitted_detector_gives_only_what_its_head_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discopatch.heads.trials.EARNING", 1e9)
    found = new_detector(head="components", false_alarm_rate=RATE).fit(one_camera(40), workers=1)
    assert "places" not in head_of(found).parts
    assert "places" not in found.encoder_.kinds
    assert np.isfinite(found.score(one_camera(3, seed=1))).all()


def test_trials_are_few_and_made_of_fitted_images_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tells the row of its image; the images that calibrate take no part."""
    tried: list[Trials] = []
    sampled: list[NDArray[np.float32]] = []
    fitted: list[NDArray[np.float32]] = []
    fit = ComponentsHead.fit

    def made(extract: Callable[[Pixels], Features], pixels: Pixels, rows: Index, *, seed: int) -> Trials:
        tried.append(make_trials(extract, pixels, rows, seed=seed))
        sampled.append(extract(pixels).statistics[np.argsort(rows)])
        return tried[-1]

    def remembered(self: ComponentsHead, features: Features, *args: Any, **options: Any) -> ComponentsHead:
        fitted.append(features.statistics)
        return fit(self, features, *args, **options)

    monkeypatch.setattr(fitting, "make_trials", made)
    monkeypatch.setattr(ComponentsHead, "fit", remembered)
    new_detector(head="components", false_alarm_rate=RATE).fit(one_camera(60), workers=1)
    assert len(tried[0].rows) == N_ACQUISITION + N_PLACE <= 60
    assert np.array_equal(sampled[0], fitted[-1]), "so few that all of them are sampled"


def test_in_patches_there_are_no_places() -> None:
    found = new_detector(head="components", false_alarm_rate=RATE, patches=4).fit(one_camera(40), workers=1)
    assert "places" not in head_of(found).parts
    assert "neighbours" in head_of(found).parts


def test_it_can_be_fitted_on_features() -> None:
    maker = new_detector(head="components", false_alarm_rate=RATE)
    features = maker.extract_features(one_camera(60), workers=1)
    found = maker.fit_features(features)
    assert set(head_of(found).parts) == set(PART_NAMES) - {"probes"}
    new = new_detector(head="components").extract_features(one_camera(4, seed=1), workers=1)
    assert [each.score for each in found.predict_features(new)] == found.score(one_camera(4, seed=1)).tolist()
    alone = new_detector(head="components", false_alarm_rate=RATE).fit_features(features.statistics)
    assert head_of(alone).parts == ("early", "deep")


# Very many images


def test_of_many_images_the_places_of_some_are_kept_and_those_calibrate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normal_images, "N_PLACES", 50)
    monkeypatch.setattr("discopatch.heads.trials.EARNING", -100.0)
    kept: list[NormalImages] = []
    collect = NormalImages.collect

    def recorded(*args: object, **options: object) -> NormalImages:
        kept.append(collect(*args, **options))  # type: ignore[arg-type]
        return kept[-1]

    monkeypatch.setattr(NormalImages, "collect", recorded)
    found = new_detector(head="components", false_alarm_rate=RATE).fit(one_camera(150), workers=1)
    assert len(kept[0].places) == 50
    assert not kept[0].features.places.size
    assert "places" in head_of(found).parts
    assert 9 <= len(found.calibration_scores_) < 49
    assert found.n_fit_ == 101


def test_where_too_few_of_those_can_calibrate_places_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normal_images, "N_PLACES", 12)
    monkeypatch.setattr("discopatch.heads.trials.EARNING", -100.0)
    found = new_detector(head="components", false_alarm_rate=RATE).fit(one_camera(150), workers=1)
    assert "places" not in head_of(found).parts
    assert len(found.calibration_scores_) == 49


def test_remembered_images_are_taken_evenly_from_all_that_are_fitted() -> None:
    places = {row: np.full((1, 1), row, np.float16) for row in range(0, 1000, 2)}
    count = 1000
    empty = Features(np.empty((count, 0), np.float32), np.empty((count, 0), np.float32))
    normal = NormalImages(empty, [""] * count, [b""] * count, np.arange(count), {}, places, count)
    rows = np.arange(100, 1000)
    found = normal.some_places(rows, most=50)
    assert len(found.rows) == len(set(found.rows.tolist())) == 50
    assert np.array_equal(rows[found.rows], found.values[:, 0, 0])
    assert np.diff(found.rows).max() <= 20
    assert found.rows[[0, -1]].tolist() == [0, 898]
    assert not normal.some_places(rows, most=0).values.size
    assert np.array_equal(normal.with_places(np.array([5, 8, 4])), [8, 4])
    assert normal.select(np.array([8, 4]), places=True).places.ravel().tolist() == [8, 4]


# As a file


@pytest.mark.parametrize("made", [detector, place_detector])
def test_it_survives_its_file_to_the_bit(made: Callable[[], Detector], tmp_path: Path) -> None:
    before, new = made(), one_camera(5, seed=1)
    before.save(tmp_path / "file")
    after = Detector.load(tmp_path / "file", device="cpu")
    assert np.array_equal(after.score(new), before.score(new))
    assert head_of(after).parts == head_of(before).parts
    one, other = (head_of(each).component_scores(each.extract_features(new, workers=1)) for each in (before, after))
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("head/counts", torch.zeros_like),
        ("head/counts", lambda values: values[:-1].clone()),
        ("head/spreads", torch.zeros_like),
        ("head/component_spreads", lambda values: -values),
        ("head/speaking", lambda values: values * torch.nan),
        ("head/place_level", lambda values: values[None].clone()),
        ("head/place_spreads", torch.zeros_like),
        ("head/place_centres", lambda values: values[:-1].clone()),
        ("head/probe_spreads", lambda values: values[:-1].clone()),
        ("head/filters", lambda values: values[:, :-1].contiguous()),
        ("head/mean", lambda values: values * torch.nan),
        ("head/early.mean", lambda values: torch.cat([values, values])),
        ("head/deep.scale", torch.zeros_like),
        ("head/deep.axes", lambda values: values[:, :-1].contiguous()),
        ("head/neighbours.bank", lambda values: values[:0].clone()),
        ("head/neighbours.bank", lambda values: values[:, :-1].contiguous()),
        ("head/neighbours.bank", lambda values: torch.ones(10_001, values.shape[1])),
        ("head/memory.vectors", lambda values: values[:0].clone()),
        ("head/memory.vectors", lambda values: values[:, :-1].contiguous()),
        ("head/memory.scale", torch.zeros_like),
        ("head/memory.vectors", lambda values: torch.ones(10_001, values.shape[1])),
    ],
)
def test_a_tensor_of_another_shape_or_range_is_refused(
    tmp_path: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    path = tmp_path / "camera.safetensors"
    place_detector().save(path)
    with_tensors(path, lambda tensors: tensors.update({name: change(tensors[name])}))
    with pytest.raises(WeightsError, match=r"camera\.safetensors.*fit again"):
        Detector.load(path)


@pytest.mark.parametrize("part", ["memory", "neighbours"])
def test_features_of_another_network_are_refused(tmp_path: Path, part: str) -> None:
    """All tensors of the part are of one size, but of another than its network's."""
    path = tmp_path / "camera.safetensors"
    place_detector().save(path)
    own = ("mean", "scale", "vectors") if part == "memory" else ("bank",)

    def shorten(tensors: dict[str, torch.Tensor]) -> None:
        for name in (f"head/{part}.{each}" for each in own):
            tensors[name] = tensors[name][..., :-1].contiguous()

    with_tensors(path, shorten)
    with pytest.raises(WeightsError, match=r"camera\.safetensors.*network"):
        Detector.load(path)
