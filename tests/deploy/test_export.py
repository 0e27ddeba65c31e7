"""Export: a folder that says what the detector says, or no folder; and the detector stays as it is."""

import json
import subprocess
import sys
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import discopatch.deploy.export as exporting
from discopatch import Detector, Runtime
from discopatch.decision import TooFewImages, p_values, threshold
from discopatch.deploy.export import Exported, export
from discopatch.deploy.formats import open_graph
from discopatch.deploy.graph import DetectorGraph
from discopatch.deploy.parity import Parity, ParityError
from discopatch.deploy.sidecar import FILES, ExportError, Sidecar, sha256
from discopatch.images import NoImagesError
from discopatch.patches import Sampling
from tests.deploy.samples import SIZE, Lying, pixels_of, tiny_detector
from tests.scoring.samples import natural_detector, of_one_camera, tiny_weights

FEW = of_one_camera(8, seed=5)


def refuse_constant(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of a graph a file at once, which runs as the detector with a small lie."""

    def write(format: str, graph: DetectorGraph, folder: Path, *, size: int) -> None:
        for name in FILES[format]:
            (folder / name).write_text(f"{len(graph.calibration)}")

    monkeypatch.setattr(exporting, "write_graph", write)
    monkeypatch.setattr(exporting, "open_graph", lambda format, folder: Lying(tiny_detector(), 0.9e-3))


@pytest.mark.parametrize("name", ["onnx_folder", "openvino_folder", "torch_folder"])
def test_every_format_says_what_the_detector_says(name: str, request: pytest.FixtureRequest) -> None:
    folder, pixels, detector = request.getfixturevalue(name), pixels_of(4), tiny_detector()
    sidecar = Sidecar.read(folder)
    engine, spread = open_graph(sidecar.graph, folder), detector.fitted.calibration.std()
    for picture, expected in zip(pixels, detector.predict(list(pixels), workers=1), strict=True):
        answer = engine(picture[None], heat=True)
        assert answer.score[0] == pytest.approx(expected.score, abs=1e-3 * spread)
        assert (1 + answer.at_least[0]) / (1 + sidecar.calibration_scores) == expected.p_value
        assert answer.heat is not None
        np.testing.assert_allclose(answer.heat[0], detector.explain(picture).heat, rtol=0, atol=1e-3)
        assert engine(picture[None]).heat is None
    assert {path.name for path in folder.iterdir()} == {"detector.json", *FILES[sidecar.graph]}


def test_the_sidecar_says_all_that_a_result_depends_on(onnx_folder: Path) -> None:
    detector, weights = tiny_detector(), tiny_weights()
    content = json.loads((onnx_folder / "detector.json").read_text(), parse_constant=refuse_constant)
    calibration = detector.fitted.calibration
    assert (content["format"], content["kind"], content["graph"], content["int8"]) == (1, "export", "onnx", False)
    assert content["weights_digest"] == weights.digest
    assert content["transform"] == weights.transform.to_dict()
    assert content["transform_digest"] == weights.transform.digest
    assert (content["head"], content["sampling"], content["false_alarm_rate"]) == ("combined", "dense", 0.1)
    assert content["threshold"] == detector.threshold
    assert content["images"] == detector.fitted.images
    assert content["calibration"] == {"scores": 19, "spread": calibration.std(), "by": "detector"}
    assert content["inputs"]["pixels"] == {"type": "uint8", "shape": ["images", SIZE, SIZE, 3]}
    assert content["inputs"]["with_heat"] == {"type": "bool", "shape": [], "default": True}
    assert content["outputs"]["heat"] == {"type": "float32", "shape": ["images", 64, 64]}
    assert content["files"] == {"detector.onnx": sha256(onnx_folder / "detector.onnx")}
    assert content["parity"]["made_up_images"] is True
    assert content["parity"]["images"] == 64
    assert 0 < content["parity"]["greatest_difference_in_spreads"] < 1e-3


def test_the_detector_scores_as_before_to_the_bit(tmp_path: Path, onnx_folder: Path) -> None:
    """After the export that made the folder, as one that was never exported."""
    untouched = Detector(tiny_weights(), false_alarm_rate=0.1, device="cpu").fit(of_one_camera(60), workers=1)
    pixels = list(pixels_of(4))
    for other in (tiny_detector(), untouched):
        other.save(tmp_path / str(id(other)))
        assert np.array_equal(other.score(pixels, workers=1), untouched.score(pixels, workers=1))
    one, other_file = (path.read_bytes() for path in tmp_path.iterdir())
    assert one == other_file
    assert onnx_folder.is_dir()


@pytest.mark.usefixtures("quick")
def test_an_export_is_told_step_by_step(tmp_path: Path) -> None:
    told: list[str] = []
    export(tiny_detector(), tmp_path / "out", tell=told.append)
    assert told == ["copying the network", "writing the graph", "comparing on 64 images"]


@pytest.mark.usefixtures("quick")
def test_an_export_that_disagrees_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(tiny_detector(), tmp_path / "out", reference=FEW)
    before = (tmp_path / "out" / "detector.json").read_bytes()
    monkeypatch.setattr(exporting, "open_graph", lambda format, folder: Lying(tiny_detector(), 1.1e-3))
    for folder in ("out", "new"):
        with pytest.raises(ParityError, match=r"0\.0011 of the spread of normal scores, the limit is 0\.001: nothing"):
            export(tiny_detector(), tmp_path / folder, reference=FEW, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "detector.json").read_bytes() == before


@pytest.mark.usefixtures("quick")
def test_an_export_that_is_there_is_replaced_only_when_asked(tmp_path: Path) -> None:
    export(tiny_detector(), tmp_path / "out", reference=FEW)
    with pytest.raises(ExportError, match="exists"):
        export(tiny_detector(), tmp_path / "out", reference=FEW)
    export(tiny_detector(), tmp_path / "out", reference=FEW, force=True)


@pytest.mark.usefixtures("quick")
def test_calibration_images_of_its_own_decide_the_promise(tmp_path: Path) -> None:
    """Scored by the export itself: here the detector's scores and a small lie."""
    pictures, detector = of_one_camera(39, seed=3), tiny_detector()
    done = export(detector, tmp_path / "out", reference=FEW, calibration=pictures)
    spread = detector.fitted.calibration.std()
    scores = np.sort(detector.score(pictures, workers=1)) + 0.9e-3 * spread
    content = done.sidecar.content["calibration"]
    assert (content["scores"], content["by"]) == (39, "export")
    assert content["spread"] == pytest.approx(scores.std())
    assert done.sidecar.threshold == pytest.approx(threshold(scores, 0.1))
    assert (tmp_path / "out" / "detector.onnx").read_text() == "39", "the graph counts them"


@pytest.mark.usefixtures("quick")
def test_too_few_calibration_images_are_refused_with_the_number_that_is_needed(tmp_path: Path) -> None:
    with pytest.raises(TooFewImages, match=r"5 calibration images; .* needs at least 9"):
        export(tiny_detector(), tmp_path / "out", calibration=of_one_camera(5, seed=3))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("quick")
def test_a_threshold_that_no_image_reaches_is_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discopatch.deploy.description.threshold", lambda scores, rate: float("inf"))
    sidecar = export(tiny_detector(), tmp_path / "out", reference=FEW).sidecar
    content = json.loads((tmp_path / "out" / "detector.json").read_text(), parse_constant=refuse_constant)
    assert content["threshold"] is None
    assert not isfinite(sidecar.threshold)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"format": "tflite"}, ExportError, "unknown format 'tflite': choose one of onnx, openvino, torch-export"),
        ({"format": "torch-export", "int8": True}, ExportError, "has no 8 bits: choose the format onnx or openvino"),
        ({"int8": True}, NoImagesError, "give --reference with normal images"),
    ],
)
def test_what_cannot_be_exported_is_refused_at_once(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        export(tiny_detector(), tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("format", "module", "extra"), [("onnx", "onnxscript", "export"), ("openvino", "openvino", "openvino")]
)
def test_a_missing_package_is_named_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=rf"{module} is not installed: pip install 'discopatch\[{extra}\]'"):
        export(tiny_detector(), tmp_path / "out", format=format, reference=(pytest.fail("read") for _ in range(9)))


def test_a_detector_of_another_precision_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    detector = tiny_detector()
    monkeypatch.setattr(detector, "precision", "bfloat16")
    with pytest.raises(ExportError, match=r"fitted in bfloat16, .*: fit again with precision='float32'"):
        export(detector, tmp_path / "out")


# In 8 bits


def test_8_bits_are_compared_by_what_they_tell_apart(int8_export: tuple[Path, Exported]) -> None:
    folder, (sidecar, parity) = int8_export
    stored = Sidecar.read(folder).content
    assert stored == sidecar.content
    assert stored["int8"] is True
    assert parity.auroc is not None
    assert (stored["parity"]["auroc_of_detector"], stored["parity"]["auroc_of_export"]) == parity.auroc
    assert stored["parity"]["greatest_difference_in_spreads"] > 1e-3, "rounding shows"
    assert abs(stored["parity"]["mean_difference_in_spreads"]) < 0.1, "but not on average"
    assert "after rounding to 8 bits" in parity.words


@pytest.mark.slow
@pytest.mark.parametrize("int8", [False, True])
def test_the_promise_is_about_the_scores_of_the_export_itself(int8: bool, tmp_path: Path) -> None:
    """To the bit: a calibration image that comes again scores what it was calibrated with."""
    new = of_one_camera(100, seed=5)
    pictures = new[36:]
    export(tiny_detector(), tmp_path / "out", int8=int8, reference=new[:36], calibration=pictures)
    runtime = Runtime.load(tmp_path / "out")
    scores, predictions = runtime.score(pictures, workers=1), runtime.predict(pictures, workers=1)
    assert runtime.sidecar.calibration_scores == 64
    assert runtime.threshold == threshold(scores, 0.1)
    assert [each.p_value for each in predictions] == p_values(scores, scores).tolist()
    assert sum(bool(each.is_ood) for each in predictions) == 5, "6 of 65 are allowed, the image itself among them"


def test_the_graph_in_8_bits_has_no_large_float_convolution(int8_export: tuple[Path, Exported]) -> None:
    import onnx

    graph = onnx.load(int8_export[0] / "detector.onnx").graph
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("ConvInteger") == 1
    assert kinds.count("Conv") == 2, "that of the pixels, and the head"


def shifted(by: float, owner: str) -> Exported:
    parity = Parity(images=64, scores=0.5, shift=by, p_values=3, verdicts=0, heatmaps=8, heat=0.1, auroc=(0.9, 0.9))
    return Exported(Sidecar({"calibration": {"by": owner}, "false_alarm_rate": 0.01}), parity)


def test_a_shift_of_the_scores_is_said_with_the_remedy_unless_it_was_calibrated() -> None:
    caution = shifted(-0.3, "detector").caution
    assert caution is not None
    assert "moved by -0.30 of their spread" in caution
    assert "1.00% was promised for the detector, not for this export; give --calibration" in caution
    assert shifted(0.05, "detector").caution is None
    assert shifted(-0.3, "export").caution is None


# All of it, with the real runtimes


@pytest.mark.slow
@pytest.mark.parametrize("format", FILES)
@pytest.mark.parametrize(
    ("head", "sampling"), [("combined", "random"), ("statistics", "grid"), ("logit", "dense"), ("sigmoid", "random")]
)
def test_every_head_and_sampling_runs_in_every_format(
    head: str, sampling: Sampling, format: str, tmp_path: Path
) -> None:
    detector = Detector(
        tiny_weights(seed=2), head=head, sampling=sampling, patches=5, seed=3, false_alarm_rate=0.1, device="cpu"
    ).fit(of_one_camera(30), workers=1)
    reference = of_one_camera(12, seed=4)
    export(detector, tmp_path / "out", format=format, reference=reference)
    engine, scores = open_graph(format, tmp_path / "out"), detector.score(reference, workers=1)
    found = [engine(each.pixels[None]).score[0] for each in reference]
    np.testing.assert_allclose(found, scores, rtol=0, atol=1e-3 * detector.fitted.calibration.std())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "format", "int8"),
    [("natural-v1", "onnx", False), ("natural-small-v1", "openvino", False), ("natural-small-v1", "onnx", True)],
)
def test_the_released_weights_export(weights: str, format: str, int8: bool, tmp_path: Path) -> None:
    detector, pictures = natural_detector(weights), of_one_camera(24, size=256, seed=9)
    done = export(detector, tmp_path / "out", format=format, int8=int8, reference=pictures)
    runtime = Runtime.load(tmp_path / "out")
    new = of_one_camera(3, size=256, seed=10)
    tolerance = 1.0 if int8 else 1e-3
    np.testing.assert_allclose(
        runtime.score(new), detector.score(new), rtol=0, atol=tolerance * detector.fitted.calibration.std()
    )
    assert done.parity.images == (16 if int8 else 24)


def test_an_export_for_torch_needs_no_onnx() -> None:
    without = "import sys; sys.modules.update(onnx=None, onnxscript=None, onnxruntime=None)"
    code = f"{without}; import discopatch.deploy.export, discopatch.deploy.torchfile"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
