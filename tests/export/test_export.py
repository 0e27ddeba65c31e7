"""An export agrees with its detector, or is not written."""

import json
import sys
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from PIL import Image

from discopatch import Detector, Runtime
from discopatch.calibration import p_values, threshold
from discopatch.errors import ExportError, MissingExtraError, NoImagesError, TooFewImagesError
from discopatch.export import Exported, Parity, export_detector
from discopatch.export.graph import DetectorGraph
from discopatch.export.metadata import GRAPH_FILES, Metadata
from discopatch.export.parity import References, measure_parity
from discopatch.export.runtime import OPEN, Outputs
from discopatch.images import Pixels
from discopatch.utils import file_digest
from tests.cli.conftest import Run, assert_error, run  # noqa: F401 - a fixture
from tests.export.samples import camera_pixels, tiny_detector
from tests.samples import inverted_weights, new_detector, one_camera, tiny_weights

FEW = one_camera(8, seed=5)
FINE = Parity(64, False, 1e-5, mean_difference=1e-6, p_values_changed=0, predictions_changed=0, max_map_difference=1e-5)


class ShiftedEngine:
    """The detector itself, with scores shifted by so many standard deviations and other z-scores."""

    def __init__(self, by: float = 0.0, *, sign: int = 1, z: float = 0.0) -> None:
        self.by, self.sign, self.z = by, sign, z

    def __call__(self, pixels: Pixels) -> Outputs:
        detector = tiny_detector()
        prediction = detector.predict(pixels, workers=1)[0]
        assert prediction.score is not None
        score = self.sign * prediction.score + self.by * detector.calibration_scores_.std()
        z = np.array([[each.z for each in prediction.components]]) + self.z
        return {"score": np.array([score]), "components": z, "place_map": place_map(pixels)}


def place_map(pixels: Pixels) -> NDArray[np.float32]:
    """z-scores of places by the detector."""
    return tiny_detector()._mapper().extract_pixels(pixels).places


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ShiftedEngine:
    """Instead of a graph, a file that is run as the detector with shifted scores."""
    engine = ShiftedEngine(0.9e-3)

    def write(format: str, graph: DetectorGraph, path: Path) -> None:
        path.write_text("a graph")

    monkeypatch.setattr("discopatch.export.graph_files.write_graph", write)
    monkeypatch.setitem(OPEN, "onnx", lambda path, threads: engine)
    return engine


def measured(engine: ShiftedEngine, onnx_folder: Path, *, int8: bool = False) -> Parity:
    runtime = Runtime(Metadata.read(onnx_folder), engine)
    return measure_parity(tiny_detector(), runtime, References(list(camera_pixels(9))), int8=int8)


def test_the_metadata_hold_everything_that_a_result_depends_on(onnx_folder: Path) -> None:
    detector = tiny_detector()
    content = json.loads((onnx_folder / "detector.json").read_text(), parse_constant=pytest.fail)
    assert content["settings"] == json.loads(json.dumps(detector.settings()))
    assert content["calibration_scores"] == detector.calibration_scores_.tolist()
    assert content["files"] == {name: file_digest(onnx_folder / name) for name in GRAPH_FILES["onnx"]}
    assert content["components"] == list(detector.component_names)
    assert content["place_level"] == detector.places_.level
    assert (content["graph"], content["int8"], content["calibrated_by"]) == ("onnx", False, "detector")
    assert (content["parity"]["synthetic"], content["parity"]["images"]) == (True, 64)
    assert 0 < content["parity"]["max_difference"] < 1e-3
    assert {path.name for path in onnx_folder.iterdir()} == {"detector.json", *GRAPH_FILES["onnx"]}


def test_an_export_that_disagrees_leaves_nothing_behind(tmp_path: Path, engine: ShiftedEngine) -> None:
    steps: list[str] = []
    export_detector(tiny_detector(), tmp_path / "out", reference=FEW, progress=steps.append)
    assert len(steps) == 3
    with pytest.raises(ExportError, match="exists"):
        export_detector(tiny_detector(), tmp_path / "out", reference=FEW)
    before = (tmp_path / "out" / "detector.json").read_bytes()
    engine.by = 1.1e-3
    for folder in ("out", "new"):
        with pytest.raises(ExportError, match="scores"):
            export_detector(tiny_detector(), tmp_path / folder, reference=FEW, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "detector.json").read_bytes() == before


@pytest.mark.usefixtures("engine")
def test_calibration_images_are_scored_by_the_export_itself(tmp_path: Path) -> None:
    images, detector = one_camera(19, seed=3), tiny_detector()
    export_detector(detector, tmp_path / "out", reference=FEW, calibration=images)
    metadata = Metadata.read(tmp_path / "out")
    scores = np.sort(detector.score(images, workers=1)) + 0.9e-3 * detector.calibration_scores_.std()
    assert metadata.calibrated_by == "export"
    np.testing.assert_allclose(metadata.calibration.scores, scores)
    with pytest.raises(TooFewImagesError):
        export_detector(detector, tmp_path / "new", reference=FEW, calibration=images[:5])
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.usefixtures("engine")
def test_fast_decoding_is_calibrated_on_images_that_are_decoded_so(tmp_path: Path, run: Run) -> None:  # noqa: F811
    tiny_detector().save(tmp_path / "camera.safetensors")
    (tmp_path / "new").mkdir()
    for number, image in enumerate(one_camera(9, size=300, seed=5)):
        Image.fromarray(image.pixels).save(tmp_path / "new" / f"{number}.jpg")
    command = ("export", tmp_path / "camera.safetensors", "--fast-decode")
    assert_error(run(*command), "--calibration")
    assert run(*command, "--calibration", tmp_path / "new").status == 0
    detector, metadata = Detector.load(tmp_path / "camera.safetensors"), Metadata.read(tmp_path / "camera-onnx")
    usual = sorted(detector.score(tmp_path / "new"))
    detector.decoder = "scaled"
    scaled, shift = sorted(detector.score(tmp_path / "new")), 0.9e-3 * detector.calibration_scores_.std()
    assert (metadata.fitted.transform.decoder, metadata.calibrated_by) == ("scaled", "export")
    assert metadata.calibration_scores == pytest.approx([each + shift for each in scaled], abs=1e-6)
    assert np.abs(np.subtract(scaled, usual)).max() > 1e-3


@pytest.mark.parametrize(("options", "error"), [({"format": "tflite"}, ExportError), ({"int8": True}, NoImagesError)])
def test_wrong_options_are_refused_at_once(tmp_path: Path, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        export_detector(tiny_detector(), tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("format", "module"), [("onnx", "onnxscript"), ("openvino", "openvino")])
def test_a_missing_package_is_named_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    unread = (pytest.fail("read") for _ in range(9))
    with pytest.raises(MissingExtraError, match=module):
        export_detector(tiny_detector(), tmp_path / "out", format=format, reference=unread)


@pytest.mark.parametrize(("name", "value"), [("precision", "bfloat16"), ("decoder", "nvimgcodec")])
def test_detectors_that_need_a_gpu_are_refused(tmp_path: Path, name: str, value: str) -> None:
    detector = copy(tiny_detector())
    object.__setattr__(detector, name, value)
    with pytest.raises(ExportError, match=value):
        export_detector(detector, tmp_path / "out")


# Parity


@pytest.mark.parametrize("by", [0.0, -0.9e-3, 1.1e-3, 3.0])
def test_scores_may_differ_by_a_thousandth_of_the_calibration_spread(by: float, onnx_folder: Path) -> None:
    parity = measured(ShiftedEngine(by), onnx_folder)
    assert parity.max_difference == pytest.approx(abs(by), abs=1e-12)
    assert parity.mean_difference == pytest.approx(by, abs=1e-12)
    if abs(by) <= 1e-3:
        parity.check()
    else:
        with pytest.raises(ExportError, match="scores"):
            parity.check()


def test_p_values_and_decisions_that_differ_are_counted(onnx_folder: Path) -> None:
    parity = measured(ShiftedEngine(100.0, z=0.02), onnx_folder)
    expected = tiny_detector().predict(list(camera_pixels(9)), workers=1)
    assert parity.predictions_changed == sum(not each.is_ood for each in expected) > 4
    assert parity.p_values_changed == sum(each.p_value != 1 / 20 for each in expected)
    assert parity.max_component_difference == pytest.approx(0.02)
    assert str(parity.p_values_changed) in parity.text


@pytest.mark.parametrize(
    "refused",
    [
        {"max_map_difference": 0.02},
        {"max_component_difference": 0.011},
        *({name: float("nan")} for name in ("max_difference", "max_map_difference", "max_component_difference")),
        {"auroc_detector": 0.9, "auroc_export": float("nan")},
        {"auroc_detector": 0.95, "auroc_export": 0.9449},
    ],
)
def test_differences_beyond_a_limit_are_refused(refused: dict[str, float]) -> None:
    FINE.check()
    replace(FINE, max_difference=0.4, auroc_detector=0.95, auroc_export=0.9451).check()
    with pytest.raises(ExportError):
        replace(FINE, **refused).check()  # type: ignore[arg-type]


def test_8_bits_are_compared_by_the_auroc_on_corrupted_references(onnx_folder: Path) -> None:
    """An export with the opposite sign ranks corrupted images as normal."""
    parity = measured(ShiftedEngine(sign=-1), onnx_folder, int8=True)
    assert parity.auroc_detector is not None
    assert parity.auroc_export == pytest.approx(1 - parity.auroc_detector)
    assert parity.auroc_detector > 0.55
    with pytest.raises(ExportError, match="AUROC"):
        parity.check()


def test_a_shift_of_scores_is_a_caution_unless_the_export_was_calibrated(onnx_folder: Path) -> None:
    metadata, shifted = Metadata.read(onnx_folder), replace(FINE, mean_difference=-0.3)
    assert "--calibration" in str(Exported(metadata, shifted).caution)
    assert Exported(metadata, FINE).caution is None
    assert Exported(replace(metadata, calibrated_by="export"), shifted).caution is None


# Real graphs


@pytest.mark.slow
def test_8_bits_are_close_and_keep_the_guarantee(int8_export: tuple[Path, Exported]) -> None:
    """The calibration images of the export, if they come again, have the scores that they were calibrated with."""
    folder, (metadata, parity) = int8_export
    runtime, images = Runtime.load(folder), one_camera(87, seed=5)[48:]
    assert runtime.metadata == metadata
    assert parity.auroc_detector is not None
    assert 1e-3 < parity.max_difference < 1.0, "rounding shows"
    assert abs(parity.mean_difference) < 0.1, "but not on average"
    predictions = runtime.predict(images, workers=1)
    assert runtime.calibration_scores_.tolist() == sorted(predictions.scores)
    assert runtime.threshold_ == threshold(predictions.scores, 0.1)
    assert predictions.p_values.tolist() == p_values(predictions.scores, predictions.scores).tolist()
    kinds = [node.op_type for node in onnx.load(folder / "detector.onnx").graph.node]
    assert (kinds.count("ConvInteger"), kinds.count("Conv")) == (1, 2), "floats for pixels and the head alone"


@pytest.mark.slow
def test_inverted_networks_export_in_8_bits_to_onnx_alone(tmp_path: Path) -> None:
    detector = new_detector(inverted_weights(), head="statistics").fit(one_camera(40), workers=1)
    reference = one_camera(96, seed=5)
    with pytest.raises(ExportError, match="OpenVINO"):
        export_detector(detector, tmp_path / "out", format="openvino", int8=True, reference=reference)
    export_detector(detector, tmp_path / "out", int8=True, reference=reference)
    difference = Runtime.load(tmp_path / "out").score(reference) - detector.score(reference)
    assert np.sqrt(np.square(difference).mean()) < 0.3 * detector.calibration_scores_.std()


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", pytest.param("openvino", marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("head", "patches", "sampling"),
    [
        *(("combined", 5, "random"), ("statistics", 5, "grid"), ("logit", "dense", "random"), ("sigmoid", 5, "random")),
        ("components", "dense", "random"),
    ],
)
def test_every_head_and_sampling_exports(
    head: str,
    patches: int | Literal["dense"],
    sampling: Literal["random", "grid"],
    format: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("discopatch.heads.components.PLAIN_GAIN", -1.0)  # as if scenes differed
    detector = new_detector(tiny_weights(seed=2), head=head, patches=patches, sampling=sampling, seed=3)
    reference = one_camera(12, seed=4)
    export_detector(detector.fit(one_camera(30), workers=1), tmp_path / "out", format=format, reference=reference)
    tolerance = 1e-3 * detector.calibration_scores_.std()
    found = Runtime.load(tmp_path / "out").score(reference)
    np.testing.assert_allclose(found, detector.score(reference, workers=1), rtol=0, atol=tolerance)


@pytest.mark.nightly
@pytest.mark.parametrize("weights", ["natural-v2", "natural-small-v2"])
def test_released_weights_export_in_8_bits(weights: str, tmp_path: Path) -> None:
    detector = Detector(weights, false_alarm_rate=0.1, reason_images=4, detection_images=0, device="cpu")
    detector.fit(one_camera(40, size=256))
    done = export_detector(detector, tmp_path / "out", int8=True, reference=one_camera(24, size=256, seed=9))
    assert (done.parity.images, done.parity.max_component_difference < 1.0) == (16, True)


# Whole images


def wide_camera(count: int, *, height: int = 96, width: int = 160, seed: int = 0) -> list[Pixels]:
    return [each.pixels[:height, :width] for each in one_camera(count, size=160, seed=seed)]


@pytest.mark.slow
@pytest.mark.parametrize("format", GRAPH_FILES)
def test_whole_images_of_any_shape_are_scored_like_by_the_detector(format: str, tmp_path: Path) -> None:
    mark = (120, 0, 40, 20)
    detector = new_detector(resolution=96).fit(wide_camera(40), workers=1, ignore=[mark])
    assert detector.transform_.shape == (96, 160)
    export_detector(detector, tmp_path / "out", format=format)
    runtime = Runtime.load(tmp_path / "out")
    assert runtime.transform_ == detector.transform_
    images = [*wide_camera(2, seed=1), *wide_camera(2, width=96, seed=2), *wide_camera(2, height=50, seed=3)]
    assert {runtime.transform_(each).shape for each in images} == {(96, 160, 3), (96, 96, 3), (64, 160, 3)}
    tolerance = 1e-3 * detector.calibration_scores_.std()
    scores = runtime.score(images, workers=1)
    np.testing.assert_allclose(scores, detector.score(images, workers=1), rtol=0, atol=tolerance)
    for image in images:
        found, expected = runtime.explain(image), detector.explain(image)
        assert (found.size, found.anomaly_map.shape) == (image.shape[:2], found.image.shape[:2])
        np.testing.assert_allclose(found.anomaly_map, expected.anomaly_map, rtol=0, atol=1e-3)
    marked = images[0].copy()
    marked[:20, 120:] = 255 - marked[:20, 120:]
    assert runtime.score([marked]) == scores[0]
    marked[40:60, 20:60] = 0
    assert runtime.score([marked]) != scores[0]


# References


def collect(source: object | None, *, int8: bool = False) -> References:
    return References.collect(source, tiny_detector().transform_, int8=int8, workers=1)


def test_synthetic_references_are_reproducible_and_diverse() -> None:
    references = collect(None)
    pixels = np.stack(references.pixels).astype(float)
    assert references.synthetic
    assert np.array_equal(pixels, collect(None).pixels)
    contrasts = pixels.std((1, 2, 3))
    roughness = np.abs(np.diff(pixels, axis=2)).mean((1, 2, 3)) / contrasts
    assert contrasts.min() > 3, "none is flat"
    assert contrasts.max() > 5 * contrasts.min()
    assert roughness.max() > 5 * roughness.min()
    scores = tiny_detector().score(references.pixels, workers=1)
    low, high = np.quantile(tiny_detector().calibration_scores_, [0.25, 0.75])  # a few scores lie far above
    assert np.ptp(scores) > 3 * (high - low)


def test_the_first_64_readable_images_are_references() -> None:
    images: list[object] = [each.pixels for each in one_camera(70)]
    images[3] = b"not an image"
    references = collect(images)
    assert np.array_equal(references.pixels, camera_pixels(70, seed=0)[[*range(3), *range(4, 65)]])
    assert len(collect(images[:9]).pixels) == 8
    with pytest.raises(NoImagesError):
        collect(images[:8])


def test_8_bits_are_compared_on_other_images_than_they_are_tuned_with() -> None:
    references, images = collect(one_camera(100), int8=True), camera_pixels(96, seed=0)
    assert np.array_equal(references.tuning, images[::3])
    assert np.array_equal(references.pixels, np.delete(images, slice(None, None, 3), axis=0))
    with pytest.raises(NoImagesError):
        collect(one_camera(11), int8=True)
