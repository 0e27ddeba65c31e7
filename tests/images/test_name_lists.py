"""Lists of names in text and in Parquet: read one by one, each line its own image or its own refusal."""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest

from discopatch.images import DEFAULT_LIMITS, Limits, NamedImage, Refusal, RefusalReason, count_images, read_images
from discopatch.images.items import Item
from discopatch.images.source import list_source

from .s3 import Bucket, s3_bucket
from .samples import encoded, names_of, photo, pixels_of, read, refusal_of
from .test_source import write_shard

DATA = encoded(photo(), "PNG")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.png", "sub/b.png", "# 1.png", "with space.png", "café.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(DATA)
    return tmp_path


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with s3_bucket("lists") as bucket:
        bucket.put("top/a.png", DATA)
        bucket.put("top/sub/b.png", DATA)
        yield bucket


def write_list(path: Path, *lines: str, end: str = "\n") -> Path:
    path.write_bytes(end.join((*lines, "")).encode())
    return path


def test_lines_are_paths_relative_to_the_list_or_absolute_or_uris(folder: Path, bucket: Bucket) -> None:
    lines = (
        "a.png",
        str(folder / "sub" / "b.png"),
        (folder / "café.png").as_uri(),
        bucket.uri("top/a.png"),
        "sub/../a.png",
    )
    stream = read(write_list(folder / "names.txt", *lines))
    assert all(isinstance(item, NamedImage) for item in stream)
    assert names_of(stream) == [
        *(f"{folder}/{name}" for name in ("a.png", "sub/b.png", "café.png")),
        bucket.shown("top/a.png"),
        f"{folder}/sub/../a.png",
    ]


def test_comments_and_empty_lines_are_left_out(folder: Path) -> None:
    path = write_list(folder / "names.txt", "# a list", "", "a.png", "./# 1.png", "with space.png", "", end="\r\n")
    assert [Path(name).name for name in names_of(read(path))] == ["a.png", "# 1.png", "with space.png"]
    path.write_bytes(b"\xef\xbb\xbfa.png")
    assert names_of(read(path)) == [f"{folder}/a.png"]


def test_a_line_that_names_nothing_is_one_refusal(folder: Path) -> None:
    lines = ("a.png", "nowhere.png", "sub", "http://x/y.png", "x" * 9000, "a\0b.png", "s3:///x", "a.png")
    stream = read(write_list(folder / "names.txt", *lines))
    assert [getattr(item, "reason", None) for item in stream] == [
        None,
        RefusalReason.MISSING,
        RefusalReason.UNREADABLE,
        RefusalReason.UNSUPPORTED,
        RefusalReason.UNSUPPORTED,
        RefusalReason.MISSING,
        RefusalReason.UNSUPPORTED,
        None,
    ]


def test_a_list_may_name_shards_and_tables(folder: Path) -> None:
    write_shard(folder / "s.tar", {"x.png": DATA})
    parquet.write_table(pyarrow.table({"image": [DATA], "id": [3]}), folder / "t.parquet")
    stream = read(write_list(folder / "names.txt", "s.tar", "a.png", "t.parquet"))
    assert names_of(stream) == [f"{folder}/{name}" for name in ("s.tar/x.png", "a.png", "t.parquet/3")]


def test_names_that_are_no_text_are_read(folder: Path) -> None:
    (folder / "names.txt").write_bytes(b"caf\xe9.png\n")
    assert refusal_of(folder / "names.txt").reason is RefusalReason.MISSING


def test_an_image_under_the_name_of_a_list_is_an_image(tmp_path: Path) -> None:
    (tmp_path / "upload.txt").write_bytes(DATA)
    assert np.array_equal(pixels_of(tmp_path / "upload.txt"), photo())


@pytest.mark.parametrize("content", [b"", b"# nothing yet\n\n"])
def test_a_list_without_names_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "names.txt").write_bytes(content)
    with pytest.raises(ValueError, match=r"names\.txt"):
        read(tmp_path / "names.txt")


def test_lists_in_folders_and_patterns_are_notes(folder: Path) -> None:
    write_list(folder / "names.txt", "a.png", "/etc/hostname")
    assert len(read(folder)) == 5
    assert len(read(f"{folder}/*")) == 4


def test_names_may_stand_in_a_column_of_a_table(folder: Path) -> None:
    paths = ["a.png", None, "nowhere.png", str(folder / "sub" / "b.png"), "x" * 5000]
    table = pyarrow.table({"label": [1] * 5, "path": paths, "other": ["sub/b.png"] * 5})
    parquet.write_table(table, folder / "list.parquet", row_group_size=2)
    stream = read(folder / "list.parquet")
    assert [getattr(item, "reason", None) for item in stream] == [None, "empty", "missing", None, "empty"]
    assert stream[0].name == f"{folder}/a.png"
    assert names_of(read(f"{folder}/list.parquet#other")) == [f"{folder}/sub/b.png"] * 5
    assert count_images(folder / "list.parquet") == 5


def test_a_list_in_a_store_is_relative_to_its_folder_there(bucket: Bucket) -> None:
    lines = (
        "a.png",
        "sub/b.png",
        bucket.shown("top/a.png"),
        "../top/a.png",
        "../../../a.png",
        "no timeout.png",
        "/etc/hostname",
    )
    uri = bucket.put("top/names.txt", "\n".join((*lines, "file:///etc/hostname")).encode())
    stream = read(uri)
    names = [bucket.shown(f"top/{name}") for name in ("a.png", "sub/b.png", "a.png", "a.png")]
    assert names_of(stream)[:4] == names
    assert all(isinstance(item, NamedImage) for item in stream[:4])
    reasons = [item.reason for item in stream[4:] if isinstance(item, Refusal)]
    assert reasons == ["missing", "missing", "unsupported", "unsupported"]


@pytest.mark.parametrize("kind", ["text", "parquet"])
def test_memory_does_not_grow_with_the_list(tmp_path: Path, kind: str) -> None:
    count = 20_000
    names = [f"folder/of/many/images/{number:09}.png" for number in range(count)]
    path = tmp_path / ("names.txt" if kind == "text" else "names.parquet")
    if kind == "text":
        write_list(path, *names)
    else:
        parquet.write_table(pyarrow.table({"path": names}), path)
    entries = list_source(path).entries(DEFAULT_LIMITS)
    next(entries)
    before = sys.getallocatedblocks()
    taken = sum(isinstance(entry, Item) for entry in itertools.islice(entries, count - 10))
    assert taken == count - 10
    assert sys.getallocatedblocks() - before < 5000


def test_the_stream_of_a_list_is_the_same_for_any_number_of_workers(folder: Path) -> None:
    path = write_list(folder / "names.txt", *["a.png", "nowhere.png", "sub/b.png"] * 20)
    one = [item.name for item in read_images(path, workers=1)]
    assert [item.name for item in read_images(path, workers=4)] == one
    assert len(list(read_images(path, workers=2, limits=Limits(max_bytes=10)))) == 60
