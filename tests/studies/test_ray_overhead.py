"""The comparison of Ray with plain processes, in its smallest form."""

from pathlib import Path

import pytest

import ray_overhead
from discopatch.errors import DiscopatchError
from tests.samples import new_detector, one_camera


@pytest.mark.slow
def test_both_engines_score_the_same_shards(tmp_path: Path) -> None:
    new_detector().fit(one_camera(40)).save(tmp_path / "detector.safetensors")
    plan = ray_overhead.Plan(images=5, shards=2, workers=1)
    plan.write(tmp_path / "source")
    work = ray_overhead.Work(tmp_path, plan)
    assert min(work.run(ray_overhead.PLAIN), work.run(ray_overhead.RUNNING)) > 0
    work.check_equal()
    next(work.folders[1].glob("part-*")).unlink()
    with pytest.raises(DiscopatchError, match="different"):
        work.check_equal()


def test_times_are_ratios_to_that_of_plain_processes() -> None:
    seconds = {ray_overhead.PLAIN: [90.0, 110.0], ray_overhead.RUNNING: [100.0, 105.0]}
    found = ray_overhead.table({"images": 2000, "shards": 4, "pixels": 128, "workers": 2, "seconds": seconds})
    assert [line.split("|")[2:5] for line in found.splitlines()[2:]] == [
        [" 100.0 ", " 20.0 ", " 1.000 "],
        [" 102.5 ", " 19.5 ", " 1.025 "],
    ]
