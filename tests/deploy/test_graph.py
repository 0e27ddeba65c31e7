"""The graph says what the detector says, before any other runtime sees it."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from discopatch import Detector, Weights
from discopatch.decision import p_values
from discopatch.deploy.graph import DetectorGraph, interpolation, look_at_image
from discopatch.images import Pixels, Transform
from discopatch.model import Discriminator, Normalisation
from discopatch.patches import Sampling
from discopatch.scoring import Scorer
from discopatch.scoring.regions import CELLS, OVERLAPPING, over_the_image
from tests.deploy.samples import SIZE, pixels_of, tiny_detector
from tests.scoring.samples import TINY, tiny_weights


def graph_of(detector: Detector) -> DetectorGraph:
    return DetectorGraph(detector, deepcopy(detector.loaded_weights.discriminator), detector.fitted.calibration)


def weights_with(normalisation: Normalisation) -> Weights:
    torch.manual_seed(0)
    network = Discriminator(replace(TINY, normalisation=normalisation))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return Weights(network.eval(), Transform(size=SIZE))


@pytest.mark.parametrize("normalisation", ["patch", "batch", "group", "instance"])
@pytest.mark.parametrize(("sampling", "patches"), [("dense", 1), ("random", 5), ("grid", 7), ("grid", 1)])
def test_it_sees_what_the_scorer_sees(sampling: Sampling, patches: int, normalisation: Normalisation) -> None:
    weights, pixels = weights_with(normalisation), pixels_of(3)
    expected = Scorer(weights, sampling=sampling, patches=patches, seed=4).inspect_pixels(pixels)
    detector = Detector(weights, sampling=sampling, patches=patches, seed=4)
    with torch.no_grad():
        logits, statistics = look_at_image(detector, weights.discriminator)(torch.from_numpy(pixels))
    np.testing.assert_allclose(logits.numpy(), expected.logits, rtol=0, atol=1e-4)
    np.testing.assert_allclose(statistics.numpy(), expected.statistics, rtol=0, atol=1e-4)


def flat_and_new() -> Pixels:
    """New pictures, and a camera that sees nothing."""
    return np.concatenate([pixels_of(5), np.full((1, SIZE, SIZE, 3), 200, np.uint8)])


def test_scores_p_values_and_heat_are_those_of_the_detector() -> None:
    detector, pixels = tiny_detector(), flat_and_new()
    score, at_least, heat = graph_of(detector)(torch.from_numpy(pixels))
    predictions = detector.predict(list(pixels), workers=1)
    np.testing.assert_allclose(score.numpy(), detector.score(list(pixels), workers=1), rtol=0, atol=1e-4)
    calibration = detector.fitted.calibration
    counted = (1 + at_least.numpy()) / (1 + len(calibration))
    assert counted.tolist() == p_values(score.numpy(), calibration).tolist()
    assert counted.tolist() == [each.p_value for each in predictions]
    assert at_least.dtype == torch.int64
    for found, picture in zip(heat.numpy(), pixels, strict=True):
        np.testing.assert_allclose(found, detector.explain(picture).heat, rtol=0, atol=1e-3)


def test_a_score_depends_on_its_own_image_alone() -> None:
    graph, pixels = graph_of(tiny_detector()), torch.from_numpy(flat_and_new())
    together = graph(pixels)
    for place in range(len(pixels)):
        for alone, among_others in zip(graph(pixels[place : place + 1]), together, strict=True):
            torch.testing.assert_close(alone[0], among_others[place], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("size", "patch_size"), [(256, 64), (64, 32), (100, 16)])
def test_heat_between_the_regions_is_that_of_the_heatmap(size: int, patch_size: int) -> None:
    heat, rows = np.random.default_rng(0).random((OVERLAPPING, OVERLAPPING)), interpolation(size, patch_size)
    assert rows.shape == (CELLS, OVERLAPPING)
    expected = over_the_image(heat.ravel(), size=size, patch_size=patch_size)
    np.testing.assert_allclose(rows @ heat @ rows.T, expected, rtol=1e-6)


def test_a_graph_shares_no_memory_with_its_detector() -> None:
    detector, pixels = tiny_detector(), list(pixels_of(2))
    digest, before = detector.loaded_weights.digest, detector.score(pixels, workers=1)
    graph = graph_of(detector)
    with torch.no_grad():
        for constant in (*graph.parameters(), *graph.buffers()):
            constant.zero_()
    assert detector.loaded_weights.digest == digest == tiny_weights().digest
    assert np.array_equal(detector.score(pixels, workers=1), before)
