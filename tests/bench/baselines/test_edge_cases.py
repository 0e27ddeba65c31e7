"""Edge cases of fitted baselines, and their memory; `test_references.py` compares their formulas."""

import numpy as np
import pytest

from discopatch.bench.baselines import FDBD, KNN, ViM
from discopatch.bench.networks.base import PENULTIMATE, Classifier

from .samples import random_classifier, random_features

HEAD = random_classifier()
NORMAL, NEW = random_features(150), random_features(25, seed=1)


def test_a_twin_of_the_likeliest_class_changes_nothing_in_fdbd() -> None:
    """Between two classes of one weight there is no boundary."""
    alone = FDBD(HEAD).fit(NORMAL)
    best = HEAD.logits(NEW[PENULTIMATE]).argmax(1)
    which = int(np.bincount(best).argmax())
    twins = Classifier(np.vstack([HEAD.weight, HEAD.weight[which]]), np.append(HEAD.bias, HEAD.bias[which] - 3))
    of_the_class = {PENULTIMATE: NEW[PENULTIMATE][best == which]}
    np.testing.assert_allclose(FDBD(twins).fit(NORMAL).score(of_the_class), alone.score(of_the_class), rtol=1e-9)


@pytest.mark.parametrize(("size", "dimensions"), [(2048, 1000), (1280, 512), (512, 256)])
def test_vim_has_the_dimensions_of_its_paper(size: int, dimensions: int) -> None:
    head = Classifier(np.zeros((2, size), np.float32), np.zeros(2, np.float32))
    assert ViM(head).n_axes(10**6) == dimensions
    assert ViM(head).n_axes(100) == 50


def test_an_all_zero_normal_image_is_as_far_from_everything_as_it_is() -> None:
    """Though its product with others is larger than that of an opposite."""
    opposite, zero = np.full((1, 40), -1.0), np.zeros((1, 40))
    new = {PENULTIMATE: np.ones((1, 40))}
    assert KNN(HEAD).fit({PENULTIMATE: np.vstack([opposite, zero])}).score(new)[0] == pytest.approx(1)
    assert KNN(HEAD).fit({PENULTIMATE: opposite}).score(new)[0] == pytest.approx(2)
