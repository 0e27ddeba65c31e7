"""Audits of folders in which something stands out, and of folders in which nothing does."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

from discopatch.audit import Audit, audit, kinds_apart, near_copies, tail_p_values
from discopatch.calibration import select
from discopatch.demo import crops, sample_photos
from discopatch.errors import ParameterError, TooFewImagesError
from discopatch.images import DEFAULT_LIMITS, list_source
from discopatch.pretrained import SMALL_WEIGHTS
from tests.samples import new_detector, one_camera, save_images, tiny_weights


def save(path: Path, pixels: np.ndarray, **options: Any) -> str:
    Image.fromarray(pixels).save(path, **options)
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images of one camera, and planted ones."""
    folder = tmp_path_factory.mktemp("audit") / "photos"
    own = save_images(folder, one_camera(60, size=128))
    shutil.copy(own[3], folder / "z-copy.png")
    save(folder / "<b>.png", np.random.default_rng(0).integers(0, 255, (128, 128, 3), np.uint8))
    stained = one_camera(60, size=128)[5].pixels.copy()
    stained[40:80, 40:80] = np.random.default_rng(1).integers(0, 255, (40, 40, 3))
    save(folder / "stain.png", stained)
    save(folder / "near.png", np.clip(one_camera(60, size=128)[8].pixels.astype(int) + 1, 0, 255).astype(np.uint8))
    (folder / "broken.png").write_bytes(own[6].read_bytes()[:200])
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> Audit:
    return audit(folder, weights=SMALL_WEIGHTS, device="cpu")


def test_unusual_images_are_not_supported(folder: Path, found: Audit) -> None:
    named = [each.name for each in found.unsupported]
    assert {str(folder / "<b>.png"), str(folder / "stain.png")} <= set(named)
    assert len(named) <= 6
    assert named[0] == str(folder / "<b>.png")
    assert all(each.p_value is not None and each.p_value < 0.05 for each in found.unsupported)
    assert [each.prediction.name for each in found.close_ups] == named


def test_copies_are_named_in_groups(folder: Path, found: Audit) -> None:
    assert found.exact_copies == ((str(folder / "temple-3.png"), str(folder / "z-copy.png")),)
    assert any({str(folder / "near.png"), str(folder / "temple-8.png")} <= set(names) for names in found.near_copies)


def test_broken_files_are_named_with_their_error(folder: Path, found: Audit) -> None:
    (broken,) = found.broken
    assert broken.name == str(folder / "broken.png")
    assert broken.error is not None
    assert broken.error.startswith("truncated")
    assert [each.name for each in found.predictions] == [item.name for item in list_source(folder).items()]


def test_odd_files_are_named_where_others_are_alike(tmp_path: Path) -> None:
    images = one_camera(40)
    save_images(tmp_path, images)
    for number in range(3):
        image = Image.fromarray(images[number].pixels)
        image = (image.resize((90, 64)), image.rotate(180), image.convert("L"))[number]
        image.save(tmp_path / ("wide.png", "turned.jpg", "grey.png")[number], quality=98)
    assert audit(tmp_path, weights=tiny_weights(), device="cpu").odd == {
        str(tmp_path / "wide.png"): "size 90 x 64, others 64 x 64",
        str(tmp_path / "turned.jpg"): "format JPEG, others PNG",
        str(tmp_path / "grey.png"): "mode L, others RGB",
    }


def test_what_to_exclude_is_unsupported_broken_or_a_copy(folder: Path, found: Audit) -> None:
    expected = [*(each.name for each in found.unsupported), str(folder / "broken.png"), str(folder / "z-copy.png")]
    assert found.exclude == expected
    assert not {str(folder / name) for name in ("near.png", "temple-3.png")} & set(found.exclude)


def test_a_fit_leaves_excluded_images_out(folder: Path, found: Audit) -> None:
    images, exclude = len(found.predictions), found.exclude
    detector = new_detector(resolution=64).fit(folder, exclude=exclude)
    assert detector.guarantee_.n_fit + detector.guarantee_.n_calibration == images - len(exclude)
    assert not detector.refusals_
    others = [name for name in (item.name for item in list_source(folder).items()) if name not in exclude]
    same = new_detector(resolution=64).fit(others)
    assert same.digest_ == detector.digest_


def test_a_name_to_exclude_that_no_image_has_is_an_error(folder: Path) -> None:
    with pytest.raises(ParameterError, match="nowhere"):
        new_detector().fit(folder, exclude=["nowhere.png", str(folder / "stain.png")])


def test_excluded_names_and_ids_of_groups_are_refused_together(folder: Path) -> None:
    with pytest.raises(ParameterError, match="exclude"):
        new_detector().fit(folder, groups=list(range(65)), exclude=[str(folder / "stain.png")])


def test_images_of_shards_and_with_unusual_names_are_left_out(tmp_path: Path) -> None:
    import tarfile

    paths = save_images(tmp_path, one_camera(4))
    with tarfile.open(tmp_path / "some.tar", "w") as archive:
        for path in paths:
            archive.add(path, path.name)
    odd = shutil.copy(paths[0], tmp_path / "line\nend.png")
    source = list_source([tmp_path / "some.tar", odd, paths[1]])
    names = [item.name for item in source.items()]
    left = source.without([names[1], names[4].replace("\n", "\\n")])
    assert [item.name for item in left.items()] == [names[0], *names[2:4], names[5]]
    assert [item.name for item in left.without(names[0]).items()] == [*names[2:4], names[5]]


@pytest.mark.parametrize("seed", [1, 2])
def test_few_images_of_a_clean_folder_are_named(seed: int) -> None:
    found = audit(one_camera(80, seed=seed), weights=tiny_weights(), device="cpu")
    assert len(found.unsupported) <= 2
    assert found.odd == {}
    assert found.exact_copies == ()
    assert found.broken == []


Draw = Callable[[np.random.Generator, int], np.ndarray]


@pytest.mark.parametrize("draw", [np.random.Generator.normal, np.random.Generator.exponential])
def test_the_rule_names_images_in_few_clean_folders(draw: Callable[..., np.ndarray]) -> None:
    rng = np.random.default_rng(0)
    counts = [len(select(tail_p_values(draw(rng, size=300)), 0.2)) for _ in range(200)]
    assert np.mean(np.array(counts) > 0) < 0.3
    assert np.mean(counts) < 0.6


def test_the_rule_names_what_is_far_off() -> None:
    scores = np.concatenate([np.random.default_rng(0).exponential(size=291), np.full(9, 12.0)])
    assert set(range(len(scores) - 9, len(scores))) <= set(select(tail_p_values(scores), 0.2).tolist())


def test_a_group_of_another_camera_is_named() -> None:
    rng = np.random.default_rng(0)
    statistics, shift = rng.normal(size=(100, 40)), rng.normal(size=40)
    assert kinds_apart(statistics) == []
    statistics[80:] += 4 * shift
    assert kinds_apart(statistics)[0].tolist() == list(range(80, 100))


def test_two_near_copies_of_many_images_are_a_group() -> None:
    statistics = np.random.default_rng(0).normal(size=(100, 40))
    assert len(np.unique(near_copies(statistics))) == 100
    statistics[7] = statistics[40] + 0.01
    numbers = near_copies(statistics)
    assert len(np.unique(numbers)) == 99
    assert numbers[7] == numbers[40]


def test_drift_in_time_is_found_whatever_the_names(tmp_path: Path) -> None:
    images = crops(sample_photos(["coins", "temple"]), 45, size=64, seed=0)
    names = np.random.default_rng(0).permutation(90)
    for number, (path, name) in enumerate(zip(save_images(tmp_path, images), names, strict=True)):
        os.utime(path.rename(tmp_path / f"{name:03}.png"), (10**9 + number, 10**9 + number))
    (drift,) = audit(tmp_path, weights=tiny_weights(), device="cpu").drifts
    assert "in order of time" in drift


def test_a_header_has_the_date_and_the_upright_size(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "2025:03:14 09:26:53"
    path = save(tmp_path / "a.jpg", one_camera(1)[0].pixels[:40], exif=exif)
    (item,) = list_source(path).items()
    assert item.header(DEFAULT_LIMITS) == ("JPEG", "RGB", (64, 40), "2025:03:14 09:26:53")


def test_too_few_different_images_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(TooFewImagesError):
        audit(one_camera(20), weights=tiny_weights(), device="cpu")
    with pytest.raises(TooFewImagesError):
        audit([each for each in one_camera(20) for _ in range(2)], weights=tiny_weights(), device="cpu")
