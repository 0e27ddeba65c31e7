"""discopatch score --out --engine ray"""

from pathlib import Path

import pytest

from discopatch import Detector
from tests.batch.clusters import local_ray
from tests.batch.samples import contents, tar_shard
from tests.cli.conftest import Run, assert_usage_error
from tests.samples import new_detector, one_camera


def test_options_of_ray_are_refused_without_it(run: Run, tmp_path: Path) -> None:
    given = ("score", "images", "--detector", tmp_path / "detector.safetensors")
    assert_usage_error(run(*given, "--out", "scores", "--actors", 2), "--actors", "--engine ray")
    assert_usage_error(run(*given, "--engine", "ray"), "--engine", "--out")
    assert_usage_error(run(*given, "--out", "scores", "--engine", "ray", "--workers", 2), "--cpus-per-actor")
    assert_usage_error(run(*given, "--out", "scores", "--engine", "ray", "--rank", 0, "--world", 2), "--rank")


@pytest.mark.slow
def test_ray_scores_as_one_process_does(run: Run, tmp_path: Path) -> None:
    detector: Detector = new_detector().fit(one_camera(40))
    detector.save(tmp_path / "detector.safetensors")
    for number in range(3):
        tar_shard(tmp_path / "source" / f"{number}.tar", one_camera(5, seed=number))
    given = ("score", tmp_path / "source", "--detector", tmp_path / "detector.safetensors", "--features", "--out")
    alone = run(*given, tmp_path / "alone")
    assert alone.status == 0
    with local_ray(cores=1):
        finished = run(*given, tmp_path / "scores", "--engine", "ray", "--cpus-per-actor", 1)
    assert (finished.status, finished.out) == (0, "")
    assert contents(tmp_path / "scores") == contents(tmp_path / "alone")
    assert "3 of 3 parts, 15 images" in " ".join(finished.err.split())
