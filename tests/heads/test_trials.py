"""Trials: the changes of each image, and the parts that they select."""

from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from discopatch.demo import crops, sample_photos
from discopatch.encoders import Compare, DiscriminatorEncoder, Features
from discopatch.heads.parts import SHARPNESS
from discopatch.heads.places import WINDOWS
from discopatch.heads.trials import N_ACQUISITION, N_PLACE, Trials, changed_places, choose_parts, gain_of, make_trials
from discopatch.images import Pixels
from tests.samples import tiny_weights

Array = NDArray[np.float64]
IMAGES = np.stack([image.pixels for image in crops(sample_photos(["temple", "cat"]), 12, size=64, seed=0)])
PARTS, WITHOUT_PLACES = ("probes", "places"), ("early", "probes")


def rarities(images: int, trials: int, *, effect: tuple[float, float], seed: int = 0) -> tuple[Array, Array, Trials]:
    """Two parts: the first responds to changes of the whole image, the second to those of a place, by so much."""
    rng = np.random.default_rng(seed)
    of_place = np.arange(trials) % 2 == 0
    changed = rng.normal(size=(trials, 2))
    changed[~of_place, 0] += effect[0]
    changed[of_place, 1] += effect[1]
    empty = Features(np.empty((trials, 0), np.float32), np.empty((trials, 0), np.float32))
    rare, rare_changed = (-norm.logsf(each) for each in (rng.normal(size=(images, 2)), changed))
    return rare, rare_changed, Trials(empty, np.arange(trials) % images, of_place, np.empty((trials, 0)))


def test_about_seventy_images_are_tried_each_changed_and_in_order() -> None:
    passed: list[Pixels] = []

    def extract(images: Iterable[Pixels]) -> Iterator[Features]:
        passed.extend(images)
        return DiscriminatorEncoder(tiny_weights()).extract_each(passed)

    rows = np.random.default_rng(0).permutation(100)[: len(IMAGES)]
    trials = make_trials(extract, list(IMAGES), rows, seed=0)
    assert len(passed) == len(trials.rows) == len(trials.features.logits) == N_ACQUISITION + N_PLACE <= 72
    assert trials.of_place.sum() == N_PLACE
    for pixels, row, of_place in zip(passed, trials.rows, trials.of_place, strict=True):
        before = IMAGES[rows.tolist().index(row)]
        changed = (pixels != before).any(2)
        assert changed.any()
        height, width = (np.ptp(places) + 1 for places in np.nonzero(changed))
        assert not of_place or max(height, width) <= 0.4 * 64 + 1
    counts = np.bincount(trials.rows)[rows]
    assert counts.max() - counts.min() <= 1


def test_places_of_a_trial_are_compared_by_the_model_of_its_image() -> None:
    encoder = DiscriminatorEncoder(tiny_weights(), kinds=("logits", "statistics", "places"))
    asked: list[int] = []

    def compare(row: int) -> Compare:
        asked.append(int(row))
        return lambda maps: maps[0].mean(1) + row

    rows = 10 * np.arange(len(IMAGES))
    trials = make_trials(encoder.extract_each, list(IMAGES), rows, compare=compare, seed=0)
    assert asked == trials.rows.tolist()
    assert not trials.features.places.size, "they are not kept"
    assert trials.maxima.shape == (len(trials.rows), len(WINDOWS))
    assert (abs(trials.maxima[:, 0] - trials.rows) < 10).all()
    assert np.isnan(make_trials(encoder.extract_each, list(IMAGES), rows, seed=0).maxima).all()


@pytest.mark.parametrize("parts", [PARTS, WITHOUT_PLACES])
def test_a_gain_is_the_difference_of_areas_under_the_curve(parts: tuple[str, str]) -> None:
    normal, changed, trials = rarities(50, 40, effect=(1, 2))

    def area(count: int, own: NDArray[np.bool_]) -> float:
        weights = np.log([1 / 3.5, 2.5 / 3.5] if parts == PARTS else [1 / 2, 1 / 2])[:count]
        scores = [logsumexp(SHARPNESS * each[:, :count] + weights, axis=1) for each in (normal, changed[own])]
        labels = np.repeat([0, 1], [len(each) for each in scores])
        return float(roc_auc_score(labels, np.concatenate(scores)))

    gains = [area(2, own) - area(1, own) for own in (trials.of_place, ~trials.of_place)]
    given = parts[1], parts, normal, changed, trials, parts
    assert gain_of(*given)[0] == pytest.approx(np.mean(gains))
    assert gain_of(*given, kinds=[trials.of_place])[0] == pytest.approx(gains[0])


@pytest.mark.parametrize("images", [20, 600])
def test_places_are_taken_where_they_help(images: int) -> None:
    helpful, useless = (
        ["places" in choose_parts(*rarities(images, 56, effect=effect, seed=seed), PARTS) for seed in range(100)]
        for effect in ((2, 2), (1, 0))
    )
    assert np.mean(helpful) > 0.95
    # The standard error of the trials leaves out the chance of few normal images.
    assert np.mean(useless) < 0.2


def test_places_that_hide_more_changes_of_the_whole_image_than_they_find_are_left_out() -> None:
    counted = []
    for seed in range(100):
        normal, changed, trials = rarities(600, 56, effect=(1, 1), seed=seed)
        changed[~trials.of_place, 1] = 0  # no place is unlike others where the whole image is changed
        counted.append("places" in choose_parts(normal, changed, trials, PARTS))
    assert np.mean(counted) < 0.5


@pytest.mark.parametrize("images", [20, 600])
def test_a_part_of_acquisition_stays_unless_it_plainly_loses(images: int) -> None:
    harmless, noisy = [], []
    for seed in range(40):
        found = rarities(images, 56, effect=(2, 0.5), seed=seed)
        harmless.append(choose_parts(*found, WITHOUT_PLACES) == WITHOUT_PLACES)
        normal, changed, trials = rarities(images, 56, effect=(2, 0), seed=seed)
        noise = np.array([1.0, 6.0])  # a part so noisy that it hides the other
        noisy.append("probes" in choose_parts(normal * noise, changed * noise, trials, WITHOUT_PLACES))
    assert np.mean(harmless) > 0.8
    assert np.mean(noisy) < (0.5 if images < 100 else 0.3), "with few images chance may hide it"


def test_content_stays_though_no_trial_shows_what_it_finds() -> None:
    normal, changed, trials = rarities(200, 56, effect=(4, -3))
    assert choose_parts(normal, changed, trials, ("early", "deep")) == ("early", "deep")
    assert choose_parts(normal, changed, trials, ("early", "probes")) == ("early",)


def test_one_part_always_remains() -> None:
    normal, changed, trials = rarities(40, 56, effect=(-3, -3))
    assert choose_parts(normal, changed, trials, WITHOUT_PLACES)
    assert choose_parts(normal[:, :1], changed[:, :1], trials, ("early",)) == ("early",)
    assert choose_parts(normal[:, :1], changed[:, :1], trials, ("places",)) == ("places",)


def test_places_are_changed_in_images_of_very_different_shapes() -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in ((256, 256), (32, 256), (256, 64))]
    changed = list(changed_places(images, np.arange(N_PLACE) % 3, seed=0))
    for place, found in enumerate(changed):
        assert found.shape == images[place % 3].shape
        assert (found != images[place % 3]).any()
