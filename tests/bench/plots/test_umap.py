"""The map of features."""

import sys

import numpy as np
import pytest

from discopatch.bench.plots.score_plots import umap_plot, umap_points
from discopatch.errors import MissingExtraError
from tests.bench.sample_results import SETS, make_features


@pytest.mark.slow
def test_the_same_seed_gives_the_same_map_and_sets_lie_together() -> None:
    features = {name: make_features(0, images=25, channels=64)[name] for name in ("test", "textures", "steel")}
    first, second = (umap_points(features, seed=3) for _ in range(2))
    for name in features:
        assert first[name].shape == (25, 2)
        np.testing.assert_array_equal(first[name], second[name])
    centres = {name: points.mean(0) for name, points in first.items()}
    assert np.hypot(*(centres["steel"] - centres["test"])) > 3 * first["test"].std(0).max()


def test_every_set_has_a_sign_of_its_own() -> None:
    rng = np.random.default_rng(0)
    points = {name: rng.normal(size=(9, 2)).astype(np.float32) for name in (*SETS, "test")}
    (axis,) = umap_plot(points).axes
    assert axis.collections[0].get_label() == "normal images"
    signs = {
        (*np.ravel(each.get_facecolor()), *np.ravel(each.get_paths()[0].vertices).round(3)) for each in axis.collections
    }
    assert len(signs) == len(axis.collections) == len(points)
    assert all(len(np.asarray(each.get_offsets())) == 9 for each in axis.collections)


def test_without_umap_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(MissingExtraError, match="bench"):
        umap_points({"test": np.zeros((5, 3), np.float32)})
