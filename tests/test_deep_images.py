"""Folders of 12-bit TIFF and of DICOM files, fitted and scored: the levels go wherever the detector goes."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import discopatch
from discopatch import Detector
from discopatch.batch import score_to
from discopatch.client import Client
from discopatch.errors import MissingExtraError, ParameterError
from discopatch.export import export_detector
from discopatch.history import History
from discopatch.images import Processes
from discopatch.results import OUT_OF_RANGE, UNUSUAL_SHAPE
from tests.images.samples import encoded
from tests.images.test_levels import Array, dicom, pydicom, tiff
from tests.images.test_tar import write_shard
from tests.samples import camera_pixels, new_detector, one_camera, save_images, with_header
from tests.serve.samples import served
from tests.watch.samples import Watched


def twelve_bits(count: int, *, seed: int = 0, size: int = 64) -> list[Array]:
    """Photos of one camera with 12 bits, in a range of 200 to 2200."""
    rng = np.random.default_rng(seed)
    grey = camera_pixels(count, size=size, seed=seed).astype(np.float64).mean(3) * (2000 / 255) + 200
    return list(np.rint(grey + rng.uniform(-4, 4, grey.shape)).astype(np.uint16))


def write(folder: Path, arrays: list[Array], kind: str = "tif") -> Path:
    folder.mkdir(parents=True)
    for number, array in enumerate(arrays):
        data = tiff(array) if kind == "tif" else dicom(array, RescaleSlope=1, RescaleIntercept=-1024)
        (folder / f"{number:03d}.{kind}").write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Normal images, and new ones: four normal, and one of twice the brightness."""
    root = tmp_path_factory.mktemp("deep")
    write(root / "normal", twelve_bits(40))
    new = twelve_bits(4, seed=5)
    write(root / "new", [*new, (new[0].astype(int) * 2).astype(np.uint16)])
    return root


@pytest.fixture(scope="module")
def detector(folder: Path) -> Detector:
    return new_detector(detection_images=4).fit(folder / "normal")


def test_a_12_bit_folder_uses_the_range_of_the_network_and_two_fits_are_equal(folder: Path, detector: Detector) -> None:
    levels = detector.transform_.levels
    assert levels is not None
    assert 0 <= levels.low[0] <= 250
    assert 2100 <= levels.high[0] <= 2500
    assert "16-bit grey" in levels.text
    image = detector.explain(folder / "new" / "000.tif").image
    assert image.min() < 40
    assert image.max() > 190
    again = new_detector(detection_images=4).fit(folder / "normal")
    assert again.digest_ == detector.digest_
    assert again.settings() == detector.settings()
    assert detector.settings()["transform"]["levels"]["low"] == list(levels.low)
    assert (detector.settings()["levels"], detector.settings()["bands"]) == ("auto", None)


def test_a_tar_shard_of_the_same_files_has_the_same_levels(folder: Path, detector: Detector, tmp_path: Path) -> None:
    files = sorted((folder / "normal").iterdir())
    shard = write_shard(tmp_path / "normal.tar", {each.name: each.read_bytes() for each in files})
    assert new_detector().fit(shard).transform_ == detector.transform_


def test_an_image_with_more_clipped_values_than_normal_images_has_a_caution(folder: Path, detector: Detector) -> None:
    expected = [None] * 4 + [OUT_OF_RANGE]
    assert [one.caution for one in detector.predict(folder / "new")] == expected
    assert detector.explain(folder / "new" / "004.tif").prediction.caution == OUT_OF_RANGE
    wide = np.full((64, 400), 4095, np.uint16)
    (both,) = detector.predict([wide])
    assert both.caution == f"{UNUSUAL_SHAPE},{OUT_OF_RANGE}"


def test_files_arrays_png_pil_images_and_processes_score_alike_and_after_a_load(
    folder: Path, detector: Detector, tmp_path: Path
) -> None:
    expected = detector.score(folder / "new")
    arrays = [*twelve_bits(4, seed=5)]
    arrays.append((arrays[0].astype(int) * 2).astype(np.uint16))
    for images in (
        arrays,
        [Image.fromarray(each) for each in arrays],
        [encoded(Image.fromarray(each), "PNG") for each in arrays],
        [each.astype(np.float32) for each in arrays],
    ):
        assert np.array_equal(detector.score(images), expected)
    assert np.array_equal(detector.score(folder / "new", workers=Processes(2)), expected)
    detector.save(tmp_path / "a.safetensors")
    loaded = discopatch.load(tmp_path / "a.safetensors", device="cpu")
    assert np.array_equal(loaded.score(folder / "new"), expected)
    assert loaded.settings() == detector.settings()


def test_parts_a_watched_folder_and_the_service_pass_the_same_levels(
    folder: Path, detector: Detector, tmp_path: Path
) -> None:
    expected = detector.predict(folder / "new")
    scores = score_to(detector, folder / "new", tmp_path / "scores").folder
    rows = scores.dataset().to_table().to_pylist()
    assert [(row["score"], row["caution"]) for row in rows] == [(one.score, one.caution) for one in expected]
    assert scores.summary().cautions == {UNUSUAL_SHAPE: 0, OUT_OF_RANGE: 1}
    watched = Watched(tmp_path, detector)  # type: ignore[arg-type]
    for path in (folder / "new").iterdir():
        (watched.folder / path.name).write_bytes(path.read_bytes())
    watched.run()
    with History(watched.database) as history:
        kept = sorted((entry.prediction.name, entry.prediction.score) for entry in history.recent("camera"))
    assert kept == [(Path(one.name).name, one.score) for one in expected]
    detector.save(tmp_path / "camera.safetensors")
    with served(detectors={"camera": tmp_path / "camera.safetensors"}) as url, Client(url) as client:
        found = client.predict(folder / "new", "camera")
        assert [(one.score, one.caution) for one in found] == [(one.score, one.caution) for one in expected]
        for images in (twelve_bits(4, seed=5), [each.astype(np.float32) for each in twelve_bits(4, seed=5)]):
            assert np.array_equal(client.predict(images, "camera").scores, expected.scores[:4])


@pytest.mark.slow
def test_an_export_passes_the_same_levels(folder: Path, detector: Detector, tmp_path: Path) -> None:
    export_detector(detector, tmp_path / "export", reference=folder / "normal")
    runtime = discopatch.load(tmp_path / "export")
    expected = detector.predict(folder / "new")
    found = runtime.predict(folder / "new")
    assert runtime.transform_ == detector.transform_
    assert np.allclose(found.scores, expected.scores, atol=1e-3)
    assert [one.caution for one in found] == [one.caution for one in expected]
    assert runtime.explain(folder / "new" / "004.tif").prediction.caution == OUT_OF_RANGE


def test_a_dicom_folder_is_fitted_on_rescaled_values_and_nothing_of_the_patient_is_kept(tmp_path: Path) -> None:
    normal = write(tmp_path / "normal", twelve_bits(40), "dcm")
    detector = new_detector().fit(normal)
    levels = detector.transform_.levels
    assert levels is not None
    assert levels.kind == "DICOM"
    assert -1100 < levels.low[0] < -700
    assert 1000 < levels.high[0] < 1500
    new = write(tmp_path / "new", [*twelve_bits(3, seed=5)], "dcm")
    (new / "sr.dcm").write_bytes((Path(pydicom.__file__).parent / "data/test_files/reportsi.dcm").read_bytes())
    found = detector.predict(new)
    assert [one.error is None for one in found] == [True, True, True, False]
    assert "Secret" not in f"{found.to_pandas().to_csv()} {detector.settings()}"
    detector.save(tmp_path / "a.safetensors")
    assert b"Secret" not in (tmp_path / "a.safetensors").read_bytes()


@pytest.mark.filterwarnings("ignore::discopatch.errors.NormalImagesWarning")
def test_real_ct_slices_are_fitted_by_their_window_or_by_all_of_their_values(tmp_path: Path) -> None:
    slices = pydicom.dcmread(Path(pydicom.__file__).parent / "data/test_files/693_J2KI.dcm")
    pixels, rng = slices.pixel_array, np.random.default_rng(0)
    fields = {each: slices[each].value for each in ("RescaleSlope", "RescaleIntercept", "WindowCenter", "WindowWidth")}
    (tmp_path / "ct").mkdir()
    for number in range(36):
        top, left = rng.integers(100, 340, 2)
        part = np.ascontiguousarray(pixels[top : top + 64, left : left + 64])
        (tmp_path / "ct" / f"{number}.dcm").write_bytes(dicom(part, **fields))
    fitted, window = (new_detector(levels=each).fit(tmp_path / "ct") for each in ("auto", "window"))
    assert fitted.transform_.levels is not None
    assert window.transform_.levels is not None
    assert fitted.transform_.levels.high[0] > 100
    assert window.transform_.levels.low == ()
    assert window.transform_.levels.usual > fitted.transform_.levels.usual
    for detector in (fitted, window):
        assert all(one.caution is None for one in detector.predict(tmp_path / "ct" / "0.dcm"))


# Images of 8 bits.


def test_images_of_8_bits_are_fitted_without_levels_and_others_read_by_the_fixed_rule(tmp_path: Path) -> None:
    files = save_images(tmp_path / "normal", one_camera(40))
    grey = twelve_bits(1)[0]
    Image.fromarray(grey).save(files[7])  # one deep image among many
    detector = new_detector().fit(tmp_path / "normal")
    assert detector.transform_.levels is None
    assert "levels" not in detector.settings()["transform"]
    by_rule = np.rint(grey / 257).astype(np.uint8)
    assert np.array_equal(detector.score([grey]), detector.score([by_rule]))
    for options in ({"levels": (0, 4095)}, {"bands": (1,)}):
        with pytest.raises(ParameterError, match="8 bits"):
            new_detector(**options).fit(tmp_path / "normal")


def test_floats_from_0_to_1_are_images_of_8_bits_and_others_are_not() -> None:
    grey = [each.astype(np.float32) / 4095 for each in twelve_bits(32)]
    assert new_detector().fit(grey).transform_.levels is None
    levels = new_detector(levels=(0, 0.6)).fit(grey).transform_.levels
    assert levels is not None
    assert levels.high == (0.6,)
    assert new_detector().fit([300 * each for each in grey]).transform_.levels is not None


def test_one_image_of_8_bits_in_a_deep_folder_is_refused_and_named(folder: Path, tmp_path: Path) -> None:
    normal = write(tmp_path / "normal", twelve_bits(40))
    (normal / "x.png").write_bytes(encoded(one_camera(1)[0].pixels, "PNG"))
    fitted = new_detector().fit(normal)
    assert fitted.refusals_.count == 1
    assert fitted.transform_.levels is not None


def test_bands_are_chosen_by_number_and_stored(tmp_path: Path) -> None:
    cubes = [np.stack([each * (1 + band) for band in range(6)], 2) for each in twelve_bits(32)]
    detector = new_detector(bands=(4, 3, 2)).fit(cubes)
    levels = detector.transform_.levels
    assert levels is not None
    assert (levels.count, levels.bands) == (6, (4, 3, 2))
    assert levels.high[0] > levels.high[1] > levels.high[2]
    detector.save(tmp_path / "a.safetensors")
    assert Detector.load(tmp_path / "a.safetensors", device="cpu").bands == (4, 3, 2)
    with pytest.raises(ParameterError, match="bands"):
        new_detector(bands=(4, 3, 9)).fit(cubes)


@pytest.mark.parametrize(
    "options", [{"levels": "best"}, {"levels": (1,)}, {"levels": (0, float("nan"))}, {"bands": (0,)}]
)
def test_parameters_are_checked_before_images_are_read(options: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="levels"):
        new_detector(**options).fit("nowhere")


def test_a_folder_that_needs_a_package_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "normal").mkdir()
    for number, grey in enumerate(twelve_bits(32)):
        (tmp_path / "normal" / f"{number}.tif").write_bytes(tiff(np.stack([grey] * 3, 2), photometric="rgb"))
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(MissingExtraError, match=r"discopatch\[tiff\]"):
        new_detector().fit(tmp_path / "normal")


def test_a_detector_without_the_new_fields_loads_and_scores_16_bits_as_before(tmp_path: Path) -> None:
    detector = new_detector().fit(one_camera(40))
    detector.save(tmp_path / "a.safetensors")
    with_header(tmp_path / "a.safetensors", lambda header: [header.pop(each) for each in ("levels", "bands")])
    loaded = Detector.load(tmp_path / "a.safetensors", device="cpu")
    grey = (twelve_bits(1)[0] * 16).astype(np.uint16)
    by_rule = np.rint(grey / 257).astype(np.uint8)
    assert np.array_equal(loaded.score([grey]), detector.score([by_rule]))
    assert replace(loaded.transform_, levels=None) == loaded.transform_
