"""The ONNX file: its inputs and outputs, the anomaly map on request, nothing of the machine that wrote it."""

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from discopatch.export import Exported
from tests.export.samples import SIZE, camera_pixels, tiny_detector


@pytest.fixture(scope="module")
def session(onnx_folder: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(onnx_folder / "detector.onnx", options)


def test_inputs_and_outputs(session: onnxruntime.InferenceSession) -> None:
    (pixels,) = session.get_inputs()
    assert (pixels.name, pixels.type, pixels.shape) == ("pixels", "tensor(uint8)", ["images", SIZE, SIZE, 3])
    assert [(each.name, each.type, each.shape) for each in session.get_outputs()] == [
        ("score", "tensor(double)", ["images"]),
        ("at_least", "tensor(int64)", ["images"]),
        ("anomaly_map", "tensor(float)", ["images", 64, 64]),
    ]


@pytest.mark.parametrize("images", [1, 2, 5])
def test_any_number_of_images_gives_what_the_detector_gives(session: onnxruntime.InferenceSession, images: int) -> None:
    pixels, detector = camera_pixels(images), tiny_detector()
    score, at_least, anomaly_map = session.run(None, {"pixels": pixels})
    np.testing.assert_allclose(score, detector.score(list(pixels), workers=1), rtol=0, atol=1e-4)
    assert at_least.tolist() == [(detector.calibration_scores_ >= each).sum() for each in score]
    np.testing.assert_allclose(anomaly_map[0], detector.explain(pixels[0]).anomaly_map, rtol=0, atol=1e-3)


@pytest.mark.parametrize("level", [3, 201, 255])
def test_flat_images_keep_their_digits(session: onnxruntime.InferenceSession, level: int) -> None:
    """Thousands of equal numbers, added up one after the other in float32, would lose them."""
    pixels, detector = np.full((1, SIZE, SIZE, 3), level, np.uint8), tiny_detector()
    (score,) = session.run(["score"], {"pixels": pixels})
    tolerance = 1e-4 * detector.calibration_scores_.std()
    np.testing.assert_allclose(score, detector.score(list(pixels), workers=1), rtol=0, atol=tolerance)


def test_a_score_depends_on_its_own_image_alone(session: onnxruntime.InferenceSession) -> None:
    pixels = camera_pixels(5)
    pixels[2] = 255
    score, at_least, anomaly_map = session.run(None, {"pixels": pixels})
    for index in range(len(pixels)):
        alone = session.run(None, {"pixels": pixels[index : index + 1]})
        np.testing.assert_allclose(alone[0][0], score[index], rtol=1e-9)
        assert alone[1][0] == at_least[index]
        np.testing.assert_allclose(alone[2][0], anomaly_map[index], rtol=0, atol=1e-5)


def test_without_the_anomaly_map_the_rest_is_the_same_to_the_bit(session: onnxruntime.InferenceSession) -> None:
    pixels = camera_pixels(3)
    score, at_least, anomaly_map = session.run(None, {"pixels": pixels})
    without = session.run(None, {"pixels": pixels, "with_anomaly_map": np.array(False)})
    assert np.array_equal(without[0], score)
    assert np.array_equal(without[1], at_least)
    assert without[2].shape == anomaly_map.shape
    assert not without[2].any()
    assert anomaly_map.any()


def test_all_work_for_the_anomaly_map_is_in_the_branch_that_can_be_left_out(onnx_folder: Path) -> None:
    graph = onnx.load(onnx_folder / "detector.onnx").graph
    (choice,) = (node for node in graph.node if node.op_type == "If")
    branches = {each.name: [node.op_type for node in each.g.node] for each in choice.attribute}
    layers = len(tiny_detector().weights_.discriminator.blocks)
    assert sum(node.op_type == "Conv" for node in graph.node) == layers + 1, "the network once, and its head"
    assert branches["then_branch"].count("Conv") == layers
    assert "Conv" not in branches["else_branch"]


@pytest.mark.slow
def test_the_graph_in_8_bits_has_no_large_float_convolution(int8_export: tuple[Path, Exported]) -> None:
    kinds = [node.op_type for node in onnx.load(int8_export[0] / "detector.onnx").graph.node]
    assert kinds.count("ConvInteger") == 1
    assert kinds.count("Conv") == 2, "that of the pixels, and the head"


@pytest.mark.parametrize(
    "shape", [(1, SIZE, SIZE + 1, 3), (1, 2 * SIZE, 2 * SIZE, 3), (1, SIZE, SIZE, 4), (SIZE, SIZE, 3)]
)
def test_images_of_another_size_are_refused(session: onnxruntime.InferenceSession, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match=re.compile("pixels", re.I)):
        session.run(None, {"pixels": np.zeros(shape, np.uint8)})


def test_images_in_float_are_refused(session: onnxruntime.InferenceSession) -> None:
    with pytest.raises(InvalidArgument, match="data type"):
        session.run(None, {"pixels": np.zeros((1, SIZE, SIZE, 3), np.float32)})


def test_the_file_holds_nothing_of_the_machine_that_wrote_it(onnx_folder: Path, torch_folder: Path) -> None:
    for content in ((onnx_folder / "detector.onnx").read_bytes(), (torch_folder / "detector.pt2").read_bytes()):
        for text in (Path.cwd(), Path.home(), Path(onnx.__file__).parent.parent, "site-packages", "export/graph.py"):
            assert str(text).encode() not in content
