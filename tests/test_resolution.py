"""The working resolution: which one is chosen, by which images, and that these do not calibrate."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from discopatch import Detector
from discopatch.encoders import Encoder, Features
from discopatch.errors import TooFewImagesError
from discopatch.images import DEFAULT_LIMITS, Pixels, Transform, list_source
from discopatch.images.transform import Shape
from discopatch.resolution import KINDS, N_IMAGES, Chosen, changed, choose_resolution
from tests.samples import new_detector

STEPS = [Transform.whole(1.0, size) for size in (64, 128, 256)]


class Contrasts(Encoder):
    """Means and ranges of the cells of an image, in the place of a network's features."""

    place_sizes = (3, 3)

    def __init__(self, transform: Transform) -> None:
        super().__init__(transform, patch_size=32)

    def extract_pixels(self, pixels: Pixels) -> Features:
        x = torch.from_numpy(pixels.copy()).permute(0, 3, 1, 2).float()
        places = torch.cat((F.avg_pool2d(x, 8), F.max_pool2d(x, 8) + F.max_pool2d(-x, 8)), 1).permute(0, 2, 3, 1)
        return Features(np.empty((len(x), 0), np.float32), np.empty((len(x), 0), np.float32), None, places.numpy())


def surfaces(count: int, size: Shape = (256, 256), *, fine: float = 2.0, coarse: float = 0.0) -> list[Pixels]:
    """Grey images with noise of one pixel, and of 16 pixels."""
    rng = np.random.default_rng(0)
    blocks = rng.normal(scale=coarse, size=(count, size[0] // 16, size[1] // 16, 1)).repeat(16, 1).repeat(16, 2)
    return list(np.clip(128 + blocks + rng.normal(scale=fine, size=(count, *size, 3)), 0, 255).astype(np.uint8))


def chosen(images: Any, *, in_groups: bool = False, needed: int = 0) -> Chosen:
    return choose_resolution(
        Contrasts, list_source(images), STEPS, in_groups=in_groups, needed=needed, limits=DEFAULT_LIMITS, seed=0
    )


def test_a_step_is_taken_where_more_is_found_than_chance_explains() -> None:
    found = chosen(surfaces(60, coarse=60.0))
    assert found.transform in STEPS[1:]
    assert [step.pixels for step in found.steps if step.chosen] == [found.transform.size]
    assert found.steps[1].found > found.steps[0].found + 0.05
    assert all(step.milliseconds > 0 for step in found.steps)


def test_the_first_step_stays_where_the_next_finds_no_more() -> None:
    found = chosen(surfaces(60))
    assert found.transform == STEPS[0]
    assert found.steps[0].found > 0.95
    assert [step.chosen for step in found.steps] == [True, False]  # no further step is tried


def test_few_images_are_not_measured() -> None:
    assert chosen(surfaces(35)) == Chosen(STEPS[0], (), frozenset())
    assert chosen(surfaces(60), needed=50).measured == frozenset()
    assert len(chosen(surfaces(60), needed=40).measured) == 20
    assert len(chosen([*surfaces(60), *[b"no image"] * 60]).measured) == N_IMAGES
    assert chosen([*surfaces(8), *[b"no image"] * 60]).steps == ()


def test_images_in_groups_are_measured_from_a_third_that_lies_together() -> None:
    numbers = sorted(int(name[-6:]) for name in chosen(surfaces(60), in_groups=True).measured)
    gaps = np.diff([*numbers, numbers[0] + 60])
    assert len(numbers) == 20
    assert sorted(gaps)[-2:] == [1, 41]


@pytest.mark.parametrize("shape", [(300, 500), (500, 300), (384, 384)])
def test_each_part_of_an_image_has_one_small_change(shape: Shape) -> None:
    image = surfaces(1, (512, 512))[0][: shape[0], : shape[1]]
    differs = (changed(image, 0, seed=0) != image).any(2)
    rows, columns = (2, 3) if shape[1] >= shape[0] else (3, 2)
    parts = [each for half in np.array_split(differs, rows) for each in np.array_split(half, columns, axis=1)]
    assert len(parts) == len(KINDS)
    assert all(0 < each.sum() < 0.05 * differs.size for each in parts)


def test_images_that_were_measured_do_not_calibrate_and_the_choice_is_stored(tmp_path: Any) -> None:
    images = surfaces(60, (272, 272))
    detector = new_detector(head="components", false_alarm_rate=0.05, detection_images=0).fit(images, workers=1)
    steps = detector.state_.fitted.resolutions
    assert [step.pixels for step in steps] == [detector.state_.networks.transform.size, 256]  # none above the images
    assert detector.transform_.size == next(step.pixels for step in steps if step.chosen)
    names = chosen(images).measured  # of the same seed
    scores = {each.name: each.score for each in detector.predict(images)}
    assert set(detector.calibration_scores_) <= {score for name, score in scores.items() if name not in names}
    detector.save(tmp_path / "detector")
    assert Detector.load(tmp_path / "detector").state_.fitted.resolutions == steps
    with pytest.raises(TooFewImagesError, match="calibrat"):
        new_detector(head="components", false_alarm_rate=0.01).fit(images, workers=1)
