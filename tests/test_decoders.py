"""A detector reads images by the decoder of its fit, or by another that was compared with it then and passed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import discopatch
from discopatch import Detector, Runtime
from discopatch.batch import read_scores, score_to
from discopatch.decoders import MAX_DIFFERENCE, MIN_COMPARED, DecoderParity
from discopatch.errors import ExportError, ParameterError, ScoresError, TransformError, WeightsError
from discopatch.images import Transform, gpu_decode, open_cache
from discopatch.images.samples import crops, sample_photos
from discopatch.sklearn import ImageOutlierDetector
from gpu_decode import PillowJpegs
from tests.batch.samples import contents
from tests.cli.conftest import Run, assert_error, assert_usage_error, run  # noqa: F401 - a fixture
from tests.samples import new_detector, one_camera, tiny_weights, with_header

N = 32
SIZE = 64  # of the square, so that files of 256 pixels or more are scaled


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that any decoder keeps, to see what follows."""
    monkeypatch.setattr("discopatch.decoders.MAX_DIFFERENCE", 1e6)
    monkeypatch.setattr("discopatch.decoders.MAX_AUROC_DIFFERENCE", 1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of 272 pixels as JPEG files."""
    folder = tmp_path_factory.mktemp("camera")
    for number, image in enumerate(crops(sample_photos(["cat"]), N, size=272, seed=0)):
        Image.fromarray(image.pixels).save(folder / f"{number:02}.jpg", quality=92)
    return folder


def new(**parameters: Any) -> Detector:
    return new_detector(**{"head": "statistics", **parameters})


@pytest.fixture(scope="module")
def compared(files: Path) -> Detector:
    return new().fit(files, also_decoders=["scaled"], workers=1)


def test_a_detector_keeps_the_decoder_of_its_fit(files: Path, tmp_path: Path) -> None:
    detector = new_detector(decoder="scaled").fit(files, workers=1)
    expected = new_detector().fit(files, workers=1)
    assert not np.array_equal(detector.calibration_scores_, expected.calibration_scores_)
    detector.save(tmp_path / "camera")
    again = Detector.load(tmp_path / "camera")
    assert (again.decoder, again.encoder_.transform) == ("scaled", Transform(SIZE, decoder="scaled"))
    assert again.settings() == detector.settings()
    assert again.settings()["transform_digest"] == Transform(SIZE, decoder="scaled").digest
    assert np.array_equal(again.score(files), detector.score(files))
    pixels = next(again.predict_images(files)).pixels
    assert pixels is not None
    assert np.array_equal(pixels, again.explain(files / "00.jpg").image)


def test_a_file_of_the_usual_decoder_does_not_speak_of_it(files: Path, tmp_path: Path) -> None:
    detector = new().fit(files, workers=1)
    detector.save(tmp_path / "camera")
    header: dict[str, Any] = {}
    with_header(tmp_path / "camera", header.update)
    assert header["transform_digest"] == Transform(SIZE).digest
    assert "decoder" not in header["transform"]
    assert "decoders" not in header


def test_a_cache_must_have_been_read_by_the_same_decoder(files: Path, tmp_path: Path) -> None:
    cache = open_cache(files, Transform(SIZE), tmp_path, workers=1)
    with pytest.raises(TransformError, match="scaled"):
        new_detector(decoder="scaled").fit(cache)


def test_another_decoder_is_refused_unless_it_was_compared(files: Path, tmp_path: Path) -> None:
    detector = new().fit(files, workers=1)
    detector.save(tmp_path / "camera")
    with pytest.raises(TransformError, match="also_decoders"):
        Detector.load(tmp_path / "camera", decoder="scaled")
    with pytest.raises(TransformError, match="also_decoders"):
        detector.decoder = "scaled"
    assert detector.decoder == "pillow"


def test_a_decoder_that_differs_too_much_is_refused_with_the_numbers(compared: Detector, tmp_path: Path) -> None:
    (parity,) = compared.decoders_
    assert parity.max_difference is not None
    assert parity.max_difference > MAX_DIFFERENCE
    assert (parity.read, parity.compared, parity.passed) == (N, N, False)
    compared.save(tmp_path / "camera")
    assert Detector.load(tmp_path / "camera").decoders_ == (parity,)
    with pytest.raises(TransformError, match=f"{parity.max_difference:.2g}"):
        Detector.load(tmp_path / "camera", decoder="scaled")


@pytest.mark.usefixtures("lenient")
def test_a_decoder_that_passed_reads_images_and_the_file_stays_what_it_was(files: Path, tmp_path: Path) -> None:
    detector = new().fit(files, also_decoders=["scaled", "pillow", "scaled"], workers=1)
    (parity,) = detector.decoders_
    before = detector.score(files)
    detector.save(tmp_path / "camera")
    other = Detector.load(tmp_path / "camera", decoder="scaled")
    found = other.score(files)
    spread = detector.calibration_scores_.std()
    assert np.abs(found - before).max() / spread == pytest.approx(parity.max_difference)
    assert np.abs(found - before).mean() / spread == pytest.approx(parity.mean_difference)
    assert other.settings()["transform"]["decoder"] == "scaled"
    assert other.with_rate(0.2).encoder_.transform.decoder == "scaled"
    other.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "camera").read_bytes()
    other.decoder = "pillow"
    assert np.array_equal(other.score(files), before)


def test_images_that_no_decoder_reads_otherwise_compare_nothing() -> None:
    detector = new().fit(one_camera(N), also_decoders=["scaled"], workers=1)
    (parity,) = detector.decoders_
    assert (parity.read, parity.compared, parity.passed, parity.max_difference) == (N, 0, False, None)
    with pytest.raises(TransformError, match="no JPEG files"):
        detector.decoder = "scaled"


def test_a_few_files_that_differ_are_not_enough(files: Path) -> None:
    few = sorted(files.iterdir())[: MIN_COMPARED - 1]
    detector = new().fit([*one_camera(N), *few], also_decoders=["scaled"], workers=1)
    assert detector.decoders_ == (DecoderParity(decoder="scaled", read=N + len(few), compared=len(few), passed=False),)


def test_images_that_come_once_are_kept_to_compare_on(files: Path, compared: Detector) -> None:
    once = iter([path.read_bytes() for path in sorted(files.iterdir())])
    (parity,) = new().fit(once, also_decoders=["scaled"], workers=1).decoders_
    assert (parity,) == compared.decoders_


def test_a_cache_has_nothing_to_compare(files: Path, tmp_path: Path) -> None:
    cache = open_cache(files, Transform(SIZE), tmp_path, workers=1)
    with pytest.raises(ParameterError, match="cache"):
        new().fit(cache, also_decoders=["scaled"])


def test_unknown_decoders_are_refused_before_any_image_is_read(files: Path) -> None:
    cases: list[tuple[Detector, Any]] = [(new(decoder="libjpeg"), ()), (new(), ("libjpeg",))]
    for detector, also in cases:
        with pytest.raises(ParameterError, match="nvimgcodec"):
            detector.fit(iter(()), also_decoders=also)


def test_features_are_of_the_decoder_too(files: Path) -> None:
    features = new(decoder="scaled").extract_features(files, workers=1)
    fitted = new(decoder="scaled").fit_features(features)
    assert fitted.transform_ == Transform(SIZE, decoder="scaled")
    assert not np.array_equal(features.statistics, new().extract_features(files, workers=1).statistics)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["transform"].update(decoder="libjpeg"),
        lambda header: header["transform"].update(decoder="scaled"),
        lambda header: header.update(decoders=[{"decoder": "scaled", "passed": True}]),
        lambda header: header.update(decoders=[{**header["decoders"][0], "max_difference": -1}]),
        lambda header: header.update(decoders=header["decoders"] * 9),
    ],
)
def test_headers_that_are_not_ours_are_refused(compared: Detector, tmp_path: Path, change: Any) -> None:
    path = tmp_path / "camera"
    compared.save(path)
    with pytest.raises((WeightsError, TransformError)):
        Detector.load(with_header(path, change))


def test_weights_from_a_run_that_scaled_its_images_do_not_decide_for_the_detector(files: Path, tmp_path: Path) -> None:
    weights = tiny_weights()
    weights = type(weights)(weights.discriminator, Transform(SIZE, decoder="scaled"), weights.origin)
    detector = new(weights=weights).fit(files, workers=1)
    assert detector.encoder_.transform.decoder == "pillow"
    detector.save(tmp_path / "camera")
    assert np.array_equal(Detector.load(tmp_path / "camera").score(files), detector.score(files))


def test_scikit_learn_has_the_parameter(files: Path) -> None:
    paths = sorted(files.iterdir())
    parameters: dict[str, Any] = {
        "weights": tiny_weights(),
        "false_alarm_rate": 0.1,
        "decoder": "scaled",
        "head": "statistics",
    }
    found = ImageOutlierDetector(**parameters).fit(paths)
    assert found.get_params()["decoder"] == found.detector_.decoder == "scaled"


@pytest.mark.slow
def test_an_export_reads_as_the_detector_does(files: Path, tmp_path: Path) -> None:
    detector = new(decoder="scaled").fit(files, workers=1)
    detector.export(tmp_path / "export", reference=files)
    runtime = discopatch.load(tmp_path / "export")
    assert isinstance(runtime, Runtime)
    assert runtime.transform == detector.transform_
    assert np.allclose(runtime.score(files), detector.score(files), rtol=1e-3)
    with pytest.raises(ParameterError, match="scaled"):
        discopatch.load(tmp_path / "export", decoder="pillow")


def test_no_export_reads_on_a_gpu(files: Path, tmp_path: Path) -> None:
    detector = new().fit(files, workers=1)
    object.__setattr__(detector, "decoder", "nvimgcodec")  # as after a fit with it
    with pytest.raises(ExportError, match="scaled"):
        detector.export(tmp_path / "export")


@pytest.mark.usefixtures("lenient")
def test_the_command_line_fits_compares_and_scores(files: Path, tmp_path: Path, run: Run) -> None:  # noqa: F811
    weights, out = tmp_path / "tiny.safetensors", tmp_path / "camera"
    tiny_weights().save(weights)
    options = ("--head", "statistics", "--weights", weights, "--false-alarm-rate", 0.1, "--workers", 1)
    status, _, err = run("fit", files, "-o", out, *options, "--also-decoder", "scaled")
    assert status == 0, err
    (parity,) = Detector.load(out).decoders_
    assert parity.text in err
    assert run("score", files, "--detector", out, "--decoder", "scaled").status == 0
    assert run("fit", files, "-o", tmp_path / "other", *options, "--decoder", "scaled").status == 0
    assert Detector.load(tmp_path / "other").decoder == "scaled"
    assert_error(run("score", files, "--detector", tmp_path / "other", "--decoder", "pillow"), "also-decoder")
    assert_usage_error(run("score", files, "--weights", weights, "--decoder", "scaled"), "--detector")


# On a GPU, whose decoder Pillow stands in for


@pytest.fixture
def as_if_on_gpu(monkeypatch: pytest.MonkeyPatch) -> PillowJpegs:
    found = PillowJpegs()
    monkeypatch.setattr(gpu_decode, "open_decoder", lambda device: found)
    return found


def test_a_detector_that_decodes_on_a_gpu_fits_scores_and_explains(
    files: Path, tmp_path: Path, as_if_on_gpu: PillowJpegs
) -> None:
    detector = new(decoder="nvimgcodec", batch_size=5).fit(files, workers=2)
    usual = new().fit(files, workers=1)
    spread = usual.calibration_scores_.std()
    assert np.abs(detector.score(files) - usual.score(files)).max() / spread < 0.05  # ties round otherwise
    detector.save(tmp_path / "camera")
    again = Detector.load(tmp_path / "camera", batch_size=5)
    broken = [files / "00.jpg", b"hello", files / "01.jpg", np.zeros((70, 70, 3), np.uint8)]
    found = list(again.predict_images(broken))
    assert [each.refusal is None for each in found] == [True, False, True, True]
    assert found[0].pixels is not None
    assert np.array_equal(found[0].pixels, again.explain(files / "00.jpg").image)
    assert as_if_on_gpu.decoded > 2 * N


@pytest.mark.usefixtures("as_if_on_gpu")
def test_how_many_pass_together_does_not_change_what_was_decoded_on_a_gpu(files: Path) -> None:
    detector = new(decoder="nvimgcodec").fit(files, workers=1)
    expected = detector.score(files)
    for size in (1, 7, 64):
        detector.batch_size = size
        assert np.array_equal(detector.score(files), expected)


@pytest.mark.usefixtures("as_if_on_gpu")
def test_parts_that_are_decoded_on_a_gpu_are_the_same_in_one_run_and_in_several(files: Path, tmp_path: Path) -> None:
    detector = new(decoder="nvimgcodec", batch_size=4).fit(files, workers=1)
    score_to(detector, files, tmp_path / "one", per_part=6, features=True)
    for rank in range(3):
        score_to(detector, files, tmp_path / "three", per_part=6, features=True, rank=rank, world=3)
    assert contents(tmp_path / "three") == contents(tmp_path / "one")
    scores = read_scores(tmp_path / "one").to_table()["score"].to_numpy()
    assert np.array_equal(scores, detector.score(files))
    with pytest.raises(ScoresError, match="transform"):
        score_to(new().fit(files, workers=1), files, tmp_path / "one")


def test_without_a_gpu_a_fit_that_is_to_compare_one_ends_before_it_begins(files: Path) -> None:
    with pytest.raises(ParameterError, match="CUDA"):
        new(device="cpu").fit(iter(()), also_decoders=["nvimgcodec"])


@pytest.mark.usefixtures("as_if_on_gpu")
def test_a_detector_of_a_gpu_is_refused_without_one(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new(decoder="nvimgcodec").fit(files, workers=1).save(tmp_path / "camera")
    monkeypatch.undo()
    with pytest.raises(ParameterError, match="CUDA"):
        Detector.load(tmp_path / "camera", device="cpu")
