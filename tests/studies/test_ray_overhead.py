"""The comparison of Ray with plain processes, in its smallest form."""

import json
from pathlib import Path

import pytest

import ray_overhead
from tests.samples import new_detector, one_camera


@pytest.mark.slow
def test_both_engines_write_the_same_and_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    detector = new_detector().fit(one_camera(40))
    monkeypatch.setattr(ray_overhead, "fit_detector", lambda path, weights: detector.save(path))
    page = tmp_path / "scale.md"
    page.write_text("before\n\n<!-- ray overhead -->\nold\n<!-- end -->\n\nafter\n")
    ray_overhead.main(images=6, shards=2, workers=1, out=tmp_path / "result.json", page=page)
    result = json.loads((tmp_path / "result.json").read_text())
    assert {name: len(each) for name, each in result["seconds"].items()} == {
        ray_overhead.PLAIN: 2,
        ray_overhead.RUNNING: 2,
        ray_overhead.STARTED: 2,
    }
    assert ray_overhead.table(result) in page.read_text()
    assert "| plain processes |" in page.read_text()
    assert page.read_text().endswith("after\n")
