"""Batch statistics, beside torch's own BatchNorm."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from discopatch.errors import ParameterError
from discopatch.images import Transform
from discopatch.images.tensors import to_unit
from discopatch.model import Discriminator, Networks, Weights
from discopatch.model.layers import SLOPE, Block
from paper.batchnorm import (
    Batches,
    BatchNormScorer,
    BatchStudy,
    batchnorm_bias,
    first_scores,
    mixed_batches,
    pure_batches,
)
from paper.dataset import FAR, NEAR, TEST, Dataset
from paper.plan import make_job
from tests.studies.samples import SMALL, make_dataset


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def all_different(batches: Batches) -> bool:
    return all(len(set(batch)) == len(batch) for batch in batches.tolist())


@given(images=st.integers(1, 60), batch=st.integers(1, 60))
def test_every_image_is_in_a_batch_of_exactly_that_size_and_in_none_twice(images: int, batch: int) -> None:
    if images < batch:
        with pytest.raises(ParameterError):
            pure_batches(images, batch, rng())
        return
    batches = pure_batches(images, batch, rng())
    assert batches.shape == (-(-images // batch), batch)
    assert set(batches.ravel()) == set(range(images))
    assert all_different(batches)
    assert np.array_equal(batches, pure_batches(images, batch, rng()))


@given(normal=st.integers(8, 40), shifted=st.integers(4, 40), half=st.booleans())
def test_mixed_batches_hold_so_many_of_each_kind_and_every_image_is_in_one(
    normal: int, shifted: int, half: bool
) -> None:
    batch = 8
    shifted_each = batch // 2 if half else 1
    batches = mixed_batches(normal, shifted, batch, shifted_each=shifted_each, rng=rng())
    assert ((batches >= normal).sum(1) == shifted_each).all()
    assert batches.shape[1] == batch
    assert set(batches.ravel()) == set(range(normal + shifted))
    assert all_different(batches)


@pytest.mark.parametrize("shifted_each", [0, 4])
def test_a_batch_of_one_kind_is_not_mixed(shifted_each: int) -> None:
    with pytest.raises(ParameterError):
        mixed_batches(9, 9, 4, shifted_each=shifted_each, rng=rng())


def test_the_first_score_of_an_image_counts() -> None:
    batches = np.array([[2, 0], [1, 2]])
    assert first_scores(batches, np.array([[0.2, 0.0], [0.1, 9.0]]), 4)[:3].tolist() == [0.0, 0.1, 0.2]
    assert np.isnan(first_scores(batches, np.zeros((2, 2)), 4)[3])


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return make_dataset()


@pytest.fixture(scope="module")
def discriminator(dataset: Dataset) -> Discriminator:
    """With running statistics of its own, as after training."""
    network = Networks.from_seed(make_job("full", 0, SMALL).config.architecture, 0).discriminator.train()
    for _ in range(5):
        network(as_input(dataset, "textures"))
    return network.eval()


def as_input(dataset: Dataset, name: str) -> Tensor:
    return to_unit(torch.from_numpy(dataset.images(name))).permute(0, 3, 1, 2)


@torch.no_grad()
def by_hand(network: Discriminator, x: Tensor) -> Tensor:
    """The layers one by one, each normalised by torch with the statistics of this batch."""
    for block in network.blocks:
        assert isinstance(block, Block)
        norm = block.norm
        x = F.batch_norm(block.conv(x), None, None, norm.weight, norm.bias, training=True, eps=norm.eps)  # type: ignore[arg-type]
        x = F.leaky_relu(x, SLOPE)
    return network.head(x.flatten(1)).squeeze(1)  # type: ignore[no-any-return]


def test_batch_statistics_are_those_of_torch_on_that_batch(dataset: Dataset, discriminator: Discriminator) -> None:
    scorer, x = BatchNormScorer(discriminator, "cpu"), as_input(dataset, TEST)
    batches = np.array([[0, 3, 5], [1, 2, 4], [5, 0, 1]])
    scores = scorer.score_batches(scorer.load(dataset.images(TEST)), batches)
    expected = np.stack([-by_hand(discriminator, x[batch]).numpy() for batch in batches])
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_learned_statistics_are_those_of_evaluation(dataset: Dataset, discriminator: Discriminator) -> None:
    scorer = BatchNormScorer(discriminator, "cpu")
    with torch.no_grad():
        expected = -discriminator.eval()(as_input(dataset, TEST)).logits.numpy()
    np.testing.assert_allclose(scorer.score(scorer.load(dataset.images(TEST))), expected, atol=1e-6)


def test_a_score_uses_the_statistics_of_its_own_batch_alone(dataset: Dataset, discriminator: Discriminator) -> None:
    before = {name: value.clone() for name, value in discriminator.state_dict().items()}
    scorer = BatchNormScorer(discriminator, "cpu")
    images = scorer.load(dataset.images(TEST), dataset.images("steel"))
    both = scorer.score_batches(images, np.array([[0, 1, 2], [6, 7, 8]]))
    alone = scorer.score_batches(images, np.array([[0, 1, 2]]))
    np.testing.assert_allclose(both[:1], alone, atol=1e-6)
    other = scorer.score_batches(images, np.array([[0, 1, 8]]))
    assert abs(other[0, 0] - alone[0, 0]) > 1e-4
    assert all(torch.equal(value, before[name]) for name, value in discriminator.state_dict().items())


def test_only_batchnorm_has_learned_statistics() -> None:
    other = Networks.from_seed(make_job("paper", 0, SMALL).config.architecture, 0).discriminator
    with pytest.raises(ParameterError):
        BatchNormScorer(other, "cpu")


def test_every_image_of_every_set_is_scored_in_every_round(dataset: Dataset, discriminator: Discriminator) -> None:
    study = BatchStudy(BatchNormScorer(discriminator, "cpu"), dataset, SMALL)
    sets = {*NEAR, *FAR, "gaussian_noise 3", "brightness 3"}
    for scores in (list(study.pure(4)), list(study.mixed(4, 2))):
        assert {(each.name, each.round) for each in scores} == {(name, number) for name in sets for number in (0, 1)}
        assert all(np.isfinite(each.normal).all() and len(each.normal) == 6 for each in scores)
        assert all(np.isfinite(each.shifted).all() and len(each.shifted) == 6 for each in scores)
    single = list(study.mixed(4, 1, limit=3))
    assert {each.name for each in single} == sets
    assert all(len(each.shifted) == 3 and np.isfinite(each.shifted).all() for each in single)


def test_sets_of_a_group_share_batches_that_none_could_fill_alone(discriminator: Discriminator) -> None:
    study = BatchStudy(BatchNormScorer(discriminator, "cpu"), make_dataset(images=6), SMALL)
    assert {each.group for each in study.pure(6)} == {"near", "far", "covariate"}
    assert list(study.own_sets(6)) != []
    assert list(study.pure(7)) == [], "the test photos are too few"
    few = replace(study.dataset, sets={**study.dataset.sets, "textures": slice(12, 14)})
    study = replace(study, dataset=few)
    assert {each.name for each in study.own_sets(4) if each.group == "near"} == {"cartoons"}
    assert {each.name for each in study.pure(4) if each.group == "near"} == set(NEAR)


def test_images_that_are_alone_in_their_batch_do_not_depend_on_the_round(
    dataset: Dataset, discriminator: Discriminator
) -> None:
    found = batchnorm_bias(Weights(discriminator, Transform(size=64)), dataset, SMALL, "cpu")
    assert list(found["batch"]) == ["1", "4"]
    assert list(found["half"]) == list(found["one"]) == ["4"]
    for each in found["batch"]["1"].values():
        assert len(set(each["rounds"])) == 1
        assert each["auroc"][0] == pytest.approx(each["rounds"][0], abs=1e-5)
