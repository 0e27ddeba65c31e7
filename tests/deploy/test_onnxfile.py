"""The ONNX file: its inputs and outputs, the heatmap on request, nothing of this machine."""

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from discopatch.deploy.sidecar import WITH_HEAT
from tests.deploy.samples import SIZE, pixels_of, tiny_detector


@pytest.fixture(scope="module")
def session(onnx_folder: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(onnx_folder / "detector.onnx", options)


def test_pixels_go_in_and_score_count_and_heat_come_out(session: onnxruntime.InferenceSession) -> None:
    (pixels,) = session.get_inputs()
    assert (pixels.name, pixels.type, pixels.shape) == ("pixels", "tensor(uint8)", ["images", SIZE, SIZE, 3])
    assert [(each.name, each.type, each.shape) for each in session.get_outputs()] == [
        ("score", "tensor(double)", ["images"]),
        ("at_least", "tensor(int64)", ["images"]),
        ("heat", "tensor(float)", ["images", 64, 64]),
    ]


@pytest.mark.parametrize("images", [1, 2, 5])
def test_any_number_of_pictures_says_what_the_detector_says(session: onnxruntime.InferenceSession, images: int) -> None:
    pixels, detector = pixels_of(images), tiny_detector()
    score, at_least, heat = session.run(None, {"pixels": pixels})
    np.testing.assert_allclose(score, detector.score(list(pixels), workers=1), rtol=0, atol=1e-4)
    assert at_least.tolist() == [(detector.fitted.calibration >= each).sum() for each in score]
    np.testing.assert_allclose(heat[0], detector.explain(pixels[0]).heat, rtol=0, atol=1e-3)


def test_a_score_depends_on_its_own_picture_alone(session: onnxruntime.InferenceSession) -> None:
    pixels = pixels_of(5)
    pixels[2] = 255
    score, at_least, heat = session.run(None, {"pixels": pixels})
    for place in range(len(pixels)):
        alone = session.run(None, {"pixels": pixels[place : place + 1]})
        np.testing.assert_allclose(alone[0][0], score[place], rtol=1e-9)
        assert alone[1][0] == at_least[place]
        np.testing.assert_allclose(alone[2][0], heat[place], rtol=0, atol=1e-5)


def test_without_heat_the_rest_is_the_same_to_the_bit(session: onnxruntime.InferenceSession) -> None:
    pixels = pixels_of(3)
    score, at_least, heat = session.run(None, {"pixels": pixels})
    cold = session.run(None, {"pixels": pixels, WITH_HEAT: np.array(False)})
    assert np.array_equal(cold[0], score)
    assert np.array_equal(cold[1], at_least)
    assert cold[2].shape == heat.shape
    assert not cold[2].any()
    assert heat.any()


def test_all_work_for_the_heatmap_is_in_the_branch_that_is_left_out(onnx_folder: Path) -> None:
    graph = onnx.load(onnx_folder / "detector.onnx").graph
    (choice,) = (node for node in graph.node if node.op_type == "If")
    branches = {each.name: [node.op_type for node in each.g.node] for each in choice.attribute}
    layers = len(tiny_detector().loaded_weights.discriminator.blocks)
    assert sum(node.op_type == "Conv" for node in graph.node) == layers + 1, "the network once, and its head"
    assert branches["then_branch"].count("Conv") == layers
    assert "Conv" not in branches["else_branch"]


@pytest.mark.parametrize(
    "shape", [(1, SIZE, SIZE + 1, 3), (1, 2 * SIZE, 2 * SIZE, 3), (1, SIZE, SIZE, 4), (SIZE, SIZE, 3)]
)
def test_pictures_of_another_size_are_refused(session: onnxruntime.InferenceSession, shape: tuple[int, ...]) -> None:
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument, match=re.compile("pixels", re.I)):
        session.run(None, {"pixels": np.zeros(shape, np.uint8)})


def test_pictures_in_float_are_refused(session: onnxruntime.InferenceSession) -> None:
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument, match="data type"):
        session.run(None, {"pixels": np.zeros((1, SIZE, SIZE, 3), np.float32)})


def test_the_file_says_nothing_of_the_machine_that_wrote_it(onnx_folder: Path) -> None:
    content = (onnx_folder / "detector.onnx").read_bytes()
    for folder in (Path.cwd(), Path.home(), Path(onnx.__file__).parent.parent):
        assert str(folder).encode() not in content
    assert b"site-packages" not in content
    assert b"deploy/graph.py" not in content
