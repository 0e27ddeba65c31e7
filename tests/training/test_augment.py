"""Every degradation has its turn, every image the degradation that its class names; shrinking keeps the image."""

import numpy as np
import pytest
import torch

from discopatch.corruptions.degradations import DEGRADATIONS, Degradation
from discopatch.images.samples import crops, sample_photos
from discopatch.images.tensors import to_pixels
from discopatch.training.augment import AT_ONCE, DegradedBatch, shrink
from discopatch.training.batches import whole_images

COUNT = len(DEGRADATIONS)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photos(count: int = 3, *, size: int = 64) -> torch.Tensor:
    """(4 x count, 3, size, size) in [-1, 1]."""
    found = crops(sample_photos(("cat", "astronaut", "coffee", "temple")), count, size=size, seed=0)
    return whole_images(torch.from_numpy(np.stack([each.pixels for each in found])))


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Degradations that paint their own number instead."""

    def painting(level: int) -> Degradation:
        return lambda x, draw, normal: torch.full_like(x, level / 127.5 - 1)

    painted = {name: painting(1 + number) for number, name in enumerate(DEGRADATIONS)}
    monkeypatch.setattr("discopatch.training.augment.DEGRADATIONS", painted)


@pytest.mark.usefixtures("marked")
@pytest.mark.parametrize("count", [1, 3, COUNT, 2 * COUNT + 3])
@pytest.mark.parametrize("step", [0, 4, COUNT - 1, COUNT, 1003])
def test_degradations_take_turns_and_each_image_has_the_one_of_its_class(count: int, step: int) -> None:
    batch = DegradedBatch.draw(torch.full((count, 3, 16, 16), -1.0), seeded(), step=step)
    painted = to_pixels(batch.degraded)[:, 0, 0, 0]
    assert batch.classes.tolist() == [1 + (AT_ONCE * step + place % AT_ONCE) % COUNT for place in range(count)]
    assert painted.tolist() == batch.classes.tolist()
    assert batch.classes.dtype == torch.int64


def test_a_batch_is_the_images_beside_their_degraded_copies() -> None:
    images = photos().requires_grad_()
    batch = DegradedBatch.draw(images, seeded(), step=3)
    assert batch.images is images
    assert batch.degraded.shape == images.shape
    assert not batch.degraded.requires_grad
    assert batch.targets is None
    assert ((batch.degraded - images).abs().mean((1, 2, 3)) > 0).all()
    again, other = (DegradedBatch.draw(images, seeded(seed), step=3) for seed in (0, 1))
    assert torch.equal(again.degraded, batch.degraded)
    assert not torch.equal(other.degraded, batch.degraded)


def test_in_as_many_steps_as_there_are_degradations_every_place_of_a_small_batch_meets_each() -> None:
    met = [DegradedBatch.draw(photos(1, size=16), seeded(), step=step).classes.tolist() for step in range(COUNT)]
    assert all(sorted(place) == list(range(1, COUNT + 1)) for place in zip(*met, strict=True))


@pytest.mark.parametrize("size", [64, 100, 256])
@pytest.mark.parametrize("min_scale", [0.5, 0.55, 0.9, 1.0])
def test_shrunk_images_lie_between_the_smallest_scale_and_their_own_size(size: int, min_scale: float) -> None:
    photo = torch.from_numpy(crops(sample_photos(["cat"]), 1, size=size, seed=0)[0].pixels.copy())[None]
    sizes = set()
    for seed in range(20):
        found = shrink(photo, min_scale, seeded(seed))
        assert found.dtype == torch.uint8
        assert found.shape[1] == found.shape[2]
        sizes.add(found.shape[1])
        assert abs(float(found.float().mean() - photo.float().mean())) < 3, "the same image"
    assert min(sizes) >= min_scale * size
    assert max(sizes) <= size
    assert len(sizes) > 1 or size == 64 or min_scale > 0.55
