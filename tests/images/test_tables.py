"""Parquet, Lance, Arrow and saved datasets: the same images as files give, in bounded memory, damaged or not."""

import itertools
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest

from discopatch.errors import MissingExtraError, NoImagesError, StoreError
from discopatch.images import (
    DEFAULT_LIMITS,
    Limits,
    NamedImage,
    Pixels,
    Processes,
    Refusal,
    RefusalReason,
    RefusalReport,
    accepted,
    count_images,
    read_images,
)
from discopatch.images.items import Shard
from discopatch.images.source import list_source
from discopatch.images.tables import IMAGE_COLUMNS

from .s3 import Bucket, s3_bucket
from .samples import encoded, names_of, noise, photo, read, refusal_of
from .test_source import write_shard

PHOTOS = {f"{number:02}.png": encoded(noise(seed=number), "PNG") for number in range(10)}
STRUCTS = [{"bytes": data, "path": name} for name, data in PHOTOS.items()]


def table_of(**more: Any) -> pyarrow.Table:
    return pyarrow.table({"label": list(range(10)), "name": list(PHOTOS), "image": list(PHOTOS.values()), **more})


def write_parquet(path: Path, table: pyarrow.Table | None = None, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table_of() if table is None else table, path, **options)
    return path


def write_lance(path: Path, table: pyarrow.Table | None = None, **options: Any) -> Path:
    import lance

    lance.write_dataset(table_of() if table is None else table, str(path), **options)
    return path


def write_arrow(path: Path, table: pyarrow.Table, *, stream: bool = True, rows: int = 3) -> Path:
    opened = pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file
    with opened(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def write_saved(path: Path, files: Path, *, splits: bool = False) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import datasets

        datasets.disable_progress_bars()
        paths = [str(file) for file in sorted(files.iterdir())]
        saved = datasets.Dataset.from_dict({"label": list(range(10)), "photo": paths})
        saved = saved.cast_column("photo", datasets.Image())
        if splits:
            parts = {"train": saved.select(range(6)), "a-test": saved.select(range(6, 10))}
            datasets.DatasetDict(parts).save_to_disk(str(path))
        else:
            saved.save_to_disk(str(path), num_shards=3)
    return path


def pixels_in(source: object, **options: Any) -> list[Pixels]:
    stream = list(read_images(source, **options))
    assert all(isinstance(item, NamedImage) for item in stream), stream
    return [item.pixels for item in stream if isinstance(item, NamedImage)]


def assert_same(stream: list[Pixels]) -> None:
    expected = [noise(seed=number) for number in range(10)]
    assert len(stream) == 10
    assert all(np.array_equal(one, other) for one, other in zip(stream, expected, strict=True))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name, data in PHOTOS.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, files: Path) -> dict[str, Path]:
    """The same ten images in every way in which they may be kept."""
    top = tmp_path_factory.mktemp("sources")
    for number in range(2):
        part = pyarrow.table({"image": STRUCTS[5 * number : 5 * number + 5]})
        write_parquet(top / "partitioned" / f"class={number}" / "part-0.parquet", part)
    names = "\n".join(os.path.relpath(file, top) for file in sorted(files.iterdir()))
    (top / "names.txt").write_text(f"# ten images\n\n{names}\n")
    paths = pyarrow.table({"label": list(range(10)), "path": [str(file) for file in sorted(files.iterdir())]})
    structs = pyarrow.table({"photo": STRUCTS, "thumbnail": [b""] * 10})
    large = table_of(image=pyarrow.array(PHOTOS.values(), pyarrow.large_binary()))
    views = table_of(image=pyarrow.array(PHOTOS.values(), pyarrow.binary_view()))
    return {
        "folder": files,
        "tar": write_shard(top / "s.tar", PHOTOS),
        "parquet": write_parquet(top / "t.parquet", row_group_size=4),
        "parquet of structs": Path(f"{write_parquet(top / 's.pq', structs)}#photo"),
        "parquet of large bytes": write_parquet(top / "large.parquet", large, compression="zstd"),
        "partitioned parquet": top / "partitioned",
        "arrow stream": write_arrow(top / "t.arrow", table_of()),
        "arrow file": write_arrow(top / "f.arrow", views, stream=False),
        "lance": write_lance(top / "t.lance", max_rows_per_file=4),
        "lance of structs": Path(f"{write_lance(top / 's.lance', structs)}#photo"),
        "saved dataset": write_saved(top / "saved", files),
        "saved splits": write_saved(top / "splits", files, splits=True),
        "list": top / "names.txt",
        "list in parquet": write_parquet(top / "l.parquet", paths),
    }


KINDS = (
    *("folder", "tar", "parquet", "parquet of structs", "parquet of large bytes", "partitioned parquet"),
    *("arrow stream", "arrow file", "lance", "lance of structs", "saved dataset", "saved splits"),
    *("list", "list in parquet"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_source_gives_the_same_images_in_the_same_order(sources: dict[str, Path], kind: str) -> None:
    assert_same(pixels_in(sources[kind], workers=1))
    assert_same(pixels_in(str(sources[kind]), workers=4))


def test_processes_read_every_kind_of_source(sources: dict[str, Path]) -> None:
    stream = pixels_in([sources[kind] for kind in KINDS], workers=Processes(2))
    for start in range(0, 10 * len(KINDS), 10):
        assert_same(stream[start : start + 10])
    assert len(stream) == 10 * len(KINDS)


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with s3_bucket("tables") as bucket:
        yield bucket


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_source_is_read_from_a_store(sources: dict[str, Path], bucket: Bucket, kind: str) -> None:
    place, _, column = str(sources[kind]).partition("#")
    path = Path(place)
    if kind == "list":
        bucket.put_folder(sources["folder"], "lists/files")
        uri = bucket.put("lists/names.txt", "\n".join(f"files/{name}" for name in PHOTOS).encode())
    elif kind == "list in parquet":
        bucket.put_folder(sources["folder"], "lists/files")
        table = pyarrow.table({"path": [f"{bucket.shown('lists/files')}/{name}" for name in PHOTOS]})
        uri = bucket.put("lists/l.parquet", write_parquet(path.with_name("stored.parquet"), table).read_bytes())
    elif path.is_dir():
        uri = bucket.put_folder(path, path.name)
    else:
        uri = bucket.put(path.name, path.read_bytes())
    uri = uri.replace("?", f"#{column}?", 1) if column else uri
    assert_same(pixels_in(uri))


def test_a_pattern_finds_tables_of_a_store(sources: dict[str, Path], bucket: Bucket) -> None:
    bucket.put_folder(sources["partitioned parquet"], "patterns")
    bucket.put_folder(sources["lance"], "patterns/t.lance")
    assert_same(pixels_in(bucket.uri("patterns/class=*/*.parquet")))
    assert_same(pixels_in(bucket.uri("patterns/**/*.parquet")))
    assert_same(pixels_in(bucket.uri("patterns/*.lance")))


def test_patterns_find_tables(sources: dict[str, Path]) -> None:
    top = sources["parquet"].parent
    assert_same(pixels_in(f"{top}/partitioned/*/*.parquet"))
    assert_same(pixels_in(f"{top}/**/part-*.parquet"))
    assert_same(pixels_in(f"{top}/t*.lance"))
    assert_same(pixels_in(f"{top}/*.pq#photo"))


def test_rows_are_named_after_the_table_and_their_name_path_or_number(tmp_path: Path) -> None:
    data = PHOTOS["00.png"]
    for columns, name in (
        ({"image": [data], "id": [7]}, "7"),
        ({"image": [data], "__key__": ["a/b"]}, "a/b"),
        ({"image": [data], "name": pyarrow.array(["x"]).dictionary_encode()}, "x"),
        ({"image": [{"bytes": data, "path": "p.png"}]}, "p.png"),
        ({"image": [{"bytes": data}]}, "000000"),
        ({"image": [data], "name": [None]}, "000000"),
        ({"image": [data], "name": ["n" * 5000]}, "000000"),
        ({"jpg": [data], "label": ["cat"]}, "000000"),
        ({"my own": [data], "label": ["cat"]}, "000000"),
    ):
        path = write_parquet(tmp_path / "t.parquet", pyarrow.table(columns))
        assert names_of(read(path)) == [f"{path}/{name}"]


def test_of_several_columns_of_bytes_the_usual_name_is_taken_or_the_one_that_is_given(tmp_path: Path) -> None:
    other = encoded(photo(), "PNG")
    table = pyarrow.table({"mask": [other], "image": [PHOTOS["00.png"]], "extra": [b"x"]})
    path = write_parquet(tmp_path / "t.parquet", table)
    assert np.array_equal(pixels_in(path)[0], noise(seed=0))
    assert np.array_equal(pixels_in(f"{path}#mask")[0], photo())
    assert names_of(read(f"{path}#mask")) == [f"{path}#mask/000000"]
    assert np.array_equal(pixels_in(f"{tmp_path}/#mask")[0], photo())
    for source in (f"{path}#nothing", write_parquet(tmp_path / "two.parquet", table.drop_columns("image"))):
        refusal = refusal_of(source)
        assert (refusal.name, refusal.reason) == (str(source), RefusalReason.UNSUPPORTED)
        assert "mask" in refusal.detail
    assert "image" in IMAGE_COLUMNS


def test_a_file_whose_name_holds_the_mark_of_a_column_is_a_file(tmp_path: Path) -> None:
    assert_same(pixels_in(write_parquet(tmp_path / "t.parquet#x.parquet")))
    (tmp_path / "a#b.png").write_bytes(PHOTOS["00.png"])
    assert len(read(tmp_path / "a#b.png")) == 1


def test_tables_without_images_are_passed_over_in_folders_and_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PHOTOS["00.png"])
    labels = write_parquet(tmp_path / "labels.parquet", pyarrow.table({"label": [1]}))
    write_parquet(tmp_path / "paths.parquet", pyarrow.table({"path": ["/etc/hostname"]}))
    assert names_of(read(tmp_path)) == names_of(read(f"{tmp_path}/*")) == [str(tmp_path / "a.png")]
    assert refusal_of(labels).reason is RefusalReason.UNSUPPORTED
    assert refusal_of(f"{tmp_path}/lab*.parquet").reason is RefusalReason.UNSUPPORTED
    (tmp_path / "a.png").unlink()
    with pytest.raises(NoImagesError, match="column"):
        list(accepted(read_images(tmp_path), RefusalReport()))


def test_a_row_that_is_bad_is_one_refusal(tmp_path: Path) -> None:
    path_alone = {"bytes": None, "path": "beside.png"}
    rows: list[Any] = [
        *STRUCTS[:1],
        None,
        {"bytes": b"", "path": "x"},
        {"bytes": b"text", "path": "x"},
        {"bytes": None},
    ]
    rows += [path_alone, {"bytes": b"\0" * 50_000, "path": "large"}, {"bytes": None, "path": "nowhere.png"}]
    (tmp_path / "beside.png").write_bytes(PHOTOS["01.png"])
    expected = [None, "empty", "empty", "not_an_image", "empty", None, "too_large", "missing"]
    for path in (
        write_parquet(tmp_path / "t.parquet", pyarrow.table({"image": rows})),
        write_lance(tmp_path / "t.lance", pyarrow.table({"image": rows})),
        write_arrow(tmp_path / "t.arrow", pyarrow.table({"image": rows})),
    ):
        stream = read(path, Limits(max_bytes=20_000))
        assert [getattr(item, "reason", None) for item in stream] == expected


@pytest.mark.parametrize("damage", ["cut", "no table", "empty", "noise", "footer"])
@pytest.mark.parametrize("kind", ["parquet", "arrow stream", "arrow file"])
def test_a_damaged_table_is_refused_by_name_and_the_rest_goes_on(
    sources: dict[str, Path], tmp_path: Path, kind: str, damage: str
) -> None:
    data = bytearray(sources[kind].read_bytes())
    length = len(data)
    if damage == "cut":
        del data[length // 2 :]
    elif damage == "no table":
        data = bytearray(b"not a table" * 100)
    elif damage == "empty":
        data.clear()
    elif damage == "noise":
        data[length // 3 : length // 3 + 2000] = os.urandom(2000)
    else:
        data[-300:-20] = b"\xff" * 280
    path = tmp_path / sources[kind].name
    path.write_bytes(data)
    stream = read([path, sources["folder"]])
    assert all(isinstance(item, NamedImage) for item in stream[-10:])
    refused = [item for item in stream if isinstance(item, Refusal)]
    assert {item.name[: len(str(path))] for item in refused} == {str(path)}
    if damage in ("cut", "no table", "empty"):  # otherwise it may be one image of it that is damaged
        assert (refused[-1].name, refused[-1].reason) == (str(path), RefusalReason.TRUNCATED)


def test_bytes_changed_anywhere_in_a_table_never_crash(sources: dict[str, Path], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for kind in ("parquet", "arrow stream", "arrow file", "list in parquet"):
        whole = sources[kind].read_bytes()
        path = tmp_path / sources[kind].name
        for _ in range(40):
            data = bytearray(whole)
            for place in rng.integers(0, len(data), 8):
                data[place] ^= 1 << int(rng.integers(8))
            for place in rng.integers(max(0, len(data) - 1500), len(data), 2):  # where the metadata are
                data[place] = int(rng.integers(256))
            path.write_bytes(data)
            assert len(read(path)) <= 30


def test_a_damaged_lance_dataset_is_refused(sources: dict[str, Path], tmp_path: Path) -> None:
    path = write_lance(tmp_path / "t.lance")
    for file in (path / "data").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    assert refusal_of(path).reason is RefusalReason.TRUNCATED
    for file in (path / "_versions").iterdir():
        file.write_bytes(b"nothing")
    assert refusal_of(path).reason is RefusalReason.TRUNCATED
    assert len(read([path, sources["folder"]])) == 11


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"[]",
        b"{}",
        b'{"_data_files": [{}]}',
        b'{"_data_files": [{"filename": "../../secret.arrow"}]}',
        b'{"_data_files": [{"filename": "/etc/passwd"}]}',
        b'{"_indices_files": [{"filename": "x"}], "_data_files": []}',
        b"[" * 100_000,
    ],
)
def test_a_saved_dataset_with_a_bad_description_is_refused(tmp_path: Path, state: bytes) -> None:
    (tmp_path / "dataset_info.json").write_bytes(b"{}")
    (tmp_path / "state.json").write_bytes(state)
    refusal = refusal_of(tmp_path)
    assert refusal.name == str(tmp_path)
    assert refusal.reason in (RefusalReason.TRUNCATED, RefusalReason.UNSUPPORTED)


def test_shards_of_tables_are_small_and_tell_when_they_changed(sources: dict[str, Path], tmp_path: Path) -> None:
    count = {"parquet": 1, "partitioned parquet": 2, "lance": 3, "saved dataset": 3, "saved splits": 2}
    for kind, expected in count.items():
        shards = list(list_source(sources[kind]).entries(DEFAULT_LIMITS))
        assert len(shards) == expected
        assert len({shard.name for shard in shards}) == expected
        assert all(isinstance(shard, Shard) and shard.stamp for shard in shards)
        assert pickle.loads(pickle.dumps(shards)) == shards
        assert_same(pixels_in(shards))
        assert count_images(sources[kind]) is None
    path = write_lance(tmp_path / "t.lance")
    (before,) = list_source(path).entries(DEFAULT_LIMITS)
    write_lance(path, mode="append")
    again, added = list_source(path).entries(DEFAULT_LIMITS)
    assert isinstance(before, Shard)
    assert isinstance(again, Shard)
    assert isinstance(added, Shard)
    assert again.stamp == before.stamp != added.stamp


def test_one_large_value_for_many_rows_does_not_fill_the_memory(tmp_path: Path) -> None:
    """A dictionary holds it once in the file; the rows, all at once, would take 400 gigabytes."""
    large = b"\xff\xd8\xff" + b"\0" * 4_000_000
    table = pyarrow.table({"image": pyarrow.DictionaryArray.from_arrays(np.zeros(100_000, np.int32), [large])})
    for has_schema in (True, False):
        options = {"compression": "zstd", "dictionary_pagesize_limit": 2**30, "store_schema": has_schema}
        path = write_parquet(tmp_path / "t.parquet", table, **options)
        assert path.stat().st_size < 100_000
        stream = read_images(path, workers=1, limits=Limits(max_bytes=1_000_000))
        refused = [item for item in itertools.islice(stream, 50) if isinstance(item, Refusal)]
        assert [item.reason for item in refused] == [RefusalReason.TOO_LARGE] * 50
        stream.close()


def test_deleted_rows_and_blobs_of_a_lance_dataset(tmp_path: Path) -> None:
    import lance

    blob = pyarrow.field("image", pyarrow.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pyarrow.schema([blob, pyarrow.field("name", pyarrow.string())])
    table = pyarrow.table({"image": list(PHOTOS.values()), "name": list(PHOTOS)}, schema=schema)
    path = write_lance(tmp_path / "t.lance", table, data_storage_version="2.1")
    assert_same(pixels_in(path))
    lance.dataset(str(path)).delete("name in ('00.png', '04.png')")
    assert [Path(name).name for name in names_of(read(path))] == [
        f"0{number}.png" for number in (1, 2, 3, 5, 6, 7, 8, 9)
    ]


@pytest.mark.parametrize(("module", "name"), [("pyarrow", "t.parquet"), ("pyarrow", "saved"), ("lance", "t.lance")])
def test_a_package_that_is_missing_is_named(
    sources: dict[str, Path], monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    top = sources["parquet"].parent
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match="discopatch"):
        read(top / name)
    assert RefusalReason.UNREADABLE in [getattr(item, "reason", None) for item in read([top / name, sources["tar"]])]
    assert len(read(sources["tar"].parent)) >= 10  # a folder that holds it, too, is read as before


def test_a_lance_dataset_of_a_bucket_that_is_not_there_is_an_error(bucket: Bucket) -> None:
    with pytest.raises(StoreError):
        read(f"s3://nowhere/t.lance?{bucket.options}")


READ = """
import re, sys
from pathlib import Path
from discopatch.images import read_images
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
for small in read_images(sys.argv[1], workers=2):
    pass
before, count = peak(), 0
for item in read_images(sys.argv[2], workers=2):
    count += 1
print(count, peak() - before)
"""


def large_rows(count: int) -> Iterator[bytes]:
    header = encoded(photo(), "PNG")
    return (header + os.urandom(1_000_000) for _ in range(count))  # what follows an image is not looked at


def write_large(kind: str, path: Path, count: int) -> Path:
    """Each a way in which such shards are written; in all of them a reader could hold the whole."""
    if kind == "tar":
        return write_shard(path, {f"{number}.png": data for number, data in enumerate(large_rows(count))})
    rows = list(large_rows(count))
    if kind == "structs.parquet":
        return write_parquet(path, pyarrow.table({"image": [{"bytes": data} for data in rows]}), row_group_size=20)
    table = pyarrow.table({"image": rows})
    if kind == "lance":
        return write_lance(path, table)
    return write_parquet(path, table, row_group_size=count, write_batch_size=1)  # one group of many pages


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        ("tar", False),
        ("parquet", False),
        ("structs.parquet", False),
        ("lance", False),
        ("tar", True),
        ("parquet", True),
    ],
)
def test_memory_does_not_grow_with_a_shard_of_half_a_gigabyte(
    tmp_path: Path, bucket: Bucket, kind: str, stored: bool
) -> None:
    sources = [str(write_large(kind, tmp_path / f"{count}.{kind}", count)) for count in (40, 500)]
    if stored:
        sources = [bucket.put(Path(each).name, Path(each).read_bytes()) for each in sources]
    done = subprocess.run([sys.executable, "-c", READ, *sources], capture_output=True, text=True, check=True)
    count, grown = map(int, done.stdout.split())
    assert count == 500
    assert grown < 120, f"{grown} MiB"
