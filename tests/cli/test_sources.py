"""Commands over stores, tables and lists: the scores of the same images in a folder."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet as parquet
import pytest

from discopatch.images.samples import crops, sample_photos
from tests.images.s3 import KEYS, Bucket, s3_bucket
from tests.samples import save_images, tiny_weights

from .conftest import Run, assert_error


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with s3_bucket("commands") as bucket:
        yield bucket


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, bucket: Bucket) -> Path:
    """Normal images here, in a store, in a table and in a list, and small weights to be quick."""
    folder = tmp_path_factory.mktemp("camera")
    paths = save_images(folder / "normal", crops(sample_photos(["cat"]), 40, size=80, seed=0))
    bucket.put_folder(folder / "normal", "normal")
    table = pyarrow.table({"name": [path.name for path in paths], "image": [path.read_bytes() for path in paths]})
    parquet.write_table(table, folder / "normal.parquet")
    (folder / "names.txt").write_text("\n".join(f"normal/{path.name}" for path in paths))
    tiny_weights().save(folder / "tiny.safetensors")
    return folder


def scores(printed: str) -> list[tuple[str, str]]:
    return [(Path(row["name"]).name, row["score"]) for row in csv.DictReader(io.StringIO(printed))]


def test_fit_and_score_take_stores_tables_and_lists(folder: Path, bucket: Bucket, run: Run, tmp_path: Path) -> None:
    detector, report = tmp_path / "camera-3", tmp_path / "report.html"
    options = ("--weights", folder / "tiny.safetensors", "--false-alarm-rate", 0.1)
    fitted = run("fit", bucket.uri("normal"), "-o", detector, *options)
    assert fitted.status == 0, fitted.err
    printed = []
    for source in (folder / "normal", bucket.uri("normal"), folder / "normal.parquet", folder / "names.txt"):
        finished = run("score", source, "--detector", detector, "--csv", "--report", report, "--close-ups", 0)
        assert finished.status == 0, finished.err
        assert KEYS[1] not in finished.out + finished.err + report.read_text(encoding="utf-8")
        printed.append(sorted(scores(finished.out)))
    assert len(printed[0]) == 40
    assert printed == [printed[0]] * 4


def test_explain_takes_an_image_of_a_store(folder: Path, bucket: Bucket, run: Run, tmp_path: Path) -> None:
    detector = tmp_path / "camera-3"
    options = ("--weights", folder / "tiny.safetensors", "--false-alarm-rate", 0.1)
    assert run("fit", folder / "names.txt", "-o", detector, *options).status == 0
    name = next((folder / "normal").iterdir()).name
    explained = run("explain", bucket.uri(f"normal/{name}"), "--detector", detector, "-o", tmp_path / "map.png")
    assert explained.status == 0, explained.err
    assert bucket.shown(f"normal/{name}") in explained.out
    assert_error(run("explain", bucket.uri("normal/"), "--detector", detector, "-o", tmp_path / "map.png"), "normal")


def test_a_store_that_is_not_there_is_one_line(folder: Path, bucket: Bucket, run: Run) -> None:
    options = ("--weights", folder / "tiny.safetensors", "--patches", 4)
    assert_error(run("score", f"s3://nowhere/a?{bucket.options}", *options), "s3://nowhere", "bucket")
    assert_error(run("score", bucket.uri("nothing"), *options), bucket.shown("nothing"))
