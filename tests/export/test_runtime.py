"""A runtime gives what the detector gives, without torch."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import discopatch
from discopatch import Runtime
from discopatch.demo import crops, sample_photos
from discopatch.errors import (
    DiscopatchError,
    ImageError,
    MissingExtraError,
    NoImagesError,
    ParameterError,
)
from discopatch.export.runtime import OPEN, Outputs
from discopatch.images import Pixels
from discopatch.results import FittedDetector, as_row
from tests.export.samples import SIZE, camera_pixels, run_without_torch, tiny_detector
from tests.samples import one_camera, save_images

FORMATS = ["onnx_folder", pytest.param("openvino_folder", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=FORMATS)
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return Runtime.load(request.getfixturevalue(request.param), threads=1)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Eight photos, of which two cannot be read."""
    paths = save_images(tmp_path / "new", one_camera(8, size=80, seed=1))
    paths[2].write_bytes(b"")
    paths[5].write_bytes(paths[5].read_bytes()[:300])
    return paths


def normal_and_other() -> list[Any]:
    """Normal images, other photos, one of another shape, and a flat image."""
    flat = np.full((SIZE, SIZE, 3), 200, np.uint8)
    return [
        *one_camera(6, seed=1),
        *one_camera(1, seed=9),
        *crops(sample_photos(["coins", "rocket"]), 2, size=SIZE, seed=0),
        camera_pixels(1, seed=2)[0][: SIZE // 2],
        flat,
    ]


def test_predictions_are_those_of_the_detector(runtime: Runtime, files: list[Path]) -> None:
    detector, images = tiny_detector(), [*files, *normal_and_other()]
    expected, found = (each.predict(images) for each in (detector, runtime))
    spread = detector.calibration_scores_.std()
    np.testing.assert_allclose(found.scores, expected.scores, rtol=0, atol=1e-3 * spread)
    assert set(found.is_ood.tolist()) == {True, False, None}
    for one, other in zip(found, expected, strict=True):
        row, due = as_row(one, runtime.component_names), as_row(other, detector.component_names)
        assert list(row) == list(due)
        for name in ("name", "error", "p_value", "is_ood", "significant"):
            assert row[name] == due[name]
        assert [each.z for each in one.components] == pytest.approx([each.z for each in other.components], abs=1e-3)


def test_a_runtime_is_a_fitted_detector(runtime: Runtime, onnx_folder: Path) -> None:
    detector = tiny_detector()
    assert isinstance(runtime, FittedDetector)
    assert runtime.component_names == detector.component_names == ("acquisition", "content", "place")
    assert runtime.settings().items() >= {**detector.settings(), "int8": False, "calibrated_by": "detector"}.items()
    assert (runtime.guarantee_, runtime.threshold_) == (detector.guarantee_, detector.threshold_)
    assert (runtime.transform_, runtime.false_alarm_rate_) == (detector.transform_, detector.false_alarm_rate_)
    assert len(bytes.fromhex(runtime.digest_)) == 8
    assert runtime.with_rate(0.3).digest_ == runtime.digest_
    assert (Runtime.load(onnx_folder).digest_ == runtime.digest_) == (runtime.metadata.graph == "onnx")


@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_with_another_rate_decisions_are_those_of_the_detector(runtime: Runtime, rate: float) -> None:
    images, other, expected = normal_and_other(), runtime.with_rate(rate), tiny_detector().with_rate(rate)
    assert (other.false_alarm_rate_, other.threshold_) == (rate, expected.threshold_)
    assert other.settings()["false_alarm_rate"] == rate
    found = other.predict(images, workers=1)
    assert found.is_ood.tolist() == expected.predict(images, workers=1).is_ood.tolist()
    assert found.p_values.tolist() == runtime.predict(images, workers=1).p_values.tolist()
    assert runtime.false_alarm_rate_ == 0.1


def test_an_explanation_is_that_of_the_detector_without_reasons(runtime: Runtime) -> None:
    changed = camera_pixels(1, seed=9)[0]
    changed[20:36, 20:36] = 255, 0, 0
    found, expected = runtime.explain(changed), tiny_detector().explain(changed)
    assert np.array_equal(found.image, expected.image)
    assert found.anomaly_map.dtype == np.float32
    np.testing.assert_allclose(found.anomaly_map, expected.anomaly_map, rtol=0, atol=1e-3)
    assert found.prediction.score == runtime.score([changed], workers=1)[0]
    assert "place" in [each.name for each in expected.components]
    assert [each.text for each in found.components] == [each.text for each in expected.components]
    assert found.reasons == ()


def test_only_one_readable_image_can_be_explained(runtime: Runtime, files: list[Path]) -> None:
    with pytest.raises(DiscopatchError, match=files[2].name):
        runtime.explain(files[2])
    with pytest.raises(NoImagesError):
        runtime.explain([])
    for several in (files[0].parent, np.zeros((2, SIZE, SIZE, 3), np.uint8)):
        with pytest.raises(ParameterError):
            runtime.explain(several)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_score_that_is_not_finite_is_a_refusal(runtime: Runtime, number: float) -> None:
    sound: Outputs = {"score": np.zeros(1), "components": np.zeros((1, 3)), "place_map": np.zeros((1, 8, 8))}
    other = Runtime(runtime.metadata, lambda pixels: {**sound, "score": np.array([number])})
    (found,) = other.predict(camera_pixels(1), workers=1)
    assert (found.score, found.is_ood, found.components) == (None, None, ())
    assert str(found.error).startswith("not_finite")
    for broken in (other, Runtime(runtime.metadata, lambda pixels: {**sound, "place_map": np.full((1, 8, 8), number)})):
        with pytest.raises(ImageError):
            broken.explain(camera_pixels(1)[0])


def test_a_score_depends_on_its_own_image_alone_to_the_bit(runtime: Runtime) -> None:
    pixels = camera_pixels(5)
    together = runtime.score(list(pixels)).tolist()
    assert runtime.score(list(pixels[::-1]))[::-1].tolist() == together
    assert [runtime.score([each])[0] for each in pixels] == together


def test_predictions_come_one_by_one_and_close_their_source(runtime: Runtime) -> None:
    taken: list[int] = []

    def endless() -> Iterator[NDArray[np.uint8]]:
        try:
            while True:
                taken.append(1)
                yield np.full((SIZE, SIZE, 3), len(taken) % 256, np.uint8)
        finally:
            taken.append(-1)

    stream = runtime.predict_iter(endless(), workers=1)
    assert next(stream).score is not None
    assert len(taken) <= 2
    stream.close()  # type: ignore[attr-defined]  # a generator
    del stream
    assert taken[-1] == -1


def test_limits_of_images_are_arguments(onnx_folder: Path) -> None:
    runtime = discopatch.load(onnx_folder, max_pixels=70 * 70 - 1, max_bytes=10)
    large, long = runtime.predict([np.zeros((70, 70, 3), np.uint8), bytes(11)], workers=1)
    assert "--max-pixels" in str(large.error)
    assert "--max-bytes" in str(long.error)
    assert runtime.with_rate(0.2).max_bytes == 10


@st.composite
def wild_images(draw: st.DrawFn) -> Pixels:
    """Flat, striped, noisy and saturated images, and mixtures of them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    image = np.full((SIZE, SIZE, 3), draw(st.integers(0, 255)), np.uint8)
    if draw(st.booleans()):
        image[:: draw(st.integers(1, 9)), :: draw(st.integers(1, 9))] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        rows, columns = draw(st.tuples(st.integers(1, SIZE), st.integers(1, SIZE)))
        image[:rows, :columns] = rng.integers(0, draw(st.integers(1, 256)), (rows, columns, 3), dtype=np.uint8)
    return image


@given(wild_images())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_of_any_image_the_runtime_gives_what_the_detector_gives(runtime: Runtime, image: Pixels) -> None:
    (expected,), (found,) = (each.predict([image], workers=1) for each in (tiny_detector(), runtime))
    assert found.p_value == expected.p_value
    assert found.score == pytest.approx(expected.score, rel=1e-4, abs=1e-3)
    for one, other in zip(found.components, expected.components, strict=True):
        assert one.z == pytest.approx(other.z, rel=1e-3, abs=1e-2)  # the last digits show in flat images


def test_a_missing_engine_is_named(onnx_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match="onnxruntime"):
        Runtime.load(onnx_folder)


@pytest.mark.parametrize(
    ("setting", "given", "used"), [("3", None, 3), ("3", 2, 2), ("", None, None), ("x", None, None)]
)
def test_threads_follow_the_setting_of_openmp(
    onnx_folder: Path, monkeypatch: pytest.MonkeyPatch, setting: str, given: int | None, used: int | None
) -> None:
    opened: list[int | None] = []
    monkeypatch.setenv("OMP_NUM_THREADS", setting)
    monkeypatch.setitem(OPEN, "onnx", lambda path, threads: opened.append(threads))
    Runtime.load(onnx_folder, threads=given)
    assert opened == [used]


def test_idle_threads_do_not_spin(onnx_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    opened, make = list[Any](), onnxruntime.InferenceSession

    def remember(*arguments: Any, **options: Any) -> Any:
        opened.append(make(*arguments, **options))
        return opened[0]

    monkeypatch.setattr(onnxruntime, "InferenceSession", remember)
    Runtime.load(onnx_folder, threads=2)
    options = opened[0].get_session_options()
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_threads_are_at_least_one(onnx_folder: Path) -> None:
    with pytest.raises(ParameterError, match="threads"):
        Runtime.load(onnx_folder, threads=0)


def test_onnxruntime_is_enough_without_torch(onnx_folder: Path, files: list[Path]) -> None:
    printed = run_without_torch(
        "import discopatch\n"
        f"runtime = discopatch.load({str(onnx_folder)!r})\n"
        f"print([each.p_value for each in runtime.predict({[str(path) for path in files]!r})])\n"
        f"print(runtime.explain({str(files[0])!r}).anomaly_map.shape)\n"
        "print(runtime.with_rate(0.3).threshold_ < runtime.threshold_, 'torch' in sys.modules)\n",
        *("openvino", "typer", "rich"),
    )
    expected = [each.p_value for each in tiny_detector().predict(files)]
    assert printed.splitlines() == [str(expected), "(64, 64)", "True False"]


@pytest.mark.slow
def test_openvino_is_enough_without_torch_and_sends_no_message(openvino_folder: Path, files: list[Path]) -> None:
    printed = run_without_torch(
        "import discopatch\n"
        f"runtime = discopatch.load({str(openvino_folder)!r})\n"
        f"print([each.p_value for each in runtime.predict({[str(path) for path in files]!r})])\n"
        "print(sys.modules.get('openvino_telemetry'))\n",
        "onnxruntime",
    )
    expected = [each.p_value for each in tiny_detector().predict(files)]
    assert printed.splitlines() == [str(expected), "None"]
