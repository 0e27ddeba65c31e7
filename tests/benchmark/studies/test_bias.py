"""Batch statistics, beside torch's own BatchNorm."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from discopatch.benchmark.studies.bias import Judge, Study, batchnorm_bias
from discopatch.benchmark.studies.gallery import FAR, NEAR, TEST, Gallery
from discopatch.benchmark.studies.jobs import make_job
from discopatch.images import Transform
from discopatch.model import Discriminator, Pair
from discopatch.model.blocks import Block
from discopatch.model.weights import Weights
from discopatch.patches import to_unit
from tests.benchmark.studies.samples import SMALL, make_gallery

SLOPE = 0.01


@pytest.fixture(scope="module")
def gallery() -> Gallery:
    return make_gallery()


@pytest.fixture(scope="module")
def discriminator(gallery: Gallery) -> Discriminator:
    """With running statistics of its own, as after training."""
    network = Pair.from_seed(make_job("full", 0, SMALL).recipe.architecture, 0).discriminator.train()
    for _ in range(5):
        network(as_input(gallery, "textures"))
    return network.eval()


def as_input(gallery: Gallery, name: str) -> Tensor:
    return to_unit(torch.from_numpy(gallery.of(name))).permute(0, 3, 1, 2)


@torch.no_grad()
def by_hand(network: Discriminator, x: Tensor) -> Tensor:
    """The layers one by one, each normalised by torch with the statistics of this batch."""
    for block in network.blocks:
        assert isinstance(block, Block)
        norm = block.norm
        x = F.batch_norm(block.conv(x), None, None, norm.weight, norm.bias, training=True, eps=norm.eps)  # type: ignore[arg-type]
        x = F.leaky_relu(x, SLOPE)
    return network.head(x.flatten(1)).squeeze(1)  # type: ignore[no-any-return]


def test_batch_statistics_are_those_of_torch_on_that_batch(gallery: Gallery, discriminator: Discriminator) -> None:
    judge, x = Judge(discriminator, "cpu"), as_input(gallery, TEST)
    places = np.array([[0, 3, 5], [1, 2, 4], [5, 0, 1]])
    scores = judge.in_batches(judge.show(gallery.of(TEST)), places)
    expected = np.stack([-by_hand(discriminator, x[batch]).numpy() for batch in places])
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_learned_statistics_are_those_of_evaluation(gallery: Gallery, discriminator: Discriminator) -> None:
    judge = Judge(discriminator, "cpu")
    with torch.no_grad():
        expected = -discriminator.eval()(as_input(gallery, TEST)).numpy()
    np.testing.assert_allclose(judge.learned(judge.show(gallery.of(TEST))), expected, atol=1e-6)


def test_a_score_never_uses_the_statistics_of_another_batch(gallery: Gallery, discriminator: Discriminator) -> None:
    judge = Judge(discriminator, "cpu")
    pictures = judge.show(gallery.of(TEST), gallery.of("steel"))
    both = judge.in_batches(pictures, np.array([[0, 1, 2], [6, 7, 8]]))
    alone = judge.in_batches(pictures, np.array([[0, 1, 2]]))
    np.testing.assert_allclose(both[:1], alone, atol=1e-6)
    other = judge.in_batches(pictures, np.array([[0, 1, 8]]))
    assert abs(other[0, 0] - alone[0, 0]) > 1e-4  # but those of its own batch it does


def test_scoring_leaves_the_learned_statistics_as_they_are(gallery: Gallery, discriminator: Discriminator) -> None:
    before = {name: value.clone() for name, value in discriminator.state_dict().items()}
    judge = Judge(discriminator, "cpu")
    judge.in_batches(judge.show(gallery.of(TEST)), np.array([[0, 1, 2]]))
    assert all(torch.equal(value, before[name]) for name, value in discriminator.state_dict().items())


def test_only_batchnorm_has_learned_statistics() -> None:
    other = Pair.from_seed(make_job("paper", 0, SMALL).recipe.architecture, 0).discriminator
    with pytest.raises(ValueError, match="only BatchNorm"):
        Judge(other, "cpu")


def test_every_image_of_every_set_is_scored_in_every_round(gallery: Gallery, discriminator: Discriminator) -> None:
    study = Study(Judge(discriminator, "cpu"), gallery, SMALL)
    sets = {*NEAR, *FAR, "gaussian_noise 3", "brightness 3"}
    for shown in (list(study.pure(4)), list(study.mixed(4, 2))):
        assert {(each.name, each.round) for each in shown} == {(name, number) for name in sets for number in (0, 1)}
        assert all(np.isfinite(each.normal).all() and len(each.normal) == 6 for each in shown)
        assert all(np.isfinite(each.strange).all() and len(each.strange) == 6 for each in shown)
    lone = list(study.mixed(4, 1, most=3))
    assert {each.name for each in lone} == sets
    assert all(len(each.strange) == 3 and np.isfinite(each.strange).all() for each in lone)


def test_sets_of_a_group_share_batches_that_none_could_fill_alone(discriminator: Discriminator) -> None:
    study = Study(Judge(discriminator, "cpu"), make_gallery(images=6), SMALL)
    assert {each.group for each in study.pure(6)} == {"near", "far", "covariate"}
    assert list(study.own_sets(6)) != []
    assert list(study.pure(7)) == []  # the test photos are too few
    small = Study(study.judge, replace(study.gallery, sets={**study.gallery.sets, "textures": (12, 14)}), SMALL)
    assert {each.name for each in small.own_sets(4) if each.group == "near"} == {"cartoons"}
    assert {each.name for each in small.pure(4) if each.group == "near"} == set(NEAR)


def test_images_that_are_alone_in_their_batch_do_not_depend_on_the_round(
    gallery: Gallery, discriminator: Discriminator
) -> None:
    weights = Weights(discriminator, Transform(size=64))
    found = batchnorm_bias(weights, gallery, SMALL, "cpu")
    assert list(found["batch"]) == ["1", "4"]
    assert list(found["half"]) == list(found["one"]) == ["4"]
    for each in found["batch"]["1"].values():
        assert len(set(each["rounds"])) == 1
        assert each["auroc"][0] == pytest.approx(each["rounds"][0], abs=1e-5)
