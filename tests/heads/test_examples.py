"""Examples of defects: images like them score higher, normal images are flagged no more often."""

from pathlib import Path

import numpy as np
import pytest

from discopatch import Detector
from discopatch.errors import ImageError, NoImagesError, ParameterError
from discopatch.images import Pixels
from discopatch.metrics import auroc
from tests.samples import TOO_SMALL, camera_pixels, new_detector, one_camera


def faint(count: int, *, seed: int) -> Pixels:
    """Images with faint lines."""
    images = camera_pixels(count, seed=seed).copy()
    images[:, ::8] = images[:, ::8] * 0.8
    return images


def test_images_like_the_examples_score_higher_the_more_there_are() -> None:
    fit, normal, wrong = list(camera_pixels(80)), list(camera_pixels(60, seed=1)), list(faint(60, seed=2))
    found = []
    for count in (0, 2, 20):
        examples = list(faint(count, seed=3)) if count else None
        detector = new_detector().fit(fit, examples=examples, workers=1)
        found.append(auroc(detector.score(normal, workers=1), detector.score(wrong, workers=1)))
    assert found[0] - 0.02 < found[1] < found[2] - 0.02


def test_normal_images_are_flagged_no_more_often_with_examples() -> None:
    shares = []
    for seed in range(8):
        detector = new_detector(seed=seed).fit(list(camera_pixels(40, seed=seed)), examples=list(faint(5, seed=30)))
        shares.append(detector.predict(list(camera_pixels(40, seed=50 + seed))).is_ood.mean())
    assert np.mean(shares) < 0.16  # 10 % on average over calibrations of 9 images, of crops of one photo


def test_a_detector_with_examples_is_stored_explains_them_and_accepts(tmp_path: Path) -> None:
    plain = new_detector().fit(one_camera(40), workers=1)
    fitted = new_detector().fit(one_camera(40), examples=list(faint(20, seed=3)), workers=1)
    assert fitted.digest_ != plain.digest_
    fitted.save(tmp_path / "detector.safetensors")
    again = Detector.load(tmp_path / "detector.safetensors", device="cpu")
    images = list(faint(8, seed=4))
    assert again.score(images, workers=1).tolist() == fitted.score(images, workers=1).tolist()
    assert again.digest_ == fitted.digest_
    reasons = [
        sum(reason.id == "examples" for image in given for reason in again.explain(image).reasons)
        for given in (faint(20, seed=3), camera_pixels(20, seed=8))
    ]
    assert reasons[0] >= 8 > 2 * reasons[1]
    accepting = again.accept(images[:1])
    assert (accepting.score(images, workers=1) <= again.score(images, workers=1) + 1e-6).all()
    assert not accepting.predict(images[:1], workers=1).is_ood.any()


def test_wrong_examples_are_refused_with_the_reason() -> None:
    images = one_camera(40)
    with pytest.raises(ParameterError, match="a normal image too"):
        new_detector().fit(images, examples=[images[3]], workers=1)
    with pytest.raises(ImageError, match="example cannot be used"):
        new_detector().fit(images, examples=[TOO_SMALL], workers=1)
    with pytest.raises(NoImagesError, match="no example"):
        new_detector().fit(images, examples=[], workers=1)
    with pytest.raises(ParameterError, match="examples are for head"):
        new_detector(head="statistics").fit(images, examples=images[:1], workers=1)
