"""The graph gives what the detector gives, before any other runtime has it."""

import numpy as np
import pytest
import torch

from discopatch.calibration import p_values
from discopatch.export.graph import DetectorGraph, graph_head
from discopatch.images import Pixels
from tests.export.samples import SIZE, camera_pixels, tiny_detector
from tests.samples import tiny_weights


def flat_and_new() -> Pixels:
    """New images, and one of a covered camera."""
    return np.concatenate([camera_pixels(5), np.full((1, SIZE, SIZE, 3), 200, np.uint8)])


def test_scores_p_values_and_anomaly_maps_are_those_of_the_detector() -> None:
    detector, pixels = tiny_detector(), flat_and_new()
    score, at_least, anomaly_map = DetectorGraph(detector)(torch.from_numpy(pixels)).values()
    np.testing.assert_allclose(score.numpy(), detector.score(list(pixels), workers=1), rtol=0, atol=1e-4)
    calibration = detector.calibration_scores_
    counted = (1 + at_least.numpy()) / (1 + len(calibration))
    assert counted.tolist() == p_values(score.numpy(), calibration).tolist()
    assert counted.tolist() == [each.p_value for each in detector.predict(list(pixels), workers=1)]
    assert (score.dtype, at_least.dtype, anomaly_map.dtype) == (torch.float64, torch.int64, torch.float32)
    for found, image in zip(anomaly_map.numpy(), pixels, strict=True):
        np.testing.assert_allclose(found, detector.explain(image).anomaly_map, rtol=0, atol=1e-3)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 3e-5)])
def test_a_head_keeps_its_digits_in_runtimes_without_float64(
    dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As OpenVINO computes."""
    head = tiny_detector().head_
    features = tiny_detector().extract_features(list(camera_pixels(8)), workers=1)
    expected, copy = head.score(features), graph_head(head).to(dtype)
    monkeypatch.setattr(torch.Tensor, "double", lambda tensor: tensor.to(dtype))
    score = copy(torch.from_numpy(features.logits), torch.from_numpy(features.statistics))
    assert score.dtype == dtype
    np.testing.assert_allclose(score.numpy(), expected, rtol=0, atol=tolerance)


def test_a_score_depends_on_its_own_image_alone() -> None:
    graph, pixels = DetectorGraph(tiny_detector()), torch.from_numpy(flat_and_new())
    together = graph(pixels)
    for index in range(len(pixels)):
        for name, alone in graph(pixels[index : index + 1]).items():
            torch.testing.assert_close(alone[0], together[name][index], rtol=0, atol=1e-4)


def test_a_graph_shares_no_memory_with_its_detector() -> None:
    detector, images = tiny_detector(), list(camera_pixels(2))
    digest, before = detector.weights_.digest, detector.score(images, workers=1)
    graph = DetectorGraph(detector)
    with torch.no_grad():
        for constant in (*graph.parameters(), *graph.buffers()):
            constant.zero_()
    assert detector.weights_.digest == digest == tiny_weights().digest
    assert np.array_equal(detector.score(images, workers=1), before)
    assert detector.explain(images[0]).anomaly_map.any()
