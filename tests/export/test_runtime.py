"""The runtime answers as the detector does, where there is no torch."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from discopatch import Runtime
from discopatch.errors import (
    DiscopatchError,
    ExportError,
    ImageError,
    MissingExtraError,
    NoImagesError,
    ParameterError,
    TooFewImagesError,
)
from discopatch.export.engines import GraphOutput
from discopatch.images import Pixels
from discopatch.images.samples import crops, sample_photos
from tests.export.samples import SIZE, camera_pixels, run_without_torch, tiny_detector
from tests.samples import one_camera, save_images


@pytest.fixture(scope="module", params=["onnx_folder", "openvino_folder"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return Runtime.load(request.getfixturevalue(request.param), threads=1)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Eight photos, of which two cannot be read."""
    paths = save_images(tmp_path / "new", one_camera(8, size=80, seed=1))
    paths[2].write_bytes(b"")
    paths[5].write_bytes(paths[5].read_bytes()[:300])
    return paths


def test_predictions_are_those_of_the_detector(runtime: Runtime, files: list[Path]) -> None:
    detector = tiny_detector()
    found, expected = runtime.predict(files), detector.predict(files)
    for name in ("name", "error", "p_value", "is_ood"):
        assert [getattr(each, name) for each in found] == [getattr(each, name) for each in expected]
    tolerance = 1e-3 * detector.calibration_scores_.std()
    np.testing.assert_allclose(runtime.score(files), detector.score(files), rtol=0, atol=tolerance)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_score_that_is_no_number_is_refused_by_runtime_and_detector_alike(runtime: Runtime, number: float) -> None:
    def broken(pixels: Pixels, *, anomaly_map: bool = False) -> GraphOutput:
        return GraphOutput(np.array([number]), np.array([0]), np.zeros((1, 64, 64), np.float32))

    other = Runtime(runtime.metadata, broken)
    (image,) = one_camera(1, size=80)
    (found,) = other.predict([image], workers=1)
    assert (found.score, found.is_ood) == (None, None)
    assert str(found.error).startswith("not_finite")
    with pytest.raises(ImageError, match="not a finite number"):
        other.explain(image)


def normal_and_other() -> list[Any]:
    return [*one_camera(10, seed=1), *crops(sample_photos(["coins", "rocket"]), 5, size=SIZE, seed=0)]


def test_other_images_are_flagged_as_the_detector_flags_them(runtime: Runtime) -> None:
    new, detector = normal_and_other(), tiny_detector()
    found = [each.is_ood for each in runtime.predict(new, workers=1)]
    assert found == [each.is_ood for each in detector.predict(new, workers=1)]
    assert set(found) == {True, False}
    assert runtime.threshold_ == detector.threshold_
    assert found == (runtime.score(new, workers=1) > runtime.threshold_).tolist()


@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_at_another_false_alarm_rate_it_decides_as_the_detector_does(runtime: Runtime, rate: float) -> None:
    new, before = normal_and_other(), runtime.threshold_
    other, expected = runtime.with_rate(rate), tiny_detector().with_rate(rate)
    assert (other.false_alarm_rate, other.threshold_) == (rate, expected.threshold_)
    found = other.predict(new, workers=1)
    assert [each.is_ood for each in found] == [each.is_ood for each in expected.predict(new, workers=1)]
    assert [each.p_value for each in found] == [each.p_value for each in runtime.predict(new, workers=1)]
    assert (runtime.false_alarm_rate, runtime.threshold_) == (0.1, before)


def test_a_false_alarm_rate_needs_enough_calibration_scores(runtime: Runtime) -> None:
    with pytest.raises(TooFewImagesError, match="19"):
        runtime.with_rate(0.01)
    with pytest.raises(ParameterError, match="false_alarm_rate"):
        runtime.with_rate(0)


def test_an_explanation_has_the_anomaly_map_of_the_detector_and_no_reasons(runtime: Runtime) -> None:
    image = one_camera(1, size=80, seed=3)[0]
    found, expected = runtime.explain(image), tiny_detector().explain(image)
    assert np.array_equal(found.image, expected.image)
    assert found.anomaly_map.shape == (64, 64)
    assert found.anomaly_map.dtype == np.float32
    np.testing.assert_allclose(found.anomaly_map, expected.anomaly_map, rtol=0, atol=1e-3)
    assert found.prediction.p_value == expected.prediction.p_value
    assert found.reasons == ()


def test_what_cannot_be_read_cannot_be_explained(runtime: Runtime, files: list[Path]) -> None:
    with pytest.raises(DiscopatchError, match=files[2].name):
        runtime.explain(files[2])
    with pytest.raises(NoImagesError):
        runtime.explain([])


def test_a_score_depends_on_its_own_image_alone_to_the_bit(runtime: Runtime) -> None:
    pixels = camera_pixels(6)
    together = runtime.score_pixels(pixels)
    assert runtime.score_pixels(pixels[::-1])[::-1].tolist() == together.tolist()
    assert [runtime.score_pixels(each[None])[0] for each in pixels] == together.tolist()
    assert runtime.score(list(pixels)).tolist() == together.tolist()


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((1, 2 * SIZE, 2 * SIZE, 3), np.uint8),
        np.zeros((1, SIZE, SIZE, 3), np.float32),
        np.zeros((SIZE, SIZE, 3), np.uint8),
        np.zeros((1, 3, SIZE, SIZE), np.uint8),
    ],
)
def test_pixels_of_another_kind_are_refused_and_never_rescaled(runtime: Runtime, pixels: NDArray[Any]) -> None:
    with pytest.raises(ParameterError, match=r"\(B, 64, 64, 3\)"):
        runtime.score_pixels(pixels)


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


def test_an_export_for_torch_says_how_it_is_loaded(torch_folder: Path) -> None:
    with pytest.raises(ExportError, match=r"torch\.export\.load\('.*detector\.pt2'\)"):
        Runtime.load(torch_folder)
    found = torch.export.load(torch_folder / "detector.pt2").module()(torch.from_numpy(camera_pixels(3)))
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "score": (3,),
        "at_least": (3,),
        "anomaly_map": (3, 64, 64),
    }
    expected = tiny_detector().score(list(camera_pixels(3)), workers=1)
    np.testing.assert_allclose(found["score"].numpy(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("folder", "module", "extra"),
    [("onnx_folder", "onnxruntime", "runtime"), ("openvino_folder", "openvino", "openvino")],
)
def test_a_missing_engine_is_named(
    folder: str, module: str, extra: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = request.getfixturevalue(folder)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"{module} .*\[{extra}\]"):
        Runtime.load(path)


def test_onnxruntime_is_enough_where_there_is_no_torch(onnx_folder: Path, files: list[Path]) -> None:
    printed = run_without_torch(
        "import discopatch\n"
        f"runtime = discopatch.Runtime.load({str(onnx_folder)!r})\n"
        f"print([each.p_value for each in runtime.predict({[str(path) for path in files]!r})])\n"
        f"print(runtime.explain({str(files[0])!r}).anomaly_map.shape)\n"
        "print(runtime.with_rate(0.3).threshold_ < runtime.threshold_, 'torch' in sys.modules)\n",
        *("openvino", "typer", "rich"),
    )
    expected = [each.p_value for each in tiny_detector().predict(files)]
    assert printed.splitlines() == [str(expected), "(64, 64)", "True False"]


def test_openvino_is_enough_where_there_is_no_torch_and_reports_to_nobody(
    openvino_folder: Path, files: list[Path]
) -> None:
    printed = run_without_torch(
        "import discopatch\n"
        f"runtime = discopatch.Runtime.load({str(openvino_folder)!r})\n"
        f"print([each.p_value for each in runtime.predict({[str(path) for path in files]!r})])\n"
        "print(sys.modules.get('openvino_telemetry'))\n",
        "onnxruntime",
    )
    expected = [each.p_value for each in tiny_detector().predict(files)]
    assert printed.splitlines() == [str(expected), "None"]
