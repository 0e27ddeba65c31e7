"""Scores in an object store: the same bytes as in a folder, and nothing of its keys in them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from discopatch import ParameterError, ScoresError, StoreError
from discopatch.batch import Run, open_store, read_features, read_scores, rescore, score_to
from discopatch.batch.store import RemoteStore
from tests.export.samples import tiny_detector
from tests.images.s3 import KEYS, Bucket, s3_bucket

from .samples import contents, image_folder, shard_folder


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with s3_bucket() as bucket:
        yield bucket


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = shard_folder(tmp_path_factory.mktemp("images") / "in", [3, 2])
    return image_folder(folder, 5, first="loose-")


def stored(out: str) -> dict[str, bytes]:
    store = open_store(out)
    return {name: store.read(name) for name in sorted(store.names())}


def test_a_folder_and_a_bucket_hold_the_same_bytes(bucket: Bucket, folder: Path, tmp_path: Path) -> None:
    out = bucket.uri("scores/same")
    score_to(tiny_detector(), folder, tmp_path / "scores", per_part=3, features=True)
    for rank in (1, 0):
        score_to(tiny_detector(), folder, out, per_part=3, features=True, rank=rank, world=2)
    assert stored(out) == contents(tmp_path / "scores")
    assert read_scores(out).to_table() == read_scores(tmp_path / "scores").to_table()
    assert sum(len(each.logits) for each in read_features(out)) == 10


def test_images_and_scores_may_both_be_in_a_store(bucket: Bucket, folder: Path) -> None:
    source, out = bucket.put_folder(folder, "images"), bucket.uri("scores/both")

    def stop(run: Run) -> None:
        if run.parts == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        score_to(tiny_detector(), source, out, per_part=3, workers=1, progress=stop)
    run = score_to(tiny_detector(), source, out)
    assert (run.before, run.parts) == (2, 2)
    assert sorted(read_scores(out).to_table()["name"].to_pylist()) == sorted(tiny_detector().predict(source).names)
    everything = b"".join(stored(out).values())
    assert all(key.encode() not in everything for key in (*KEYS, "endpoint_override"))
    rescore(out, tiny_detector().with_rate(0.4), bucket.uri("scores/rescored"))
    assert read_scores(bucket.uri("scores/rescored")).count_rows() == 10


def test_a_shard_in_a_store_that_changed_is_refused_by_name(bucket: Bucket, folder: Path) -> None:
    source, out = bucket.put_folder(folder, "changing"), bucket.uri("scores/changed")
    score_to(tiny_detector(), source, out)
    bucket.put("changing/01.tar", (folder / "00.tar").read_bytes())
    with pytest.raises(ScoresError, match=r"s3://photos/changing/01\.tar was changed"):
        score_to(tiny_detector(), source, out)


def test_scores_do_not_go_among_the_images(bucket: Bucket, folder: Path) -> None:
    source = bucket.put_folder(folder, "among")
    with pytest.raises(ParameterError, match="among the images"):
        score_to(tiny_detector(), source, bucket.uri("among/scores"))


def test_a_store_that_does_not_answer_is_told_without_keys(bucket: Bucket, folder: Path) -> None:
    out = f"s3://elsewhere/scores?{bucket.options}"
    with pytest.raises(StoreError) as raised:
        score_to(tiny_detector(), folder, out)
    assert all(key not in str(raised.value) for key in KEYS)


def test_where_a_file_is_visible_while_it_is_written_it_is_renamed(folder: Path, tmp_path: Path) -> None:
    """As in HDFS; here by a file system of pyarrow over a folder."""
    import pyarrow.fs

    (tmp_path / "cluster").mkdir()
    system = pyarrow.fs.SubTreeFileSystem(str(tmp_path / "cluster"), pyarrow.fs.LocalFileSystem())
    score_to(tiny_detector(), folder, RemoteStore(system, "scores", "cluster://scores"), per_part=3)
    score_to(tiny_detector(), folder, tmp_path / "scores", per_part=3)
    assert contents(tmp_path / "cluster" / "scores") == contents(tmp_path / "scores")
