"""How far an export and its detector are apart is measured truly, and too far is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from discopatch import Detector
from discopatch.deploy.engines import Answer
from discopatch.deploy.parity import LIMIT, Original, Parity, ParityError, auroc, measure
from discopatch.images import Pixels
from tests.deploy.samples import Lying, pixels_of, tiny_detector
from tests.scoring.samples import of_one_camera, tiny_weights

FINE = Parity(images=64, scores=1e-5, shift=1e-6, p_values=0, verdicts=0, heatmaps=8, heat=1e-5)


def measured(by: float) -> Parity:
    detector = tiny_detector()
    return measure(Original(detector), Lying(detector, by), pixels_of(12), calibrated=19)


def test_the_original_is_the_detector() -> None:
    detector, pixels = tiny_detector(), pixels_of(3)
    original = Original(detector)
    np.testing.assert_allclose(original.scores(pixels), detector.score(list(pixels), workers=1), rtol=1e-12)
    assert np.array_equal(original.heat(pixels[0]), detector.explain(pixels[0]).heat)
    assert original.spread == np.std(detector.fitted.calibration)


def test_what_says_the_same_is_no_distance_apart() -> None:
    parity = measured(0)
    parity.check()
    assert (parity.images, parity.heatmaps) == (12, 8)
    assert parity.scores == pytest.approx(0, abs=1e-12)
    assert (parity.heat, parity.p_values) == (0, 0)
    assert "scores agree to" in parity.words
    assert "limit 0.001" in parity.words
    assert "no p-value differs" in parity.words
    assert "on 12 reference images (64 are better), scores" in parity.words


@pytest.mark.parametrize("by", [0.9e-3, -0.9e-3, 1.1e-3, -1.1e-3, 3.0])
def test_a_difference_is_measured_in_spreads_of_normal_scores_and_refused_above_a_thousandth(by: float) -> None:
    parity = measured(by)
    assert parity.scores == pytest.approx(abs(by))
    assert parity.shift == pytest.approx(by)
    if abs(by) <= 1e-3:
        parity.check()
        return
    with pytest.raises(ParityError, match=rf"differ from the detector's by up to {abs(by):.2g} of .* limit is 0\.001"):
        parity.check()
    assert LIMIT == 1e-3


def test_p_values_and_verdicts_that_differ_are_counted() -> None:
    """Pushed far beyond the threshold, all are flagged with the smallest p-value there is."""
    detector, parity = tiny_detector(), measured(100)
    expected = detector.predict(list(pixels_of(12)), workers=1)
    assert parity.verdicts == sum(not each.is_ood for each in expected) > 6
    assert parity.p_values == sum(each.p_value != 1 / 20 for each in expected)
    assert f"{parity.p_values} p-values and {parity.verdicts} verdicts differ" in parity.words


def test_a_heatmap_that_differs_visibly_is_refused() -> None:
    with pytest.raises(ParityError, match=r"heat of the export differs .* by up to 0\.02, the limit is 0\.01: nothing"):
        replace(FINE, heat=0.02).check()


def test_scores_that_are_no_numbers_are_refused() -> None:
    for found in (
        replace(FINE, scores=float("nan")),
        replace(FINE, heat=float("nan")),
        replace(FINE, auroc=(0.9, float("nan"))),
    ):
        with pytest.raises(ParityError):
            found.check()


@pytest.mark.parametrize(("after", "refused"), [(0.96, False), (0.9451, False), (0.9449, True)])
def test_8_bits_may_lose_half_a_point_of_auroc(after: float, refused: bool) -> None:
    parity = replace(FINE, scores=0.4, auroc=(0.95, after))
    if not refused:
        parity.check()
        return
    with pytest.raises(ParityError, match=r"falls from 0\.9500 to 0\.9449, the limit is 0\.005 less: nothing was"):
        parity.check()


def test_8_bits_are_told_apart_from_corrupted_twins() -> None:
    class Inverted(Lying):
        """Finds corrupted pictures normal."""

        def __call__(self, pixels: Pixels, *, heat: bool = False) -> Answer:
            score, at_least, found = super().__call__(pixels, heat=heat)
            return Answer(-score, at_least, found)

    detector, pixels = tiny_detector(), pixels_of(12)
    spoiled = np.random.default_rng(0).integers(0, 256, pixels.shape, dtype=np.uint8)
    parity = measure(Original(detector), Inverted(detector, 0), pixels, spoiled, calibrated=19)
    assert parity.auroc is not None
    before, after = parity.auroc
    assert before > 0.9
    assert after == pytest.approx(1 - before)
    with pytest.raises(ParityError, match="export without --int8"):
        parity.check()


def test_auroc_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    normal, corrupted = rng.integers(0, 9, 30).astype(float), rng.integers(3, 12, 20).astype(float)
    labels = np.r_[np.zeros(30), np.ones(20)]
    assert auroc(normal, corrupted) == pytest.approx(roc_auc_score(labels, np.r_[normal, corrupted]))


def test_it_is_ready_for_json() -> None:
    for found in (FINE, replace(FINE, auroc=(0.9, 0.8))):
        assert json.loads(json.dumps(found.to_dict()))["images"] == 64


def test_a_camera_that_hangs_cannot_be_compared() -> None:
    (picture,) = of_one_camera(1)
    detector = Detector(tiny_weights(), false_alarm_rate=0.1, device="cpu").fit([picture] * 40, workers=1)
    with pytest.raises(ParityError, match=r"all calibration scores are equal.*fit on more images"):
        _ = Original(detector).spread
