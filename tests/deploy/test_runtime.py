"""The runtime answers as the detector does, where there is no torch."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from discopatch import Runtime
from discopatch.deploy.sidecar import ExportError
from discopatch.images import NoImagesError
from discopatch.images.samples import crops, sample_photos
from tests.deploy.samples import SIZE, pixels_of, tiny_detector
from tests.scoring.samples import of_one_camera, save_pictures

# An interpreter in which nothing can be imported but what the runtime is said to need.
ALONE = """
import sys

ABSENT = ("torch", "scipy", "safetensors", "lightning_fabric", "onnx", "onnxscript", "skimage", "sklearn", {more})

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def alone(code: str, *, more: str = "") -> str:
    """What such an interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE.format(more=more) + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=["onnx_folder", "openvino_folder"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return Runtime.load(request.getfixturevalue(request.param), threads=1)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Eight photos, of which two cannot be read."""
    paths = save_pictures(tmp_path / "new", of_one_camera(8, size=80, seed=1))
    paths[2].write_bytes(b"")
    paths[5].write_bytes(paths[5].read_bytes()[:300])
    return paths


def test_predictions_are_those_of_the_detector(runtime: Runtime, files: list[Path]) -> None:
    detector = tiny_detector()
    found, expected = runtime.predict(files), detector.predict(files)
    assert [each.name for each in found] == [each.name for each in expected]
    assert [each.error for each in found] == [each.error for each in expected]
    assert [each.p_value for each in found] == [each.p_value for each in expected]
    assert [each.is_ood for each in found] == [each.is_ood for each in expected]
    tolerance = 1e-3 * detector.fitted.calibration.std()
    np.testing.assert_allclose(runtime.score(files), detector.score(files), rtol=0, atol=tolerance)


def test_strange_images_are_flagged_as_the_detector_flags_them(runtime: Runtime) -> None:
    new = [*of_one_camera(10, seed=1), *crops(sample_photos(["coins", "rocket"]), 5, size=SIZE, seed=0)]
    found = runtime.predict(new, workers=1)
    assert [each.is_ood for each in found] == [each.is_ood for each in tiny_detector().predict(new, workers=1)]
    assert {each.is_ood for each in found} == {True, False}
    assert runtime.threshold == tiny_detector().threshold
    assert [each.is_ood for each in found] == (runtime.score(new, workers=1) > runtime.threshold).tolist()


def test_an_explanation_has_the_heat_of_the_detector_and_no_words(runtime: Runtime) -> None:
    picture, detector = of_one_camera(1, size=80, seed=3)[0], tiny_detector()
    told, expected = runtime.explain(picture), detector.explain(picture)
    assert np.array_equal(told.pixels, expected.pixels)
    assert told.heat.shape == (64, 64)
    assert told.heat.dtype == np.float32
    np.testing.assert_allclose(told.heat, expected.heat, rtol=0, atol=1e-3)
    assert told.prediction.p_value == expected.prediction.p_value
    assert told.reasons == ()


def test_what_cannot_be_read_cannot_be_explained(runtime: Runtime, files: list[Path]) -> None:
    with pytest.raises(ValueError, match=r"temple-2\.png: empty: "):
        runtime.explain(files[2])
    with pytest.raises(NoImagesError, match="nothing to explain: give one image"):
        runtime.explain([])


def test_a_score_depends_on_its_own_image_alone_to_the_bit(runtime: Runtime) -> None:
    pixels = pixels_of(6)
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
    with pytest.raises(ValueError, match=r"give uint8 of shape \(B, 64, 64, 3\), through runtime\.transform"):
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

    stream = runtime.predictions(endless(), workers=1)
    assert next(stream).score is not None
    assert len(taken) <= 2
    stream.close()  # type: ignore[attr-defined]  # a generator
    del stream
    assert taken[-1] == -1


def test_threads_are_at_least_one(onnx_folder: Path) -> None:
    with pytest.raises(ValueError, match="threads is 0: give at least 1, or None for all"):
        Runtime.load(onnx_folder, threads=0)


def test_an_export_for_torch_says_how_it_is_loaded(torch_folder: Path) -> None:
    with pytest.raises(ExportError, match=r"load it with torch\.export\.load\('.*detector\.pt2'\)\.module\(\), or"):
        Runtime.load(torch_folder)
    found = torch.export.load(torch_folder / "detector.pt2").module()(torch.from_numpy(pixels_of(3)))
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "score": (3,),
        "at_least": (3,),
        "heat": (3, 64, 64),
    }
    expected = tiny_detector().score(list(pixels_of(3)), workers=1)
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
    with pytest.raises(ModuleNotFoundError, match=rf"{module} is not installed: pip install 'discopatch\[{extra}\]'"):
        Runtime.load(path)


def test_it_runs_where_there_is_no_torch(onnx_folder: Path, files: list[Path]) -> None:
    printed = alone(
        "import discopatch\n"
        f"runtime = discopatch.Runtime.load({str(onnx_folder)!r})\n"
        f"print([each.p_value for each in runtime.predict({[str(path) for path in files]!r})])\n"
        f"print(runtime.explain({str(files[0])!r}).heat.shape)\n"
        "print('torch' in sys.modules)\n",
        more='"openvino", "typer", "rich"',
    )
    expected = [each.p_value for each in tiny_detector().predict(files)]
    assert printed.splitlines() == [str(expected), "(64, 64)", "False"]


def test_openvino_runs_where_there_is_no_torch_and_reports_to_nobody(openvino_folder: Path, files: list[Path]) -> None:
    printed = alone(
        "import discopatch\n"
        f"runtime = discopatch.Runtime.load({str(openvino_folder)!r})\n"
        f"print([each.p_value for each in runtime.predict({[str(path) for path in files]!r})])\n"
        "print(sys.modules.get('openvino_telemetry'))\n",
        more='"onnxruntime"',
    )
    expected = [each.p_value for each in tiny_detector().predict(files)]
    assert printed.splitlines() == [str(expected), "None"]
