"""The graphs give what the detector gives, and contain nothing of the machine that wrote them."""

from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from discopatch.explain.anomaly_map import enlarge
from discopatch.export.graph import DetectorGraph, graph_module
from discopatch.heads.gaussian import ShrunkGaussian
from discopatch.images import Pixels
from tests.export.samples import SIZE, camera_pixels, tiny_detector
from tests.samples import tiny_weights


def flat_and_new() -> Pixels:
    """New images, and a flat image."""
    return np.concatenate([camera_pixels(4), np.full((1, SIZE, SIZE, 3), 200, np.uint8)])


@pytest.fixture(scope="module")
def session(onnx_folder: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(onnx_folder / "detector.onnx")


def run(session: onnxruntime.InferenceSession, pixels: Pixels) -> dict[str, NDArray[np.floating]]:
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, {"pixels": pixels}), strict=True))


def test_the_graph_gives_what_the_detector_gives() -> None:
    detector, pixels = tiny_detector(), flat_and_new()
    found = DetectorGraph(detector)(torch.from_numpy(pixels))
    np.testing.assert_allclose(found["score"].numpy(), detector.score(list(pixels), workers=1), rtol=0, atol=1e-4)
    for z, image in zip(found["place_map"].numpy(), pixels, strict=True):
        expected = detector.explain(image).anomaly_map
        np.testing.assert_allclose(enlarge(z, detector.places_.level.item(), (SIZE, SIZE)), expected, rtol=0, atol=1e-3)


def test_changes_of_the_graph_leave_the_detector_as_it_is() -> None:
    detector, images = tiny_detector(), list(camera_pixels(2))
    before, graph = detector.score(images, workers=1), DetectorGraph(detector)
    with torch.no_grad():
        for constant in (*graph.parameters(), *graph.buffers()):
            constant.zero_()
    assert detector.weights_.digest == tiny_weights().digest
    assert np.array_equal(detector.score(images, workers=1), before)
    assert detector.explain(images[0]).anomaly_map.any()


@pytest.mark.parametrize("differ", [False, True])
def test_a_head_keeps_its_digits_in_float32_as_in_openvino(differ: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    head, features = tiny_detector().head_, tiny_detector().extract_features(list(camera_pixels(4)), workers=1)
    if differ:
        head = deepcopy(head)
        head.early = ShrunkGaussian.empty()
        assert "early" in head.parts
    expected, copy = head.score(features), graph_module(head).to(torch.float32)
    monkeypatch.setattr(torch.Tensor, "double", lambda tensor: tensor.to(torch.float32))
    score = copy(**copy.tensors(features))
    assert score.dtype == torch.float32
    np.testing.assert_allclose(score.numpy(), expected, rtol=1e-4, atol=1e-4)


# The files


def test_inputs_and_outputs_of_the_file(session: onnxruntime.InferenceSession) -> None:
    (pixels,) = session.get_inputs()
    assert (pixels.name, pixels.type) == ("pixels", "tensor(uint8)")
    assert pixels.shape == ["images", "height", "width", 3]
    outputs = {each.name: (each.type, each.shape) for each in session.get_outputs()}
    count = len(tiny_detector().component_names)
    assert outputs["score"] == ("tensor(double)", ["images"])
    assert outputs["components"] == ("tensor(double)", ["images", count])
    assert (outputs["place_map"][0], len(outputs["place_map"][1])) == ("tensor(float)", 3)
    assert len(outputs) == 3


def test_the_graph_passes_the_network_once(onnx_folder: Path) -> None:
    kinds = [node.op_type for node in onnx.load(onnx_folder / "detector.onnx").graph.node]
    layers = len(tiny_detector().weights_.discriminator.blocks)
    assert kinds.count("Conv") == layers + 1, "and the head of the discriminator"
    assert "If" not in kinds


def test_any_number_of_images_passes_and_each_depends_on_itself_alone(
    session: onnxruntime.InferenceSession,
) -> None:
    pixels = flat_and_new()
    together = run(session, pixels)
    for index in range(len(pixels)):
        for name, alone in run(session, pixels[index : index + 1]).items():
            np.testing.assert_allclose(alone[0], together[name][index], rtol=0, atol=1e-5)


@pytest.mark.parametrize("level", [3, 201, 255])
def test_flat_images_keep_their_digits(session: onnxruntime.InferenceSession, level: int) -> None:
    """Thousands of equal numbers, added one by one in float32, would lose them."""
    pixels, detector = np.full((1, SIZE, SIZE, 3), level, np.uint8), tiny_detector()
    tolerance = 1e-4 * detector.calibration_scores_.std()
    expected = detector.score(list(pixels), workers=1)
    np.testing.assert_allclose(run(session, pixels)["score"], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("shape", [(1, SIZE, SIZE, 4), (SIZE, SIZE, 3)])
def test_what_is_no_image_is_refused(session: onnxruntime.InferenceSession, shape: tuple[int, ...]) -> None:
    with pytest.raises(Exception, match="pixels"):
        run(session, np.zeros(shape, np.uint8))


def test_the_files_hold_nothing_of_the_machine_that_wrote_them(onnx_folder: Path) -> None:
    for path in onnx_folder.iterdir():
        content = path.read_bytes()
        for text in (Path.cwd(), Path.home(), Path(onnx.__file__).parent.parent, "site-packages", "export/graph.py"):
            assert str(text).encode() not in content
