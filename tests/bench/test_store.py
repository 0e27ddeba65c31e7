"""Features, scores and pieces of results are found again under what they depend on, and only then."""

import json
from pathlib import Path

import numpy as np
import pytest

from discopatch.bench.store import FeatureStore, Results, ResultStore, ScoreStore

LOGITS = {"logits": np.ones((100, 1), np.float32)}


def as_lists(arrays: object) -> dict[str, list[float]]:
    assert isinstance(arrays, dict)
    return {name: array.tolist() for name, array in arrays.items()}


def test_features_are_read_as_they_were_written(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path)
    features = {"logits": np.arange(6, dtype=np.float32).reshape(2, 3), "statistics": np.ones((2, 5), np.float32)}
    store.write("encoder", "images", features)
    assert as_lists(store.read("encoder", "images", ["statistics", "logits"])) == as_lists(features)


def test_features_of_another_kind_are_added_to_those_of_the_same_images(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path)
    store.write(
        "encoder", "images", {"logits": np.zeros((2, 3), np.float32), "statistics": np.ones((2, 5), np.float32)}
    )
    store.write("encoder", "images", {"logits": np.ones((2, 3), np.float32), "local": np.ones((2, 4), np.float16)})
    found = store.read("encoder", "images", ["logits", "statistics", "local"])
    assert found is not None
    assert found["logits"].min() == 1, "the newer ones"


@pytest.mark.parametrize(
    ("encoder", "images", "kinds"),
    [
        ("other encoder", "images", ["logits"]),
        ("encoder", "other images", ["logits"]),
        ("encoder", "images", ["logits", "statistics"]),
    ],
)
def test_other_features_are_not_found(tmp_path: Path, encoder: str, images: str, kinds: list[str]) -> None:
    store = FeatureStore(tmp_path)
    store.write("encoder", "images", LOGITS)
    assert store.holds("encoder", "images", ["logits"])
    assert not store.holds(encoder, images, kinds)
    assert store.read(encoder, images, kinds) is None


@pytest.mark.parametrize("left", [0, 5, 40])
def test_a_file_that_was_cut_short_counts_as_none(tmp_path: Path, left: int) -> None:
    store = FeatureStore(tmp_path)
    store.write("encoder", "images", LOGITS)
    path = store.path("encoder", "images")
    path.write_bytes(path.read_bytes()[:left])
    assert not store.holds("encoder", "images", ["logits"])
    assert store.read("encoder", "images", ["logits"]) is None


def test_scores_are_added_to_those_that_are_stored(tmp_path: Path) -> None:
    store = ScoreStore(tmp_path)
    store.add("matched", "fog/3", {"0:a/b": np.array([1.0, 2.0])}, {"0:a/b": "one key"})
    store.add("matched", "fog/3", {"0:c/d": np.array([3.0, 4.0])}, {"0:c/d": "another key"})
    assert as_lists(store.read("matched", "fog/3")) == {"0:a/b": [1.0, 2.0], "0:c/d": [3.0, 4.0]}
    assert store.read("paper", "fog/3") == {}


def test_only_scores_with_the_same_key_are_current(tmp_path: Path) -> None:
    store = ScoreStore(tmp_path)
    store.add("matched", "fog/3", {"0:a/b": np.array([1.0])}, {"0:a/b": "these weights"})
    assert store.current("matched", "fog/3", {"0:a/b": "these weights", "0:c/d": "any"}) == {"0:a/b"}
    assert store.current("matched", "fog/3", {"0:a/b": "other weights"}) == set()


def test_a_piece_is_computed_once_for_each_key(tmp_path: Path) -> None:
    paths = tmp_path / "kept.json", tmp_path / "out/copy.json"
    calls: list[str] = []

    def keep(key: str) -> None:
        def make() -> Results:
            calls.append(key)
            return {"auroc": len(calls)}

        ResultStore(paths).keep("evaluation", "paper", key, make)

    for key in ("a", "a", "b"):
        keep(key)
    assert calls == ["a", "b"]
    for path in paths:
        piece = json.loads(path.read_text())["evaluation"]["paper"]
        assert (piece["key"], piece["auroc"]) == ("b", 2)
        assert piece["seconds"] >= 0


def test_a_piece_that_fails_is_noted_and_stops_no_other(tmp_path: Path) -> None:
    logged: list[str] = []
    store = ResultStore([tmp_path / "results.json"], stop=(TimeoutError,), log=logged.append)

    def fail() -> Results:
        raise ValueError("no such thing")

    def stop() -> Results:
        raise TimeoutError

    store.keep("evaluation", "paper", "a", fail)
    store.keep("evaluation", "natural", "a", lambda: {"auroc": 1})
    results = json.loads((tmp_path / "results.json").read_text())
    assert "no such thing" in results["failed"]["evaluation, paper"]
    assert results["evaluation"].keys() == {"natural"}
    assert len(logged) == 1
    with pytest.raises(TimeoutError):
        store.keep("evaluation", "paper", "a", stop)
    store.keep("evaluation", "paper", "a", lambda: {"auroc": 1})
    assert store.results["failed"] == {}
