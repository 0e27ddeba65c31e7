"""A detector is measured on labelled images."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import discopatch
from discopatch import Detector, Evaluation
from discopatch.calibration import Calibration, p_values
from discopatch.errors import NoImagesError, ParameterError
from discopatch.evaluation import Masks, RateResult, rate_results, suggest
from discopatch.images import NamedImage
from discopatch.metrics import auroc
from tests.samples import TOO_SMALL, new_detector, one_camera, save_images

SIDE = 256
NORMAL = [image.pixels for image in one_camera(5, size=SIDE, seed=5)]


def with_noise(seed: int = 0) -> tuple[list[NDArray[np.uint8]], list[NDArray[np.uint8]]]:
    """Images with a square of noise, and their masks, the first two of which have labels in place of white."""
    rng, images, masks = np.random.default_rng(seed), [], []
    for number, image in enumerate(one_camera(4, size=SIDE, seed=6)):
        pixels, mask = image.pixels.copy(), np.zeros((SIDE, SIDE), np.uint8)
        top, left = rng.integers(10, SIDE - 80, 2)
        pixels[top : top + 70, left : left + 70] = rng.integers(0, 255, (70, 70, 3))
        mask[top : top + 70, left : left + 70] = number + 1 if number < 2 else 255
        images.append(pixels)
        masks.append(mask)
    return images, masks


DEFECTS, MASKS = with_noise()


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """test/ with good/ and two kinds of defects, and masks/; one mask is missing, one image and one mask are broken."""
    root = tmp_path_factory.mktemp("labelled")
    save_images(root / "test/good", [NamedImage(str(number), pixels) for number, pixels in enumerate(NORMAL)])
    for number, (pixels, mask) in enumerate(zip(DEFECTS, MASKS, strict=True)):
        kind = ("noise", "other/noise")[number % 2]
        save_images(root / "test" / kind, [NamedImage(f"{number:03}", pixels)])
        (root / "masks" / kind).mkdir(parents=True, exist_ok=True)
        large = Image.fromarray(mask).resize((500, 500), Image.Resampling.NEAREST)
        if number != 1:
            large.save(root / "masks" / kind / ("000_mask.png", "", "002.tiff", "003.bmp")[number])
    (root / "masks/other/noise/003.bmp").write_bytes(b"no image")
    (root / "test/noise/broken.png").write_bytes(b"no image")
    return root


@pytest.fixture(scope="module")
def found(detector: Detector, labelled: Path) -> Evaluation:
    return detector.evaluate(labelled / "test/good", str(labelled / "test"), labelled / "masks", seed=3)


def test_every_number_is_that_of_the_predictions(found: Evaluation, detector: Detector, labelled: Path) -> None:
    normal, defects = detector.predict(NORMAL), detector.predict(DEFECTS)
    assert (found.normal_images, found.defect_images, found.detector, found.seed) == (5, 4, detector.digest_, 3)
    assert found.auroc.value == pytest.approx(auroc(normal.scores, defects.scores))
    assert found.auroc.low <= found.auroc.value <= found.auroc.high
    assert [each.rate for each in found.rates] == [0.01, 0.02, 0.05, 0.1]
    assert [each.found is None for each in found.rates] == [True, True, True, False], "nine calibration images"
    assert [each.calibration_images_needed for each in found.rates] == [99, 49, 19, 9]
    own = found.own_rate
    assert own.found is not None
    assert own.falsely_flagged is not None
    assert (own.found.flagged, own.found.images) == (defects.is_ood.sum(), 4)
    assert (own.falsely_flagged.flagged, own.falsely_flagged.images) == (normal.is_ood.sum(), 5)
    misses = {
        str(labelled / "test" / f"{('noise', 'other/noise')[n % 2]}/{n:03}.png")
        for n in range(4)
        if not defects[n].is_ood
    }
    assert {each.prediction.name for each in found.misses} == misses
    assert len(found.false_alarms) == normal.is_ood.sum()


def test_kinds_are_subfolders(found: Evaluation, detector: Detector) -> None:
    scores, normal = detector.score(DEFECTS), detector.score(NORMAL)
    assert [(each.kind, each.images) for each in found.kinds] == [("noise", 2), ("other/noise", 2)]
    assert [each.auroc.value for each in found.kinds] == pytest.approx(
        [auroc(normal, scores[place::2]) for place in (0, 1)]
    )


def test_what_cannot_be_read_is_counted_and_named(found: Evaluation, labelled: Path) -> None:
    second, fourth = (str(labelled / f"test/other/noise/{name}.png") for name in ("001", "003"))
    assert found.without_mask == (second, fourth)
    assert (found.masks, found.regions) == (2, 2)
    broken = [str(labelled / name) for name in ("test/noise/broken.png", "masks/other/noise/003.bmp")]
    assert [(each.name, each.reason) for each in found.refused] == [(name, "not_an_image") for name in broken]


def test_the_result_is_ready_for_json_and_the_same_twice(found: Evaluation, detector: Detector) -> None:
    content = json.loads(json.dumps(found.to_dict()))
    assert content["seed"] == 3
    assert content["aupro"]["value"] == found.aupro.value if found.aupro else None
    assert [each["name"] for each in content["misses"]] == [each.prediction.name for each in found.misses]
    first, second = (detector.evaluate(NORMAL[:2], DEFECTS[:2], seed=1).to_dict() for _ in range(2))
    assert first == second
    assert first["aupro"] is None


def test_maps_find_the_noise_where_the_mask_is(found: Evaluation, detector: Detector) -> None:
    assert found.aupro is not None
    assert found.pixel_auroc is not None
    arrays = detector.evaluate(NORMAL, DEFECTS, [MASKS[0], None, MASKS[2], None], seed=3)
    assert arrays.aupro is not None
    assert arrays.aupro.value == pytest.approx(found.aupro.value, abs=0.02), "masks of twice the size"
    assert len(arrays.without_mask) == 2
    for measure in (found.aupro, found.pixel_auroc):
        assert 0.7 < measure.value <= 1
        assert measure.low <= measure.value <= measure.high


@pytest.mark.slow
def test_an_export_has_the_same_numbers(detector: Detector, runtime: discopatch.Runtime) -> None:
    expected, exported = (each.evaluate(NORMAL[:2], DEFECTS[:1], MASKS[:1]) for each in (detector, runtime))
    assert exported.auroc == expected.auroc
    assert expected.aupro is not None
    assert exported.aupro is not None
    assert exported.aupro.value == pytest.approx(expected.aupro.value, abs=1e-3)


def test_wrong_folders_and_masks_are_refused(detector: Detector, labelled: Path, tmp_path: Path) -> None:
    with pytest.raises(ParameterError):
        detector.evaluate(labelled / "test", labelled / "test")
    with pytest.raises(ParameterError):
        detector.evaluate(NORMAL, DEFECTS, MASKS[:2])
    with pytest.raises(ParameterError):
        detector.evaluate(NORMAL, labelled / "test", labelled / "test")
    with pytest.raises(ParameterError):
        detector.evaluate(NORMAL, DEFECTS, tmp_path / "missing")
    with pytest.raises(ParameterError):
        detector.evaluate(NORMAL[:1], DEFECTS[:1], tmp_path)
    with pytest.raises(NoImagesError):
        detector.evaluate(NORMAL[:1], [TOO_SMALL])


def test_the_smallest_rate_that_finds_nine_tenths_is_suggested() -> None:
    calibration = Calibration(np.arange(99.0), 0.03)  # thresholds: 98 at 1 %, 97, 96 at 3 %, 94, 89 at 10 %
    normal = p_values(np.arange(0.5, 100), calibration.scores)

    def results(*defects: float) -> tuple[RateResult, ...]:
        return rate_results(calibration, normal, p_values(defects, calibration.scores))

    rates = results(*[97.5] * 9, 0.0)
    assert [each.rate for each in rates] == [0.01, 0.02, 0.03, 0.05, 0.1]
    assert [each.found.flagged for each in rates if each.found] == [0, 9, 9, 9, 9]
    assert [each.falsely_flagged.flagged for each in rates if each.falsely_flagged] == [2, 3, 4, 6, 11]
    assert suggest(rates)[0] == 0.02
    assert suggest(results(97.5, 95, 95, 95, 0))[0] == 0.05, "largest difference"
    few = rate_results(Calibration(np.arange(5.0), 0.1), normal, normal)
    assert [each.found for each in few] == [None] * 4
    assert suggest(few)[0] is None


def test_normal_images_unlike_those_of_the_fit_give_a_caution(found: Evaluation, detector: Detector) -> None:
    assert found.cautions == ()
    noise = [np.random.default_rng(seed).integers(0, 255, (64, 64, 3), np.uint8) for seed in range(5)]
    (caution,) = detector.evaluate(noise, DEFECTS[:1]).cautions
    assert "5 of 5" in caution


def test_pixels_that_a_detector_ignores_are_no_part_of_a_mask() -> None:
    images = one_camera(40, size=64)
    detector = new_detector(head="statistics").fit(images, ignore=[(0, 0, 32, 32)], workers=1)
    white = np.zeros((64, 64), np.uint8)
    white[48:, 48:] = 255
    found = Masks([white], 1, None, detector).read(0, "a.png")
    assert found is not None
    assert np.array_equal(found, white > 0)
