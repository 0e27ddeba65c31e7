"""Accepted images and updates: no score rises, images like them are normal, and the rate of an update holds."""

from pathlib import Path

import numpy as np
import pytest

from discopatch import Detector
from discopatch.calibration import p_values
from discopatch.demo import crops, sample_photos
from discopatch.errors import ImageError, ParameterError, TooFewImagesError
from discopatch.export import export_detector
from discopatch.export.runtime import Runtime
from discopatch.images import Pixels
from tests.samples import TOO_SMALL, camera_pixels, new_detector, one_camera, save_images

ROUNDING = 1e-5


@pytest.fixture(scope="module")
def others() -> dict[str, Pixels]:
    """Images that are not like those of the camera: of another scene, darker, and with a mark in one place."""
    camera = camera_pixels(12, size=256, seed=5)
    marked = camera.copy()
    marked[:, 40:90, 60:110] = (255, 0, 255)
    scene = np.stack([image.pixels for image in crops(sample_photos(["cat"]), 12, size=256, seed=1)])
    return {"scene": scene, "dark": camera // 2, "mark": marked, "camera": camera}


def dark_camera(count: int, *, seed: int, size: int = 64) -> Pixels:
    return camera_pixels(count, size=size, seed=seed) // 2


@pytest.mark.parametrize("kind", ["scene", "dark", "mark"])
def test_an_accepted_image_and_images_like_it_are_normal_and_no_score_rises(
    detector: Detector, others: dict[str, Pixels], kind: str
) -> None:
    accepting = detector.accept(list(others[kind][:4]))
    assert not accepting.predict(list(others[kind][:4])).is_ood.any()
    for name, images in others.items():
        before, after = detector.predict(list(images)), accepting.predict(list(images))
        assert (after.scores <= before.scores + ROUNDING).all()
        assert (after.p_values >= before.p_values).all()
        if name == kind:
            assert before.is_ood[4:].mean() > 0.8
            assert after.is_ood[4:].mean() < before.is_ood[4:].mean() - 0.2
        elif name != "camera":
            assert after.is_ood.mean() > 0.8 * before.is_ood.mean()


def test_an_accepted_place_is_no_longer_drawn(detector: Detector, others: dict[str, Pixels]) -> None:
    marked = others["mark"][0]
    before, after = detector.explain(marked), detector.accept([marked]).explain(marked)
    inside = np.s_[20:45, 30:55]  # at half the resolution
    assert before.anomaly_map[inside].max() > 1 > after.anomaly_map[inside].max()


def test_acceptances_are_stored_and_taken_back_to_the_bit(
    detector: Detector, others: dict[str, Pixels], tmp_path: Path
) -> None:
    images = list(others["dark"])
    paths = save_images(tmp_path / "dark", one_camera(2, seed=6, size=256))
    accepting = detector.accept(images[:1]).accept([*map(str, paths)]).accept(images[:1])
    assert [each.name for each in accepting.accepted_] == ["image-000000", *map(str, paths)], "an image counts once"
    assert accepting.digest_ != detector.digest_
    accepting.save(tmp_path / "detector.safetensors")
    again = Detector.load(tmp_path / "detector.safetensors", device="cpu")
    assert again.accepted_ == accepting.accepted_
    assert again.digest_ == accepting.digest_
    assert again.score(images).tolist() == accepting.score(images).tolist()
    back = again.take_back("image-000000", *map(str, paths))
    assert (back.accepted_, back.digest_) == ((), detector.digest_)
    assert back.score(images).tolist() == detector.score(images).tolist()
    with pytest.raises(ParameterError, match="not among the accepted"):
        back.take_back("image-000000")


def test_nothing_is_accepted_if_an_image_cannot_be_read(detector: Detector, others: dict[str, Pixels]) -> None:
    with pytest.raises(ImageError, match="nothing was accepted: image-000001"):
        detector.accept([others["dark"][0], TOO_SMALL])


def test_a_head_without_modes_and_too_many_images_are_refused_with_the_remedy(detector: Detector) -> None:
    plain = new_detector(head="statistics").fit(one_camera(40), workers=1)
    with pytest.raises(ParameterError, match="fit it again"):
        plain.accept(list(camera_pixels(1)))
    with pytest.raises(ParameterError, match="fit --update"):
        detector.accept(list(camera_pixels(65, size=64, seed=4)))


@pytest.mark.slow
def test_an_export_scores_like_the_detector_with_accepted_images(tmp_path: Path) -> None:
    accepting = new_detector().fit(one_camera(40), workers=1).accept([*dark_camera(2, seed=6)])
    images = [*dark_camera(6, seed=6), *camera_pixels(6, seed=7)]
    export_detector(accepting, tmp_path / "export")
    np.testing.assert_allclose(
        Runtime.load(tmp_path / "export").score(images, workers=1), accepting.score(images, workers=1), rtol=1e-3
    )


def test_an_update_remembers_some_new_images_and_calibrates_on_the_others(detector: Detector, tmp_path: Path) -> None:
    new, later = (list(dark_camera(count, seed=seed, size=256)) for count, seed in ((60, 3), (30, 4)))
    assert detector.predict(later).is_ood.mean() > 0.8
    updated = detector.update(new, workers=1)
    (source,) = updated.accepted_
    assert source.images + len(updated.calibration_scores_) == 60
    assert updated.guarantee_.n_fit == detector.guarantee_.n_fit + source.images
    assert updated.predict(later).is_ood.mean() < 0.3
    assert updated.predict(list(camera_pixels(30, size=256, seed=5))).is_ood.mean() < 0.3, "the old ones are normal too"
    assert {rate.tried for rate in updated.detection_rates_} == {2}
    updated.save(tmp_path / "updated.safetensors")
    again = Detector.load(tmp_path / "updated.safetensors", device="cpu")
    assert again.score(later).tolist() == updated.score(later).tolist()
    assert again.guarantee_ == updated.guarantee_
    with pytest.raises(ParameterError, match="from before the update"):
        again.take_back(source.digest)
    with pytest.raises(TooFewImagesError, match="at least 30"):
        detector.update(new[:20], workers=1)


def test_the_rate_of_an_update_holds_for_images_like_the_new_ones() -> None:
    """Uniform p-values of new images, over updates by other images."""
    fitted, found = new_detector().fit(one_camera(60), workers=1), []
    for seed in range(16):
        new = dark_camera(70, seed=10 + seed)
        updated = fitted.update(list(new[:40]), workers=1)
        found += p_values(updated.score(list(new[40:]), workers=1), updated.calibration_scores_).tolist()
    assert abs(np.mean(np.array(found) <= 0.1) - 0.1) < 0.08
    assert abs(np.mean(np.array(found) <= 0.5) - 0.5) < 0.12
