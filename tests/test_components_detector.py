"""A detector of components: fitted on images, with bounded memory, and stored."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discopatch import Detector, normal_images
from discopatch.errors import WeightsError
from discopatch.heads import ComponentsHead
from discopatch.heads.parts import PART_NAMES
from discopatch.results import position_of
from tests.samples import new_detector, one_camera, with_tensors


def fit(count: int = 60, *, places: bool | None = None, seed: int = 0, **options: Any) -> Detector:
    """A detector whose places count, do not, or as the trials decide."""
    with pytest.MonkeyPatch.context() as patch:
        if places is not None:
            patch.setattr("discopatch.heads.trials.EARNING", -100.0 if places else 1e9)
            patch.setattr("discopatch.heads.trials.PLAIN_LOSS", 1.0)
        images = one_camera(count, seed=seed)
        return new_detector(head="components", false_alarm_rate=0.1, reason_images=1, **options).fit(images, workers=1)


@pytest.fixture(scope="module")
def found() -> Detector:
    return fit(places=True)


def head_of(found: Detector) -> ComponentsHead:
    assert isinstance(found.head_, ComponentsHead)
    return found.head_


def test_it_scores_and_explains_each_image_alone(found: Detector) -> None:
    new = one_camera(6, seed=1)
    assert head_of(found).parts == tuple(part for part in PART_NAMES if part != "embedding")
    assert found.encoder_.kinds == {"logits", "statistics", "pooled", "places", "tones"}
    usual = found.score(new)
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    assert found.score([noise])[0] > np.median(usual)  # one of six normal images may be unusual
    assert np.array_equal(usual, [found.score([image])[0] for image in new])
    assert found.explain(new[0]).prediction.score == usual[0]


def test_predictions_and_explanations_name_significant_components(
    found: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The level is one that two of the three components of so small a network exceed."""
    monkeypatch.setattr(head_of(found), "significance_level", -0.3)
    assert found.component_names == ("acquisition", "content", "place")
    changed = one_camera(1, seed=1)[0].pixels.copy()
    before = found.explain(changed).anomaly_map
    changed[44:, 44:] = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    (prediction,) = found.predict([changed])
    _, z = head_of(found).outputs(found.encoder_.extract_pixels(changed[None]))
    assert [each.z for each in prediction.components] == z[0].tolist()
    assert [each.significant for each in prediction.components] == (z[0] > -0.3).tolist()
    explanation = found.explain(changed)
    assert explanation.prediction.components == prediction.components
    assert [(each.name, each.z) for each in explanation.components] == [each[:2] for each in prediction.significant]
    texts = {each.name: each.text for each in explanation.components}
    assert texts["place"].endswith(position_of(explanation.anomaly_map))
    assert explanation.anomaly_map[44:, 44:].mean() > 3 * before[44:, 44:].mean()


@pytest.mark.parametrize("options", [{"places": False}, {"patches": 4}])
def test_without_places_the_encoder_does_not_give_them(options: dict[str, bool]) -> None:
    found = fit(40, **options)
    assert "places" not in head_of(found).parts
    assert "neighbours" in head_of(found).parts
    assert "places" not in head_of(found).needs
    assert np.isfinite(found.score(one_camera(3, seed=1))).all()


@pytest.mark.slow
@pytest.mark.parametrize("kept", [50, 12])
def test_places_are_kept_of_some_images_and_count_if_these_can_calibrate(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(normal_images, "N_KEPT", kept)
    found = fit(150, places=True)
    assert ("places" in head_of(found).parts) == (kept == 50)
    assert found.guarantee_.n_fit == 101
    assert 9 <= len(found.calibration_scores_) <= 49
    assert (len(found.calibration_scores_) < 49) == (kept == 50)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("calibration/scores", lambda values: values.flip(0).contiguous()),
        ("calibration/scores", lambda values: torch.full_like(values, torch.nan)),
        ("weights/head.weight", lambda values: values[:, :-1].contiguous()),
        ("extra", lambda values: torch.zeros(3)),
        ("head/counts", torch.zeros_like),
        ("head/counts", lambda values: values[:-1].clone()),
        ("head/component_spreads", torch.zeros_like),
        ("head/component_spreads", lambda values: values.half()),
        ("head/significance", lambda values: values * torch.nan),
        ("head/tails", lambda values: values[:-1].clone()),
        ("head/window_tails", lambda values: -values),
        ("places/level", lambda values: values[None].clone()),
        ("places/centres", lambda values: values[:-1].clone()),
        ("head/filters", lambda values: values[:, :-1].contiguous()),
        ("head/early.mean", lambda values: torch.cat([values, values])),
        ("head/deep.axes", lambda values: values[:, :-1].contiguous()),
        ("head/neighbours.bank", lambda values: values[:0].clone()),
        ("head/neighbours.bank", lambda values: values[:, :-1].contiguous()),
        ("places/vectors", lambda values: values[:0].clone()),
        ("places/vectors", lambda values: values[:, :-1].contiguous()),
    ],
)
def test_a_stored_tensor_of_another_shape_or_range_is_refused(
    found: Detector, tmp_path: Path, name: str, change: Callable[[Any], torch.Tensor]
) -> None:
    path = tmp_path / "camera.safetensors"
    found.save(path)
    with_tensors(path, lambda tensors: tensors.update({name: change(tensors.get(name))}))
    with pytest.raises(WeightsError, match="camera"):
        Detector.load(path)
