"""Every degradation has its turn, every image the degradation that its class names; shrinking keeps the image."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from discopatch.corruptions.degradations import DEGRADATIONS, Degradation
from discopatch.images.samples import crops, sample_photos
from discopatch.images.tensors import to_pixels, to_unit
from discopatch.model import Networks
from discopatch.training import TrainingConfig
from discopatch.training.augment import AT_ONCE, CropBatch, DegradedBatch, mixing_mask, random_crops, shrink
from discopatch.training.batches import whole_images
from discopatch.training.losses import crop_losses, fake_loss, real_loss
from discopatch.training.step import Noise, adversarial_step, degraded_step
from discopatch.training.teachers import AuxiliaryDiscriminator
from tests.samples import TINY_INVERTED, one_camera
from tests.training.tiny import tiny_config

COUNT = len(DEGRADATIONS)
TARGETS = {"discriminator/statistics": 5, "resnet50/map8": 3, "resnet50/map16": 4, "resnet50/pooled": 6}


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
@pytest.mark.parametrize(("count", "step"), [(1, 0), (3, COUNT - 1), (2 * COUNT + 3, 1003)])
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


@pytest.mark.parametrize(("size", "min_scale"), [(64, 0.9), (100, 1.0), (256, 0.55)])
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


def crop_config(**changes) -> TrainingConfig:
    crops = {"architecture": TINY_INVERTED, "crop": 48, "weight_degraded": 1.0, "weight_classified": 0.5}
    return tiny_config(**{**crops, **changes})


def squares(count: int = 22) -> Tensor:
    return torch.from_numpy(np.stack([image.pixels for image in one_camera(count)]))


def drawn(step: int = 2, **changes) -> CropBatch:
    return CropBatch.draw(squares(), seeded(), step=step, config=crop_config(**changes))


def auxiliary(targets: dict[str, int] | None = None) -> AuxiliaryDiscriminator:
    return AuxiliaryDiscriminator(Networks.from_seed(TINY_INVERTED, seed=1).discriminator, crop_config(), targets or {})


@pytest.mark.parametrize(("side", "size"), [(64, 48), (48, 48), (40, 64)])
def test_a_crop_is_a_part_of_the_image_or_of_the_image_and_its_mirror_image(side: int, size: int) -> None:
    images = squares(4)[:, :side, :side]
    found = random_crops(images, size, seeded()).numpy()
    assert found.shape == (4, size, size, 3)
    beyond = max(size - side, 0)
    margins = ((beyond, beyond), (beyond, beyond), (0, 0))
    for image, crop in zip(images.numpy(), found, strict=True):
        padded = np.pad(image, margins, mode="reflect")
        windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(0, 1))
        assert (windows == crop.transpose(2, 0, 1)).all((2, 3, 4)).any()


def test_every_second_crop_is_degraded_in_turn() -> None:
    batch = drawn(step=3)
    taken = to_unit(random_crops(squares(), 48, seeded())).permute(0, 3, 1, 2)
    assert torch.equal(batch.images[::2], taken[::2])
    assert all((one != other).any() for one, other in zip(batch.images[1::2], taken[1::2], strict=True))
    expected = [
        0 if place % 2 == 0 else 1 + (3 * AT_ONCE + place // 2 % AT_ONCE) % len(DEGRADATIONS) for place in range(22)
    ]
    assert batch.classes.argmax(1).tolist() == expected
    assert torch.equal(batch.classes.sum(1), torch.ones(22))
    assert torch.equal(batch.real[:, 0, 0, 0], torch.tensor([1.0, 0.0] * 11))


def test_grey_crops_have_no_colours_and_those_that_lost_colours_stay_as_they_are() -> None:
    coloured, grey = drawn(), drawn(grey=1.0)
    spread = (grey.images.amax(1) - grey.images.amin(1)).amax((1, 2))
    discoloured = coloured.classes.argmax(1) == 1 + list(DEGRADATIONS).index("discoloured")
    assert discoloured.any()
    assert spread[~discoloured].max() < 1e-6
    assert torch.equal(grey.images[discoloured], coloured.images[discoloured])


def test_a_mixed_crop_says_of_every_pixel_whether_it_is_degraded_and_has_the_classes_of_both() -> None:
    plain, mixed = drawn(), drawn(cut_mix=1.0)
    mask, shift = mixing_mask(plain.images, 1.0, seeded())
    assert mask.shape == (22, 1, 48, 48)
    assert 1 <= shift < 22
    changed = (mixed.images != plain.images).any(1)
    shares = []
    for place in range(22):
        partner = (place - shift_of(plain, mixed)) % 22
        area = changed[place]
        assert torch.equal(mixed.images[place][:, area], plain.images[partner][:, area])
        rows, columns = area.any(1).nonzero()[:, 0], area.any(0).nonzero()[:, 0]
        box = torch.zeros(48, 48)
        box[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = 1
        expected = plain.real[partner, 0, 0, 0] * box + plain.real[place, 0, 0, 0] * (1 - box)
        assert (mixed.real[place, 0] - expected).abs().mean() < 0.01, "a border pixel may be alike in both"
        share = box.mean()
        torch.testing.assert_close(
            mixed.classes[place], (1 - share) * plain.classes[place] + share * plain.classes[partner], rtol=0, atol=0.05
        )
        shares.append(float(share))
    assert min(shares) < 0.2
    assert max(shares) > 0.4


def shift_of(plain: CropBatch, mixed: CropBatch) -> int:
    """How far before a crop the one stands whose pixels it has."""
    changed = (mixed.images[0] != plain.images[0]).any(0)
    fits = [
        place
        for place in range(1, len(plain.images))
        if torch.equal(mixed.images[0][:, changed], plain.images[place][:, changed])
    ]
    return -fits[0] % len(plain.images)


@torch.no_grad()
def test_the_losses_are_the_cross_entropies_of_every_cell_and_of_the_classes() -> None:
    student, batch = auxiliary(), drawn(cut_mix=0.5)
    config = crop_config(weight_degraded=2.0)
    output = student(batch.images, 1, auxiliary=True)
    cells = batch.real.unfold(2, 16, 16).unfold(3, 16, 16).mean((4, 5))[:, 0]
    chance = torch.sigmoid(output.logits)
    told_apart = -(cells * chance.log() + (1 - cells) * (1 - chance).log()).mean()
    classified = -(batch.classes * output.classes.log_softmax(1)).sum(1).mean()
    losses = crop_losses(student, batch, config)
    assert losses.told_apart.item() == pytest.approx(2.0 * told_apart.item(), rel=1e-4)
    assert losses.classified.item() == pytest.approx(0.5 * classified.item(), rel=1e-4)
    assert losses.distilled.item() == 0


def targets_for(batch: CropBatch) -> dict[str, Tensor]:
    """Made-up outputs of teachers; the finer map has another grid than the student's."""
    count = len(batch.images)
    shapes = {
        "discriminator/statistics": (5,),
        "resnet50/map8": (3, 12, 12),
        "resnet50/map16": (4, 3, 3),
        "resnet50/pooled": (6,),
    }
    return {name: torch.randn(count, *shape, generator=seeded(7)) for name, shape in shapes.items()}


@torch.no_grad()
def test_the_distance_to_the_teachers_is_weighted_by_kind_and_maps_are_brought_to_their_grid() -> None:
    student, batch = auxiliary(TARGETS), drawn()
    targets = targets_for(batch)
    config = crop_config(
        weight_distilled=2.0, weight_maps=3.0, weight_pooled=0.5, teachers={"resnet50": "0123456789abcdef"}
    )
    predicted = student(batch.images, 1, auxiliary=True).predictions
    assert predicted["resnet50/map8"].shape[2:] == (6, 6)
    fine = F.interpolate(predicted["resnet50/map8"], (12, 12), mode="bilinear", align_corners=False)
    expected = (
        F.smooth_l1_loss(predicted["discriminator/statistics"], targets["discriminator/statistics"])
        + 3.0 * F.smooth_l1_loss(fine, targets["resnet50/map8"])
        + 3.0 * F.smooth_l1_loss(predicted["resnet50/map16"], targets["resnet50/map16"])
        + 0.5 * F.smooth_l1_loss(predicted["resnet50/pooled"], targets["resnet50/pooled"])
    )
    losses = crop_losses(student, batch._replace(targets=targets), config)
    assert losses.distilled.item() == pytest.approx(2.0 * expected.item(), rel=1e-4)


def test_one_step_reaches_every_part_of_the_network_and_of_the_predictions() -> None:
    student, batch = auxiliary(TARGETS), drawn(cut_mix=0.5)
    config = crop_config(weight_distilled=1.0, teachers={"resnet50": "0123456789abcdef"}, vae=False)
    before = {name: value.clone() for name, value in student.named_parameters()}
    optimiser = torch.optim.SGD(student.parameters(), lr=0.1)
    degraded_step(student, optimiser, batch._replace(targets=targets_for(batch)), config)
    for name, value in student.named_parameters():
        assert not torch.equal(value, before[name]), name


def test_the_adversarial_step_adds_the_papers_objective_to_that_of_the_drawn() -> None:
    student, batch, config = auxiliary(), drawn(), crop_config()
    vae = Networks.from_seed(TINY_INVERTED, seed=2).vae
    real = to_unit(squares(8)[:, :32, :32]).permute(0, 3, 1, 2)
    noise = Noise.draw(8, TINY_INVERTED.latent, seeded(3))
    reference, reference_vae = auxiliary(), Networks.from_seed(TINY_INVERTED, seed=2).vae
    further = crop_losses(reference, batch, config)
    reference.eval()
    with torch.no_grad():
        fake = reference_vae(real, noise.latent, noise.prior)
        logits = [reference(each).logits for each in (real, fake.reconstructed, fake.generated)]
    expected = 0.5 * (real_loss(logits[0]) + 0.5 * fake_loss(logits[1]) + 0.5 * fake_loss(logits[2]))
    still = [torch.optim.SGD(network.parameters(), lr=0.0) for network in (vae, student)]
    losses = adversarial_step(vae, student, still, real, noise, config, degraded=batch)
    assert losses.discriminator.item() == pytest.approx((expected + further.total).item(), rel=1e-4)
    assert losses.degraded.item() == pytest.approx(further.total.item(), rel=1e-4)
    assert losses.classified.item() == pytest.approx(further.classified.item(), rel=1e-4)
