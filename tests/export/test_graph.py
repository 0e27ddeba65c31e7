"""The graphs give what the detector gives, and contain nothing of the machine that wrote them."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from discopatch.encoders import Features
from discopatch.export.graph import DetectorGraph, graph_head
from discopatch.heads import ComponentsHead
from discopatch.heads.gaussian import ShrunkGaussian
from discopatch.heads.parts import COMPONENTS
from discopatch.images import Pixels
from tests.export.samples import SIZE, camera_pixels, tiny_detector
from tests.samples import tiny_weights

HALVES = 0.02  # z-scores: places are float16, and one that is rounded the other way moves by 5e-4 of its size


def flat_and_new() -> Pixels:
    """New images, and a flat image."""
    return np.concatenate([camera_pixels(4), np.full((1, SIZE, SIZE, 3), 200, np.uint8)])


@pytest.fixture(scope="module")
def sessions(onnx_folder: Path) -> list[onnxruntime.InferenceSession]:
    return [onnxruntime.InferenceSession(onnx_folder / name) for name in ("detector.onnx", "maps.onnx")]


def run(sessions: list[onnxruntime.InferenceSession], pixels: Pixels) -> dict[str, NDArray[np.floating]]:
    found: dict[str, NDArray[np.floating]] = {}
    for session in sessions:
        names = [each.name for each in session.get_outputs()]
        found |= dict(zip(names, session.run(names, {"pixels": pixels}), strict=True))
    return found


def test_the_graph_gives_what_the_detector_gives() -> None:
    detector, pixels = tiny_detector(), flat_and_new()
    found = DetectorGraph(detector)(torch.from_numpy(pixels))
    np.testing.assert_allclose(found["score"].numpy(), detector.score(list(pixels), workers=1), rtol=0, atol=1e-4)
    for anomaly_map, image in zip(found["anomaly_map"].numpy(), pixels, strict=True):
        np.testing.assert_allclose(anomaly_map, detector.explain(image).anomaly_map, rtol=0, atol=1e-3)


def test_changes_of_the_graph_leave_the_detector_as_it_is() -> None:
    detector, images = tiny_detector(), list(camera_pixels(2))
    before, graph = detector.score(images, workers=1), DetectorGraph(detector)
    with torch.no_grad():
        for constant in (*graph.parameters(), *graph.buffers()):
            constant.zero_()
    assert detector.weights_.digest == tiny_weights().digest
    assert np.array_equal(detector.score(images, workers=1), before)
    assert detector.explain(images[0]).anomaly_map.any()


def test_a_head_keeps_its_digits_in_float32_as_in_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    head = tiny_detector().regions_
    features = tiny_detector().encoder_.extract_regions(camera_pixels(1)[0], 49)
    expected, copy = head.score(features), graph_head(head).to(torch.float32)
    monkeypatch.setattr(torch.Tensor, "double", lambda tensor: tensor.to(torch.float32))
    score = copy(torch.from_numpy(features.logits), torch.from_numpy(features.statistics))
    assert score.dtype == torch.float32
    np.testing.assert_allclose(score.numpy(), expected, rtol=1e-5, atol=3e-5)


# The files


def test_inputs_and_outputs_of_the_files(sessions: list[onnxruntime.InferenceSession]) -> None:
    for session in sessions:
        (pixels,) = session.get_inputs()
        assert (pixels.name, pixels.type, pixels.shape) == ("pixels", "tensor(uint8)", ["images", SIZE, SIZE, 3])
    outputs = [{each.name: (each.type, each.shape) for each in session.get_outputs()} for session in sessions]
    assert outputs[0] == {"score": ("tensor(double)", ["images"]), "components": ("tensor(double)", ["images", 3])}
    assert outputs[1]["anomaly_map"] == ("tensor(float)", ["images", 64, 64])
    assert outputs[1].keys() == {"anomaly_map", "place_map"}


def test_the_graph_of_scores_passes_the_network_once(onnx_folder: Path) -> None:
    kinds = [node.op_type for node in onnx.load(onnx_folder / "detector.onnx").graph.node]
    layers = len(tiny_detector().weights_.discriminator.blocks)
    assert kinds.count("Conv") == layers + 1, "and the head of the discriminator"
    assert "If" not in kinds


def test_any_number_of_images_passes_and_each_depends_on_itself_alone(
    sessions: list[onnxruntime.InferenceSession],
) -> None:
    pixels = flat_and_new()
    together = run(sessions, pixels)
    for index in range(len(pixels)):
        for name, alone in run(sessions, pixels[index : index + 1]).items():
            np.testing.assert_allclose(alone[0], together[name][index], rtol=0, atol=1e-5)


@pytest.mark.parametrize("level", [3, 201, 255])
def test_flat_images_keep_their_digits(sessions: list[onnxruntime.InferenceSession], level: int) -> None:
    """Thousands of equal numbers, added one by one in float32, would lose them."""
    pixels, detector = np.full((1, SIZE, SIZE, 3), level, np.uint8), tiny_detector()
    tolerance = 1e-4 * detector.calibration_scores_.std()
    expected = detector.score(list(pixels), workers=1)
    np.testing.assert_allclose(run(sessions[:1], pixels)["score"], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("shape", [(1, SIZE, SIZE + 1, 3), (1, SIZE, SIZE, 4), (SIZE, SIZE, 3)])
def test_images_of_another_size_are_refused(
    sessions: list[onnxruntime.InferenceSession], shape: tuple[int, ...]
) -> None:
    with pytest.raises(Exception, match="pixels"):
        run(sessions[:1], np.zeros(shape, np.uint8))


def test_the_files_hold_nothing_of_the_machine_that_wrote_them(onnx_folder: Path) -> None:
    for path in onnx_folder.iterdir():
        content = path.read_bytes()
        for text in (Path.cwd(), Path.home(), Path(onnx.__file__).parent.parent, "site-packages", "export/graph.py"):
            assert str(text).encode() not in content


# The graph against plain numpy


def log_distance(gaussian: ShrunkGaussian, statistics: NDArray[np.float32]) -> NDArray[np.float64]:
    """Logarithm of the mean squared Mahalanobis distance, with one variance for all directions beside the axes."""
    parts = {name: value.numpy() for name, value in gaussian.named_buffers()}
    standard = (statistics - parts["mean"]) / parts["scale"]
    along = standard @ parts["axes"].T
    between = np.square(standard).sum(1) - np.square(along).sum(1)
    squared = np.square(along) @ (1 / parts["variances"]) + between / parts["rest"]
    found: NDArray[np.float64] = np.log(np.maximum(squared / statistics.shape[1], 1e-9))
    return found


def place_distances(places: NDArray[np.floating], kept: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """(images, positions): from the nearest stored place, root mean square over the dimensions."""
    standard = (places.astype(np.float64) - kept["memory.mean"]) / kept["memory.scale"]
    nearest = [cdist(image, kept["memory.vectors"]).min(1) for image in standard]
    found: NDArray[np.float64] = np.stack(nearest) / standard.shape[2] ** 0.5
    return found


def part_values(
    head: ComponentsHead, features: Features, kept: dict[str, NDArray[np.float64]]
) -> dict[str, NDArray[np.float64]]:
    """Each part by its definition, from the stored tensors."""
    early = len(head.early.mean)
    units = features.pooled / np.linalg.norm(features.pooled.astype(np.float64), axis=1, keepdims=True)
    gaps = np.linalg.norm(units[:, None] - kept["neighbours.bank"], axis=2)
    responses = (features.statistics - kept["mean"]) @ kept["filters"].T
    return {
        "logit": -features.logits.astype(np.float64).mean(1),
        "early": log_distance(head.early, features.statistics[:, :early]),
        "probes": ((responses - kept["probe_centres"]) / kept["probe_spreads"]).max(1),
        "deep": log_distance(head.deep, features.statistics[:, early:]),
        "neighbours": np.sort(gaps, axis=1)[:, 4],
        "places": np.sort(place_distances(features.places, kept), axis=1)[:, -8:].mean(1),
    }


def test_scores_components_and_places_are_those_of_plain_numpy(sessions: list[onnxruntime.InferenceSession]) -> None:
    head, pixels = tiny_detector().head_, flat_and_new()
    assert isinstance(head, ComponentsHead)
    features = tiny_detector().extract_features(list(pixels), workers=1)
    kept = {name: value.double().numpy() for name, value in head.to_tensors().items()}
    values = part_values(head, features, kept)
    columns = {part: number for number, part in enumerate(values)}
    z = {part: (values[part] - kept["centres"][columns[part]]) / kept["spreads"][columns[part]] for part in head.parts}
    used = [[part for part in parts if part in z] for parts in COMPONENTS.values()]
    joined = np.stack([logsumexp([z[part] for part in parts], axis=0) for parts in used if parts], 1)
    found = run(sessions, pixels)
    np.testing.assert_allclose(found["score"], logsumexp(list(z.values()), axis=0), rtol=0, atol=1e-3)
    expected = (joined - kept["component_centres"]) / kept["component_spreads"]
    np.testing.assert_allclose(found["components"], expected, rtol=0, atol=HALVES)
    far = (place_distances(features.places, kept) - kept["place_centres"]) / kept["place_spreads"] - kept["place_level"]
    np.testing.assert_allclose(found["place_map"].reshape(far.shape), far, rtol=0, atol=HALVES)
