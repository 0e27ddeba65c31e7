"""`discopatch accept` and `fit --update` as they are typed."""

import shutil
from pathlib import Path

import pytest

from discopatch import Detector
from tests.samples import new_detector, one_camera, save_images

from .conftest import Run, assert_error


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fitted") / "camera-3.safetensors"
    new_detector().fit(one_camera(40), workers=1).save(path)
    return path


@pytest.fixture
def own(fitted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(fitted, tmp_path))


def test_images_are_accepted_in_the_file_listed_and_taken_back(own: Path, run: Run, tmp_path: Path) -> None:
    digest = Detector.load(own, device="cpu").digest_
    first, second = save_images(tmp_path / "odd", one_camera(2, seed=7))
    finished = run("accept", own, first, second, "--device", "cpu")
    assert finished.status == 0, finished.err
    assert [line.split("\t")[0] for line in finished.out.splitlines()[:2]] == [str(first), str(second)]
    assert finished.out.count("before") == 2
    assert "2 accepted images" in finished.out
    listed = run("accept", own, "--device", "cpu").out.splitlines()
    assert [line.split("\t")[-1] for line in listed[:2]] == [str(first), str(second)]
    back = run("accept", own, "--take-back", first, "--take-back", listed[1].split("\t")[1], "--device", "cpu")
    assert (back.status, back.out.splitlines()[-1]) == (0, f"0 accepted images in {own}")
    assert Detector.load(own, device="cpu").digest_ == digest


def test_what_cannot_be_changed_stays_as_it_was(own: Path, run: Run, tmp_path: Path) -> None:
    before = own.read_bytes()
    (tmp_path / "broken.png").write_bytes(b"no image")
    assert_error(run("accept", own, tmp_path / "broken.png"), "nothing was accepted", "broken.png")
    assert_error(run("accept", own, "--take-back", "nobody.png"), "nobody.png")
    assert_error(run("accept", tmp_path, tmp_path / "broken.png"), "export")
    (image,) = save_images(tmp_path / "odd", one_camera(1, seed=7))
    own.with_name(f"{own.name}.minisig").write_text("a signature")
    assert_error(run("accept", own, image), "signed")
    assert own.read_bytes() == before


def test_an_update_writes_another_detector_that_is_calibrated_on_new_images(
    own: Path, run: Run, tmp_path: Path
) -> None:
    save_images(tmp_path / "winter", one_camera(40, seed=9))
    before = own.read_bytes()
    finished = run(
        "fit", tmp_path / "winter", "--update", own, "-o", tmp_path / "winter.safetensors", "--device", "cpu"
    )
    assert finished.status == 0, finished.err
    assert "calibrated on 9 others" in finished.err
    assert own.read_bytes() == before
    updated = Detector.load(tmp_path / "winter.safetensors", device="cpu")
    assert updated.accepted_[0].images == 31
    listed = run("accept", tmp_path / "winter.safetensors", "--device", "cpu").out
    assert "update by 31 images" in listed
    assert "0 accepted images in " in listed
