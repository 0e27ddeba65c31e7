"""Images to compare on: synthetic where none are given, and enough of them."""

from pathlib import Path

import numpy as np
import pytest

from discopatch.corruptions import CORRUPTIONS
from discopatch.errors import NoImagesError
from discopatch.export.references import References, corrupt_in_turn, synthetic_images
from discopatch.images import Transform
from tests.export.samples import SIZE, camera_pixels, tiny_detector
from tests.samples import one_camera, save_images


def collect(source: object | None, *, int8: bool = False) -> References:
    return References.collect(source, Transform(size=SIZE), int8=int8, workers=1)


def test_synthetic_images_are_always_the_same_and_all_different() -> None:
    pixels = synthetic_images(16, size=SIZE)
    assert pixels.shape == (16, SIZE, SIZE, 3)
    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels, synthetic_images(16, size=SIZE))
    assert len({image.tobytes() for image in pixels}) == 16


def test_synthetic_images_reach_from_smooth_to_rough_and_from_pale_to_strong() -> None:
    images = synthetic_images(64, size=SIZE)
    pixels = images.astype(float)
    contrasts = pixels.std((1, 2, 3))
    roughness = np.abs(np.diff(pixels, axis=2)).mean((1, 2, 3)) / contrasts
    assert contrasts.min() > 3, "none is flat"
    assert contrasts.max() > 5 * contrasts.min()
    assert roughness.max() > 5 * roughness.min()
    scores = tiny_detector().score(list(images), workers=1)
    assert np.isfinite(scores).all()
    assert np.ptp(scores) > 5 * tiny_detector().calibration_scores_.std()


def test_without_a_source_they_are_synthetic() -> None:
    references = collect(None)
    assert references.synthetic
    assert len(references.pixels) == 64
    assert references.tuning is None
    assert references.corrupted is None


def test_the_first_64_images_of_a_source_are_taken_and_bad_files_left_out(tmp_path: Path) -> None:
    paths = save_images(tmp_path / "images", one_camera(80))
    paths[3].write_bytes(b"")
    references = collect(paths)
    assert not references.synthetic
    assert np.array_equal(references.pixels, camera_pixels(80, seed=0)[[*range(3), *range(4, 65)]])


def test_fewer_than_64_are_taken_as_they_are_and_fewer_than_8_refused() -> None:
    assert len(collect(one_camera(8)).pixels) == 8
    with pytest.raises(NoImagesError, match=r"7 .* 8 .* 64"):
        collect(one_camera(7))
    with pytest.raises(NoImagesError, match=r"11 .* 12 .* 96"):
        collect(one_camera(11), int8=True)


def test_8_bits_are_never_measured_on_synthetic_images() -> None:
    with pytest.raises(NoImagesError, match="--reference"):
        collect(None, int8=True)


def test_8_bits_are_measured_on_other_images_than_they_are_tuned_with() -> None:
    references, images = collect(one_camera(200), int8=True), camera_pixels(96, seed=0)
    assert references.tuning is not None
    assert references.corrupted is not None
    assert np.array_equal(references.tuning, images[::3])
    assert len(references.pixels) == len(references.corrupted) == 64
    tuned = {image.tobytes() for image in references.tuning}
    assert not tuned & {image.tobytes() for image in references.pixels}
    for clean, corrupted in zip(references.pixels, references.corrupted, strict=True):
        assert not np.array_equal(clean, corrupted)


def test_the_corruptions_take_turns_and_are_always_the_same() -> None:
    image = camera_pixels(1)[0]
    corrupted = [corrupt_in_turn(image, index) for index in range(len(CORRUPTIONS))]
    assert len({each.tobytes() for each in corrupted}) == len(CORRUPTIONS)
    for index in (0, 7):
        assert np.array_equal(corrupt_in_turn(image, index), corrupted[index])
