"""Arrays are found again under what they depend on, and only then."""

from pathlib import Path

import numpy as np
import pytest

from discopatch.bench.store import add_arrays, read_arrays, stored_keys


def test_arrays_are_added_to_those_of_a_file_and_replaced_with_their_keys(tmp_path: Path) -> None:
    path = tmp_path / "scores.safetensors"
    assert stored_keys(path) == {}
    add_arrays(path, {"0:a/b": np.zeros(2), "0:c/d": np.ones(2)}, {"0:a/b": "old weights", "0:c/d": "same"})
    add_arrays(path, {"0:a/b": np.full(2, 5.0)}, {"0:a/b": "new weights", "0:e/f": "never given"})
    assert stored_keys(path) == {"0:a/b": "new weights", "0:c/d": "same"}
    found = read_arrays(path, ["0:a/b", "0:c/d"])
    assert (found["0:a/b"][0], found["0:c/d"][0]) == (5, 1)


@pytest.mark.parametrize("left", [0, 5, 40])
def test_a_file_that_was_cut_short_counts_as_none_and_is_written_again(tmp_path: Path, left: int) -> None:
    path = tmp_path / "features.safetensors"
    add_arrays(path, {"logits": np.ones((100, 1))}, {"logits": ""})
    path.write_bytes(path.read_bytes()[:left])
    assert stored_keys(path) == {}
    add_arrays(path, {"logits": np.ones((100, 1))}, {"logits": ""})
    assert stored_keys(path) == {"logits": ""}
