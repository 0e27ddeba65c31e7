"""Pictures to compare on: made up where none are given, and enough of them."""

from pathlib import Path

import numpy as np
import pytest

from discopatch.deploy.references import References, corrupted, made_up
from discopatch.images import NoImagesError, Transform
from discopatch.images.corrupt import CORRUPTIONS
from tests.deploy.samples import SIZE, pixels_of, tiny_detector
from tests.scoring.samples import of_one_camera, save_pictures

TRANSFORM = Transform(size=SIZE)


def gather(source: object | None, *, int8: bool = False) -> References:
    return References.gather(source, TRANSFORM, int8=int8, workers=1)


def test_made_up_pictures_are_always_the_same_and_all_different() -> None:
    pixels = made_up(16, size=SIZE)
    assert pixels.shape == (16, SIZE, SIZE, 3)
    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels, made_up(16, size=SIZE))
    assert len({picture.tobytes() for picture in pixels}) == 16


def test_made_up_pictures_reach_from_smooth_to_rough_and_from_pale_to_strong() -> None:
    pixels = made_up(64, size=SIZE).astype(float)
    contrasts = pixels.std((1, 2, 3))
    roughness = np.abs(np.diff(pixels, axis=2)).mean((1, 2, 3)) / contrasts
    assert contrasts.min() > 3, "none is flat"
    assert contrasts.max() > 5 * contrasts.min()
    assert roughness.max() > 5 * roughness.min()
    scores = tiny_detector().score(list(made_up(64, size=SIZE)), workers=1)
    assert np.isfinite(scores).all()
    assert np.ptp(scores) > 5 * tiny_detector().fitted.calibration.std()


def test_without_a_source_they_are_made_up() -> None:
    references = gather(None)
    assert references.made_up
    assert len(references.pixels) == 64
    assert references.tuning is None
    assert references.corrupted is None


def test_the_first_64_images_of_a_source_are_taken_and_bad_files_left_out(tmp_path: Path) -> None:
    paths = save_pictures(tmp_path, of_one_camera(80))
    paths[3].write_bytes(b"")
    references = gather(paths)
    assert not references.made_up
    assert np.array_equal(references.pixels, pixels_of(80, seed=0)[[*range(3), *range(4, 65)]])


def test_fewer_than_64_are_taken_as_they_are_and_fewer_than_8_refused() -> None:
    assert len(gather(of_one_camera(8)).pixels) == 8
    with pytest.raises(NoImagesError, match="7 reference images can be read; at least 8 are needed, 64 are better"):
        gather(of_one_camera(7))
    with pytest.raises(NoImagesError, match="11 reference images can be read; at least 12 are needed, 96 are better"):
        gather(of_one_camera(11), int8=True)


def test_8_bits_are_never_measured_on_made_up_pictures() -> None:
    with pytest.raises(NoImagesError, match="only as good as the images they are measured on: give --reference"):
        gather(None, int8=True)


def test_8_bits_are_measured_on_other_images_than_they_were_made_with() -> None:
    references, pictures = gather(of_one_camera(200), int8=True), pixels_of(96, seed=0)
    assert references.tuning is not None
    assert references.corrupted is not None
    assert np.array_equal(references.tuning, pictures[::3])
    assert len(references.pixels) == len(references.corrupted) == 64
    shown = {picture.tobytes() for picture in references.tuning}
    assert not shown & {picture.tobytes() for picture in references.pixels}
    for clean, spoiled in zip(references.pixels, references.corrupted, strict=True):
        assert not np.array_equal(clean, spoiled)


def test_the_corruptions_take_turns_and_are_always_the_same() -> None:
    picture = pixels_of(1)[0]
    spoiled = [corrupted(picture, place) for place in range(len(CORRUPTIONS))]
    assert len({each.tobytes() for each in spoiled}) == len(CORRUPTIONS)
    for place in (0, 7):
        assert np.array_equal(corrupted(picture, place), spoiled[place])
