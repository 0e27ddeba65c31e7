from pathlib import Path

import numpy as np
import pytest

from discopatch.benchmark.featurecache import FeatureCache
from discopatch.benchmark.scorestore import ScoreStore


def test_features_come_back_as_they_were(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path)
    features = {"logits": np.arange(6, dtype=np.float32).reshape(2, 3), "statistics": np.ones((2, 5), np.float32)}
    cache.write("eye", "images", features)
    found = cache.read("eye", "images", ["statistics", "logits"])
    assert found is not None
    assert {kind: array.tolist() for kind, array in found.items()} == {
        kind: array.tolist() for kind, array in features.items()
    }


def test_features_of_another_eye_or_of_other_images_are_not_found(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path)
    cache.write("eye", "images", {"logits": np.ones((1, 1), np.float32)})
    assert cache.read("other eye", "images", ["logits"]) is None
    assert cache.read("eye", "other images", ["logits"]) is None


def test_a_kind_that_is_missing_makes_all_of_it_missing(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path)
    cache.write("eye", "images", {"logits": np.ones((1, 1), np.float32)})
    assert cache.read("eye", "images", ["logits", "statistics"]) is None


@pytest.mark.parametrize("left", [0, 5, 40])
def test_a_file_that_was_cut_short_counts_as_none(tmp_path: Path, left: int) -> None:
    cache = FeatureCache(tmp_path)
    cache.write("eye", "images", {"logits": np.ones((100, 1), np.float32)})
    path = cache.path("eye", "images")
    path.write_bytes(path.read_bytes()[:left])
    assert cache.read("eye", "images", ["logits"]) is None


def test_scores_are_added_beside_those_that_are_there(tmp_path: Path) -> None:
    store = ScoreStore(tmp_path)
    store.add("matched", "fog/3", {"0:a/b": np.array([1.0, 2.0])}, {"0:a/b": "from this"})
    store.add("matched", "fog/3", {"0:c/d": np.array([3.0, 4.0])}, {"0:c/d": "from that"})
    assert {key: each.tolist() for key, each in store.read("matched", "fog/3").items()} == {
        "0:a/b": [1.0, 2.0],
        "0:c/d": [3.0, 4.0],
    }
    assert store.read("paper", "fog/3") == {}


def test_only_scores_that_were_made_from_the_same_things_count(tmp_path: Path) -> None:
    store = ScoreStore(tmp_path)
    store.add("matched", "fog/3", {"0:a/b": np.array([1.0])}, {"0:a/b": "these weights"})
    assert store.current("matched", "fog/3", {"0:a/b": "these weights", "0:c/d": "any"}) == {"0:a/b"}
    assert store.current("matched", "fog/3", {"0:a/b": "other weights"}) == set()


def test_what_is_there_is_known_without_being_read(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path)
    cache.write("eye", "images", {"logits": np.ones((100, 1), np.float32)})
    assert cache.holds("eye", "images", ["logits"])
    assert not cache.holds("eye", "images", ["logits", "statistics"])
    assert not cache.holds("eye", "other images", ["logits"])
    path = cache.path("eye", "images")
    path.write_bytes(path.read_bytes()[:40])
    assert not cache.holds("eye", "images", ["logits"])
