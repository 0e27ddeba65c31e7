"""Scores in an object store: the same bytes as in a folder, and no credentials in them."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.fs
import pytest

from discopatch import Detector
from discopatch.batch import read_scores, rescore, score_to
from discopatch.batch.output import OutputFolder
from discopatch.errors import ParameterError, RunError, StoreError
from tests.images.s3 import KEYS, s3_bucket

from .samples import contents, image_folder, score_first, shard_folder, stored


@pytest.mark.slow
def test_images_and_scores_in_a_bucket(tiny: Detector, tiny_file: Path, tmp_path: Path) -> None:
    folder = image_folder(shard_folder(tmp_path / "in", [3, 2]), 5, first="loose-")
    score_to(tiny, folder, tmp_path / "scores", per_part=3)

    with s3_bucket() as bucket:
        same, source, out = bucket.uri("scores/same"), bucket.put_folder(folder, "images"), bucket.uri("scores/both")
        with ThreadPoolExecutor() as pool:
            detectors = [Detector.load(tiny_file, device="cpu") for _ in range(2)]
            runs = list(pool.map(lambda each: score_to(each, folder, same, per_part=3), detectors))
        assert sum(run.parts for run in runs) == 4
        assert stored(same) == contents(tmp_path / "scores")
        assert read_scores(same).to_table() == read_scores(tmp_path / "scores").to_table()

        score_first(2, tiny, source, out, per_part=3)
        run = score_to(tiny, source, out)
        assert (run.before, run.parts) == (2, 2)
        assert sorted(read_scores(out).to_table()["name"].to_pylist()) == sorted(tiny.predict(source).names)
        everything = b"".join(stored(out).values())
        assert all(key.encode() not in everything for key in (*KEYS, "endpoint_override"))
        assert rescore(out, tiny.with_rate(0.4), bucket.uri("scores/rescored")).summary().images == 10

        bucket.put("images/01.tar", (folder / "00.tar").read_bytes())
        with pytest.raises(RunError, match=r"01\.tar"):
            score_to(tiny, source, out)
        with pytest.raises(ParameterError, match="among"):
            score_to(tiny, source, bucket.uri("images/scores"))
        with pytest.raises(StoreError) as raised:
            score_to(tiny, folder, f"s3://elsewhere/scores?{bucket.options}")
        assert all(key not in str(raised.value) for key in KEYS)


def test_files_are_renamed_if_they_are_visible_while_written(tiny: Detector, tmp_path: Path) -> None:
    """As in HDFS; here by a file system of pyarrow over a folder."""
    folder = image_folder(tmp_path / "in", 4)
    (tmp_path / "cluster").mkdir()
    system = pyarrow.fs.SubTreeFileSystem(str(tmp_path / "cluster"), pyarrow.fs.LocalFileSystem())
    score_to(tiny, folder, OutputFolder(system, "scores", "cluster://scores"), per_part=3)
    score_to(tiny, folder, tmp_path / "scores", per_part=3)
    assert contents(tmp_path / "cluster" / "scores") == contents(tmp_path / "scores")
