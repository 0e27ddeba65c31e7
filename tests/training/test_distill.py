"""A student learns to reproduce its teacher, which never changes and leaves nothing in the student's file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rich.console import Console

from discopatch.errors import ParameterError
from discopatch.images import Transform
from discopatch.images.samples import crops, sample_photos
from discopatch.model import Discriminator, Networks, Weights, parameters_digest
from discopatch.model.discriminator import SMALLEST_VARIANCE
from discopatch.model.layers import Block
from discopatch.training import RunOptions, TrainingConfig, TrainingResult, train
from discopatch.training.augment import DegradedBatch
from discopatch.training.auxiliary import AuxiliaryDiscriminator
from discopatch.training.batches import whole_images
from discopatch.training.distill import Teachers, load_teachers
from discopatch.training.losses import degraded_losses
from tests.training.tiny import ARCHITECTURE, tiny_config

WIDER = replace(ARCHITECTURE, hidden=(6, 12))
LOGITS, STATISTICS = "discriminator/logits", "discriminator/statistics"
DEGRADED = {"weight_degraded": 1.0, "weight_classified": 0.5, "vae": False}


@pytest.fixture
def weights() -> Weights:
    return Weights(Networks.from_seed(WIDER, seed=8).discriminator, Transform(size=64))


def random_images(seed: int = 1) -> torch.Tensor:
    return torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def distilling(weights: Weights | None, weight: float = 1.0, **changes) -> TrainingConfig:
    """A config that names these weights as its teacher."""
    teachers = {} if weights is None else {"discriminator": weights.digest}
    return tiny_config(**DEGRADED, weight_distilled=weight if teachers else 0.0, teachers=teachers, **changes)


@pytest.fixture
def teachers(weights: Weights) -> Teachers:
    networks = load_teachers(distilling(weights), weights)
    return Teachers.measured(networks, [random_images(seed=2), random_images(seed=3)])


def statistics_by_hand(discriminator: Discriminator, image: torch.Tensor) -> np.ndarray:
    """Means and log-variances before each normalisation of one image, by numpy."""
    found, x = [], image[None]
    for block in discriminator.blocks:
        assert isinstance(block, Block)
        values = block.conv(x).detach().numpy()
        found += [values.mean((0, 2, 3)), np.log(values.var((0, 2, 3)) + SMALLEST_VARIANCE)]
        x = block(x, 1).features
    return np.concatenate(found)


def test_its_output_is_its_logits_and_its_statistics_in_standard_deviations(teachers, weights) -> None:
    first_images = torch.cat([random_images(seed=2), random_images(seed=3)])
    statistics = [statistics_by_hand(weights.discriminator, image) for image in first_images]
    centre, scale = np.mean(statistics, 0), np.std(statistics, 0, ddof=1) + 0.01
    output = teachers(random_images())
    for image, logits, found in zip(random_images(), output[LOGITS], output[STATISTICS], strict=True):
        torch.testing.assert_close(logits, weights.discriminator(image[None], 1).logits[0])
        expected = (statistics_by_hand(weights.discriminator, image) - centre) / scale
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-3, atol=1e-3)


def test_the_loss_is_the_distance_to_the_teacher_for_images_and_degraded_copies(teachers) -> None:
    batch = DegradedBatch.draw(random_images(), torch.Generator().manual_seed(5), step=2, teachers=teachers)
    torch.manual_seed(0)
    discriminator = Networks.from_seed(ARCHITECTURE, seed=1).discriminator
    student = AuxiliaryDiscriminator(discriminator, targets=teachers.channels)
    distance = 0.0
    for images in (batch.images, batch.degraded):
        output, target = student(images, 1, auxiliary=True), teachers(images)
        assert output.logits.shape == target[LOGITS].shape
        distance += F.smooth_l1_loss(output.logits, target[LOGITS]).item()
        distance += F.smooth_l1_loss(output.predictions[STATISTICS], target[STATISTICS]).item()
    config = tiny_config(weight_degraded=1.0, weight_distilled=3.0, teachers={"discriminator": "some"})
    without = degraded_losses(student, batch._replace(targets=None), config)
    losses = degraded_losses(student, batch, config)
    assert losses.total.item() == pytest.approx(without.total.item() + 3.0 * 0.5 * distance, rel=1e-5)
    assert losses.distilled.item() == pytest.approx(3.0 * 0.5 * distance, rel=1e-5)


@pytest.fixture
def go(photos: Path, cache: Path, tmp_path: Path, weights: Weights):
    def run(
        name: str, *, weight: float = 1.0, resume: bool = False, max_minutes: float | None = None, **changes
    ) -> TrainingResult:
        return train(
            str(photos),
            tmp_path / name,
            distilling(weights if weight else None, weight, **changes),
            cache=cache,
            resume=resume,
            options=RunOptions(max_minutes=max_minutes),
            console=Console(quiet=True),
            teacher=weights if weight else None,
        )

    return run


def test_a_student_ends_nearer_to_its_teacher_than_one_that_had_none(go, teachers) -> None:
    found = crops(sample_photos(("coffee", "cat")), 8, size=64, seed=3)
    images = whole_images(torch.from_numpy(np.stack([each.pixels for each in found])))

    def distance(weight: float) -> float:
        student = Weights.load(go(f"weight-{weight}", weight=weight, steps=60).weights).discriminator
        return F.smooth_l1_loss(student(images, 1).logits, teachers(images)[LOGITS]).item()

    assert distance(10.0) < 0.8 * distance(0.0)


def test_distillation_changes_no_teacher_and_leaves_nothing_of_it_in_the_file(go, weights) -> None:
    before = weights.digest
    student = Weights.load(go("run", steps=2).weights)
    assert parameters_digest(weights.discriminator) == before
    assert student.discriminator.state_dict().keys() == Discriminator(ARCHITECTURE).state_dict().keys()
    assert student.origin["config"]["teachers"] == {"discriminator": before}


def test_a_distillation_that_was_stopped_again_and_again_equals_one_in_one_go(go) -> None:
    whole = go("whole", steps=4)
    for attempt in range(4):
        parts = go("parts", steps=4, resume=attempt > 0, max_minutes=1e-9)
    assert whole.weights.with_name("losses.csv").read_text() == parts.weights.with_name("losses.csv").read_text()
    assert Weights.load(whole.weights).digest == Weights.load(parts.weights).digest


def test_another_teacher_than_the_configs_is_refused(photos: Path, tmp_path: Path, weights: Weights) -> None:
    for given, digest in ((weights, "0123456789abcdef"), (None, weights.digest), (weights, None)):
        named = {"discriminator": digest} if digest else {}
        config = tiny_config(**DEGRADED, weight_distilled=1.0 if digest else 0.0, teachers=named)
        with pytest.raises(ParameterError, match=str(digest)):
            train(str(photos), tmp_path / "run", config, teacher=given)
    assert not (tmp_path / "run").exists()


def test_a_teacher_of_other_patches_is_refused(photos: Path, tmp_path: Path) -> None:
    other = replace(ARCHITECTURE, patch_size=32)
    weights = Weights(Networks.from_seed(other, seed=8).discriminator, Transform(size=64))
    config = distilling(weights)
    with pytest.raises(ParameterError, match=r"32 pixels every 4.*16 every 4"):
        train(str(photos), tmp_path / "run", config, teacher=weights)
