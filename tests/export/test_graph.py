"""The graphs give what the detector gives, and contain nothing of the machine that wrote them."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from discopatch.encoders import DiscriminatorEncoder, Features
from discopatch.explain.anomaly_map import enlarge
from discopatch.export.graph import DetectorGraph, graph_module
from discopatch.heads import ComponentsHead
from discopatch.heads.gaussian import ShrunkGaussian
from discopatch.heads.parts import COMPONENTS, log_weights
from discopatch.heads.places import PlaceModel
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


def test_a_head_keeps_its_digits_in_float32_as_in_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    head, features = tiny_detector().head_, tiny_detector().extract_features(list(camera_pixels(4)), workers=1)
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


def place_z_scores(model: PlaceModel, pixels: Pixels) -> NDArray[np.float64]:
    """(images, rows, columns): distances from the nearest stored place and from the plane of the axes, joined."""
    kept = {name: value.double().numpy() for name, value in model.to_tensors().items()}
    encoder = DiscriminatorEncoder(tiny_weights(), transform=tiny_detector().transform_, kinds=("places",))
    places = encoder.extract_pixels(pixels).places.astype(np.float64)
    standard = ((places - kept["mean"]) / kept["scale"]).reshape(-1, len(kept["mean"]))
    along = standard @ kept["axes"]
    beside = np.linalg.norm(standard - along @ kept["axes"].T, axis=1)
    distances = np.hypot(cdist(along, kept["vectors"]).min(1), beside).reshape(places.shape[:3])
    found: NDArray[np.float64] = (distances - kept["centres"]) / kept["spreads"]
    return found


def rare(values: NDArray[np.float64], tail: NDArray[np.float64]) -> NDArray[np.float64]:
    """Linear below the upper quantile, and above it a generalised Pareto tail."""
    median, upper, below, between, scale, shape = tail
    linear = np.log(2) + np.where(values < median, below, between) * (np.minimum(values, upper) - median)
    found: NDArray[np.float64] = linear + np.log(1 + shape * np.maximum(values - upper, 0) / scale) / shape
    return found


def part_values(
    head: ComponentsHead, features: Features, z: NDArray[np.float64], kept: dict[str, NDArray[np.float64]]
) -> dict[str, NDArray[np.float64]]:
    """Each part by its definition, from the stored tensors."""
    early = len(head.early.mean)
    units = features.pooled / np.linalg.norm(features.pooled.astype(np.float64), axis=1, keepdims=True)
    gaps = np.linalg.norm(units[:, None] - kept["neighbours.bank"], axis=2)
    responses = (features.statistics - kept["mean"]) @ kept["filters"].T
    averages = [[uniform_filter(each, size, mode="constant").max() for each in z] for size in (3, 7, 13)]
    windows = [rare(np.array(each), tail) for each, tail in zip(averages, kept["window_tails"], strict=True)]
    return {
        "logit": -features.logits.astype(np.float64).mean(1),
        "early": log_distance(head.early, features.statistics[:, :early]),
        "probes": ((responses - kept["probe_centres"]) / kept["probe_spreads"]).max(1),
        "deep": log_distance(head.deep, features.statistics[:, early:]),
        "neighbours": np.sort(gaps, axis=1)[:, 4],
        "places": np.sum(windows, axis=0),
    }


def test_scores_components_and_places_are_those_of_plain_numpy(session: onnxruntime.InferenceSession) -> None:
    head, pixels = tiny_detector().head_, flat_and_new()
    assert isinstance(head, ComponentsHead)
    features = tiny_detector().extract_features(list(pixels), workers=1)
    kept = {name: value.double().numpy() for name, value in head.to_tensors().items()}
    z = place_z_scores(tiny_detector().places_, pixels)
    values = part_values(head, features, z, kept)
    joined = {part: rare(values[part], kept["tails"][number]) for number, part in enumerate(values)}
    used = [[joined[part] for part in parts if part in head.parts] for parts in COMPONENTS.values()]
    centres, spreads = (
        [each for each, own in zip(kept[f"component_{name}"], used, strict=True) if own]
        for name in ("centres", "spreads")
    )
    components = np.stack([logsumexp(own, axis=0) for own in used if own], 1)
    weights = np.exp(log_weights(np.isin(head.parts, ["places"])))
    found = run(session, pixels)
    score = np.log(sum(weight * np.exp(joined[part]) for weight, part in zip(weights, head.parts, strict=True)))
    np.testing.assert_allclose(found["score"], score, rtol=0, atol=1e-3)
    np.testing.assert_allclose(found["components"], (components - centres) / spreads, rtol=0, atol=1e-3)
    np.testing.assert_allclose(found["place_map"], z, rtol=0, atol=1e-3)
