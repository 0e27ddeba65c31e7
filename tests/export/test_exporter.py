"""An export is a folder that gives what the detector gives, or no folder; and the detector stays as it is."""

import json
import subprocess
import sys
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from discopatch import Detector, Runtime
from discopatch.calibration import p_values, threshold
from discopatch.errors import (
    ExportError,
    MissingExtraError,
    NoImagesError,
    NotFittedError,
    ParityError,
    TooFewImagesError,
)
from discopatch.export import Exported, Parity, export_detector, exporter
from discopatch.export.exporter import open_graph
from discopatch.export.graph import DetectorGraph
from discopatch.export.metadata import GRAPH_FILES, Metadata
from discopatch.utils import file_digest
from tests.export.samples import SIZE, ShiftedEngine, camera_pixels, tiny_detector
from tests.samples import natural_detector, one_camera, tiny_weights

FEW = one_camera(8, seed=5)


def refuse_constant(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


def read_strictly(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "detector.json").read_text(), parse_constant=refuse_constant)
    return content


@pytest.fixture
def engine_off_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Instead of a graph a file at once, which runs as the detector with shifted scores."""

    def write(format: str, graph: DetectorGraph, folder: Path) -> None:
        for name in GRAPH_FILES[format]:
            (folder / name).write_text(f"{len(graph.calibration_scores)}")

    def shift(by: float) -> None:
        monkeypatch.setattr(exporter, "open_graph", lambda format, folder: ShiftedEngine(tiny_detector(), by))

    monkeypatch.setattr(exporter, "write_graph", write)
    shift(0.9e-3)
    return shift


@pytest.mark.parametrize("name", ["onnx_folder", "openvino_folder", "torch_folder"])
def test_every_format_gives_what_the_detector_gives(name: str, request: pytest.FixtureRequest) -> None:
    folder, pixels, detector = request.getfixturevalue(name), camera_pixels(4), tiny_detector()
    metadata = Metadata.read(folder)
    engine, calibration = open_graph(metadata.graph_format, folder), detector.calibration_scores_
    assert np.array_equal(metadata.calibration_scores, calibration)
    for image, expected in zip(pixels, detector.predict(list(pixels), workers=1), strict=True):
        output = engine(image[None], anomaly_map=True)
        assert output.score[0] == pytest.approx(expected.score, abs=1e-3 * calibration.std())
        assert (1 + output.at_least[0]) / (1 + len(calibration)) == expected.p_value
        assert output.anomaly_map is not None
        np.testing.assert_allclose(output.anomaly_map[0], detector.explain(image).anomaly_map, rtol=0, atol=1e-3)
        assert engine(image[None]).anomaly_map is None
    assert {path.name for path in folder.iterdir()} == {"detector.json", *GRAPH_FILES[metadata.graph_format]}


def test_the_metadata_holds_all_that_a_result_depends_on(onnx_folder: Path) -> None:
    detector, weights, content = tiny_detector(), tiny_weights(), read_strictly(onnx_folder)
    assert (content["format"], content["kind"], content["graph"], content["int8"]) == (2, "export", "onnx", False)
    assert content["weights_digest"] == weights.digest
    assert content["transform"] == weights.transform.to_dict()
    assert content["transform_digest"] == weights.transform.digest
    assert (content["head"], content["patches"], content["false_alarm_rate"]) == ("combined", "dense", 0.1)
    assert content["threshold"] == detector.threshold_
    assert content["images"] == detector.n_fit_
    assert "components" not in content
    assert content["calibration"] == {"by": "detector", "scores": detector.calibration_scores_.tolist()}
    assert len(content["calibration"]["scores"]) == 19
    assert content["inputs"]["pixels"] == {"type": "uint8", "shape": ["images", SIZE, SIZE, 3]}
    assert content["inputs"]["with_anomaly_map"] == {"type": "bool", "shape": [], "default": True}
    assert content["outputs"]["anomaly_map"] == {"type": "float32", "shape": ["images", 64, 64]}
    assert content["files"] == {"detector.onnx": file_digest(onnx_folder / "detector.onnx")}
    assert content["parity"]["synthetic_references"] is True
    assert content["parity"]["images"] == 64
    assert 0 < content["parity"]["max_difference"] < 1e-3


def test_the_detector_scores_as_before_to_the_bit(tmp_path: Path, onnx_folder: Path) -> None:
    """After the export that wrote the folder, as one that was never exported."""
    untouched = Detector(**tiny_detector().get_params()).fit(one_camera(60), workers=1)
    images = list(camera_pixels(4))
    for name, detector in (("exported", tiny_detector()), ("untouched", untouched)):
        detector.save(tmp_path / name)
        assert np.array_equal(detector.score(images, workers=1), untouched.score(images, workers=1))
    assert (tmp_path / "exported").read_bytes() == (tmp_path / "untouched").read_bytes()
    assert onnx_folder.is_dir()


@pytest.mark.usefixtures("engine_off_by")
def test_progress_is_reported_step_by_step(tmp_path: Path) -> None:
    steps: list[str] = []
    export_detector(tiny_detector(), tmp_path / "out", progress=steps.append)
    assert len(steps) == 3
    assert "64" in steps[-1]


def test_an_export_that_disagrees_leaves_nothing_behind(tmp_path: Path, engine_off_by: Callable[[float], None]) -> None:
    export_detector(tiny_detector(), tmp_path / "out", reference=FEW)
    before = (tmp_path / "out" / "detector.json").read_bytes()
    engine_off_by(1.1e-3)
    for folder in ("out", "new"):
        with pytest.raises(ParityError, match=r"0\.0011.* 0\.001"):
            export_detector(tiny_detector(), tmp_path / folder, reference=FEW, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "detector.json").read_bytes() == before


@pytest.mark.usefixtures("engine_off_by")
def test_an_existing_export_is_replaced_only_when_asked(tmp_path: Path) -> None:
    export_detector(tiny_detector(), tmp_path / "out", reference=FEW)
    with pytest.raises(ExportError, match="out"):
        export_detector(tiny_detector(), tmp_path / "out", reference=FEW)
    export_detector(tiny_detector(), tmp_path / "out", reference=FEW, force=True)


@pytest.mark.usefixtures("engine_off_by")
def test_calibration_images_are_scored_by_the_export_itself(tmp_path: Path) -> None:
    images, detector = one_camera(39, seed=3), tiny_detector()
    metadata = export_detector(detector, tmp_path / "out", reference=FEW, calibration=images).metadata
    scores = np.sort(detector.score(images, workers=1)) + 0.9e-3 * detector.calibration_scores_.std()
    assert metadata.content["calibration"]["by"] == "export"
    np.testing.assert_allclose(metadata.calibration_scores, scores)
    assert metadata.content["threshold"] == pytest.approx(threshold(scores, 0.1))
    assert (tmp_path / "out" / "detector.onnx").read_text() == "39", "the graph counts them"


@pytest.mark.usefixtures("engine_off_by")
def test_too_few_calibration_images_are_refused_with_the_number_that_is_needed(tmp_path: Path) -> None:
    with pytest.raises(TooFewImagesError, match=r"5 .* 9"):
        export_detector(tiny_detector(), tmp_path / "out", calibration=one_camera(5, seed=3))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "error", "mentioned"),
    [
        ({"format": "tflite"}, ExportError, "'tflite'.* onnx, openvino, torch-export"),
        ({"format": "torch-export", "int8": True}, ExportError, "onnx or openvino"),
        ({"int8": True}, NoImagesError, "--reference"),
    ],
)
def test_what_cannot_be_exported_is_refused_at_once(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], mentioned: str
) -> None:
    with pytest.raises(error, match=mentioned):
        export_detector(tiny_detector(), tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("format", "module", "extra"), [("onnx", "onnxscript", "export"), ("openvino", "openvino", "openvino")]
)
def test_a_missing_package_is_named_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    unread = (pytest.fail("read") for _ in range(9))
    with pytest.raises(MissingExtraError, match=rf"{module} .*\[{extra}\]"):
        export_detector(tiny_detector(), tmp_path / "out", format=format, reference=unread)


def test_a_detector_of_another_precision_is_refused(tmp_path: Path) -> None:
    detector = copy(tiny_detector())
    object.__setattr__(detector, "precision", "bfloat16")  # as fitted on a GPU
    with pytest.raises(ExportError, match=r"bfloat16.*precision='float32'"):
        export_detector(detector, tmp_path / "out")


def test_a_detector_that_was_fitted_on_features_is_refused(tmp_path: Path) -> None:
    features = tiny_detector().extract_features(one_camera(40), workers=1)
    detector = Detector(tiny_weights(), false_alarm_rate=0.1, device="cpu").fit_features(features)
    with pytest.raises(NotFittedError, match="images"):
        export_detector(detector, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_export_for_torch_needs_no_onnx() -> None:
    without = "import sys; sys.modules.update(onnx=None, onnxscript=None, onnxruntime=None)"
    code = f"{without}; import discopatch.export.exporter, discopatch.export.torch_export"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# In 8 bits


@pytest.mark.slow
def test_8_bits_are_compared_by_what_they_tell_apart(int8_export: tuple[Path, Exported]) -> None:
    folder, (metadata, parity) = int8_export
    stored = Metadata.read(folder).content
    assert {name: value for name, value in stored.items() if name != "file_digest"} == metadata.content
    assert stored["int8"] is True
    assert (
        Parity(**{name: value for name, value in stored["parity"].items() if name != "synthetic_references"}) == parity
    )
    assert parity.auroc_detector is not None
    assert parity.max_difference > 1e-3, "rounding shows"
    assert abs(parity.mean_difference) < 0.1, "but not on average"


def test_a_shift_of_the_scores_is_cautioned_unless_the_export_was_calibrated() -> None:
    def caution(shift: float, by: str) -> str | None:
        parity = Parity(64, 0.5, shift, 3, 0, 8, 0.1, auroc_detector=0.9, auroc_export=0.9)
        return Exported(Metadata({"calibration": {"by": by}, "false_alarm_rate": 0.01}), parity).caution

    text = caution(-0.3, "detector")
    assert text is not None
    for part in ("-0.30", "1.00%", "--calibration"):
        assert part in text
    assert caution(0.05, "detector") is None
    assert caution(-0.3, "export") is None


@pytest.mark.slow
@pytest.mark.parametrize("int8", [False, True])
def test_the_guarantee_is_about_the_scores_of_the_export_itself(int8: bool, tmp_path: Path) -> None:
    """To the bit: a calibration image that comes again scores what it was calibrated with."""
    new = one_camera(124, seed=5)
    images = new[60:]
    export_detector(tiny_detector(), tmp_path / "out", int8=int8, reference=new[:60], calibration=images)
    runtime = Runtime.load(tmp_path / "out")
    scores, predictions = runtime.score(images, workers=1), runtime.predict(images, workers=1)
    assert np.array_equal(runtime.metadata.calibration_scores, np.sort(scores))
    assert runtime.threshold_ == threshold(scores, 0.1)
    assert [each.p_value for each in predictions] == p_values(scores, scores).tolist()
    assert sum(bool(each.is_ood) for each in predictions) == 5, "6 of 65 are allowed, the image itself among them"


# All of it, with the real runtimes


@pytest.mark.slow
@pytest.mark.parametrize("format", GRAPH_FILES)
@pytest.mark.parametrize(
    ("head", "patches", "sampling"),
    [("combined", 5, "random"), ("statistics", 5, "grid"), ("logit", "dense", "random"), ("sigmoid", 5, "random")],
)
def test_every_head_and_sampling_runs_in_every_format(
    head: str, patches: int | Literal["dense"], sampling: Literal["random", "grid"], format: str, tmp_path: Path
) -> None:
    detector = Detector(
        tiny_weights(seed=2), head=head, patches=patches, sampling=sampling, seed=3, false_alarm_rate=0.1, device="cpu"
    ).fit(one_camera(30), workers=1)
    reference = one_camera(12, seed=4)
    export_detector(detector, tmp_path / "out", format=format, reference=reference)
    engine, scores = open_graph(format, tmp_path / "out"), detector.score(reference, workers=1)
    found = [engine(each.pixels[None]).score[0] for each in reference]
    np.testing.assert_allclose(found, scores, rtol=0, atol=1e-3 * detector.calibration_scores_.std())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "format", "int8"),
    [("natural-v2", "onnx", False), ("natural-small-v1", "openvino", False), ("natural-small-v1", "onnx", True)],
)
def test_pretrained_weights_export(weights: str, format: str, int8: bool, tmp_path: Path) -> None:
    detector = natural_detector(weights)
    done = export_detector(
        detector, tmp_path / "out", format=format, int8=int8, reference=one_camera(24, size=256, seed=9)
    )
    new = one_camera(3, size=256, seed=10)
    tolerance = (1.0 if int8 else 1e-3) * detector.calibration_scores_.std()
    np.testing.assert_allclose(Runtime.load(tmp_path / "out").score(new), detector.score(new), rtol=0, atol=tolerance)
    assert done.parity.images == (16 if int8 else 24)
