"""Features, scores and pieces of results are found again under what they depend on, and only then."""

from pathlib import Path

import numpy as np
import pytest

from discopatch.bench.store import FeatureStore, ScoreStore

LOGITS = {"logits": np.ones((100, 1), np.float32)}


def test_features_of_another_kind_are_added_to_those_of_the_same_images(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path)
    store.write(
        "encoder", "images", {"logits": np.zeros((2, 3), np.float32), "statistics": np.ones((2, 5), np.float32)}
    )
    store.write("encoder", "images", {"logits": np.ones((2, 3), np.float32), "local": np.ones((2, 4), np.float16)})
    found = store.read("encoder", "images", ["logits", "statistics", "local"])
    assert found["logits"].min() == 1, "the newer ones"


def test_other_features_are_not_found(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path)
    store.write("encoder", "images", LOGITS)
    assert store.holds("encoder", "images", ["logits"])
    assert not store.holds("other encoder", "images", ["logits"])
    assert not store.holds("encoder", "other images", ["logits"])
    assert not store.holds("encoder", "images", ["logits", "statistics"])


@pytest.mark.parametrize("left", [0, 5, 40])
def test_a_file_that_was_cut_short_counts_as_none(tmp_path: Path, left: int) -> None:
    store = FeatureStore(tmp_path)
    store.write("encoder", "images", LOGITS)
    path = store.path("encoder", "images")
    path.write_bytes(path.read_bytes()[:left])
    assert not store.holds("encoder", "images", ["logits"])


def test_only_scores_with_the_same_key_are_current(tmp_path: Path) -> None:
    store = ScoreStore(tmp_path)
    store.add("matched", "fog/3", {"0:a/b": np.array([1.0])}, {"0:a/b": "these weights"})
    assert store.current("matched", "fog/3", {"0:a/b": "these weights", "0:c/d": "any"}) == {"0:a/b"}
    assert store.current("matched", "fog/3", {"0:a/b": "other weights"}) == set()
