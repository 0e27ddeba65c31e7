"""Parquet tables and lists of names: the same images as files give, in bounded memory, damaged or not."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest

from discopatch.errors import NoImagesError
from discopatch.images import Limits, NamedImage, Refusal, RefusalReason, list_source, read_images

from .samples import encoded, names_of, noise, photo, pixels_of, read, refusal_of
from .test_tar import write_shard

FILES = {f"{number:02}.png": encoded(noise(40, 40, seed=number), "PNG") for number in range(6)}
DATA = FILES["00.png"]


def write(path: Path, columns: dict[str, object], **options: object) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    parquet.write_table(pyarrow.table(columns), path, **options)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        (tmp_path / "sub" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "sub" / name).write_bytes(data)
    return tmp_path


def structs() -> pyarrow.Array:
    return pyarrow.array([{"bytes": data, "path": name} for name, data in FILES.items()])


@pytest.mark.parametrize("kind", ["large", "structs", "dictionary", "groups"])
def test_every_kind_of_column_gives_the_images_that_files_give(folder: Path, kind: str) -> None:
    values = pyarrow.array(list(FILES.values()), pyarrow.large_binary() if kind == "large" else pyarrow.binary())
    images = {"structs": structs(), "dictionary": values.dictionary_encode()}.get(kind, values)
    options = {"row_group_size": 4} if kind == "groups" else {}
    table = write(folder / "t" / "t.parquet", {"label": list(range(6)), "image": images}, **options)
    expected = [item.pixels for item in read(folder / "sub") if isinstance(item, NamedImage)]
    for source in (table, f"{folder}/t/*.parquet", f"{table}#image"):
        assert np.array_equal([item.pixels for item in read(source) if isinstance(item, NamedImage)], expected)


def test_rows_are_named_after_the_table_and_their_name_path_or_number(tmp_path: Path) -> None:
    rows = list(FILES.values())[:2]
    for columns, names in (
        ({"image": rows, "id": [7, 8]}, ["7", "8"]),
        ({"image": rows, "name": ["a", None]}, ["a", "000001"]),
        ({"photo": structs()[:2]}, ["00.png", "01.png"]),
    ):
        table = write(tmp_path / "t.parquet", columns)
        assert names_of(read(table)) == [f"{table}/{name}" for name in names]


def test_of_several_columns_the_usual_name_is_taken_or_the_one_that_is_given(tmp_path: Path) -> None:
    first, second = list(FILES.values())[:2]
    table = write(tmp_path / "t.parquet", {"thumbnail": [second], "image": [first], "name": ["x"]})
    assert np.array_equal(pixels_of(table), pixels_of(first))
    assert np.array_equal(pixels_of(f"{table}#thumbnail"), pixels_of(second))
    assert refusal_of(f"{table}#label").reason is RefusalReason.UNSUPPORTED
    write(table, {"one": [first], "two": [second]})
    assert refusal_of(table).reason is RefusalReason.UNSUPPORTED


def test_tables_without_images_are_left_out_of_folders_and_refused_by_name(folder: Path) -> None:
    table = write(folder / "labels.parquet", {"label": [1, 2]})
    assert len(read(folder)) == 6
    assert refusal_of(table).reason is RefusalReason.UNSUPPORTED


def test_a_bad_row_is_one_refusal(tmp_path: Path) -> None:
    table = write(tmp_path / "t.parquet", {"image": [DATA, None, b"", b"text", b"x" * 50_000, DATA]})
    reasons = [getattr(item, "reason", None) for item in read(table, Limits(max_bytes=40_000))]
    assert reasons == [None, "empty", "empty", "not_an_image", "too_large", None]


def test_bytes_changed_anywhere_in_a_table_never_crash(tmp_path: Path) -> None:
    table, random = write(tmp_path / "t.parquet", {"image": list(FILES.values())}), np.random.default_rng(0)
    whole = table.read_bytes()
    for cut in (0, 3, len(whole) // 2, len(whole) - 1):
        table.write_bytes(whole[:cut])
        assert refusal_of(table).name == str(table)
    for _ in range(100):
        changed = bytearray(whole)
        changed[int(random.integers(len(whole)))] ^= 1 << int(random.integers(8))
        table.write_bytes(changed)
        assert all(isinstance(item, NamedImage | Refusal) for item in read(table))


@pytest.mark.slow
def test_one_large_value_for_many_rows_does_not_fill_the_memory(tmp_path: Path) -> None:
    large = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 200, pyarrow.int32()), [b"x" * 20_000_000])
    table = write(tmp_path / "t.parquet", {"image": large})
    code = (
        "import resource, sys; from discopatch.images import read_images\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(sum(1 for _ in read_images(sys.argv[1], workers=2)))\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code, table], capture_output=True, text=True, check=True)
    count, grown = map(int, done.stdout.split())
    assert count == 200
    assert grown < 700


def test_lines_of_a_list_are_paths_or_uris_and_each_bad_one_is_a_refusal(folder: Path) -> None:
    names = folder / "names.txt"
    write_shard(folder / "s.tar", {"x.png": DATA})
    good = ["sub/00.png", str(folder / "sub" / "01.png"), (folder / "sub" / "02.png").as_uri(), "s.tar", "./# 1.png"]
    (folder / "# 1.png").write_bytes(DATA)
    bad = ["nowhere.png", "sub", "http://x/y.png", "x" * 9000, "a\0b.png", "s3:///x"]
    names.write_bytes("\r\n".join(["\ufeff# a list", "", *good, *bad]).encode())
    stream = read(names)
    assert [Path(name).name for name in names_of(stream)[:5]] == ["00.png", "01.png", "02.png", "x.png", "# 1.png"]
    assert all(isinstance(item, NamedImage) for item in stream[:5])
    reasons = [item.reason for item in stream if isinstance(item, Refusal)]
    assert reasons == ["missing", "unreadable", "unsupported", "missing", "missing", "unsupported"]
    assert len(read(folder)) == 8  # in folders lists are notes


def test_names_may_stand_in_a_column_of_csv(folder: Path) -> None:
    (folder / "list.csv").write_text('score,path\n0.5,sub/00.png\n0.7,"sub/01.png"\n')
    assert names_of(read(folder / "list.csv")) == [f"{folder}/sub/00.png", f"{folder}/sub/01.png"]
    assert list_source(folder / "list.csv").count == 2


def test_an_image_under_the_name_of_a_list_is_an_image_and_an_empty_list_an_error(tmp_path: Path) -> None:
    (tmp_path / "upload.txt").write_bytes(encoded(photo(), "PNG"))
    assert np.array_equal(pixels_of(tmp_path / "upload.txt"), photo())
    for content in (b"", b"# nothing yet\n\n"):
        (tmp_path / "names.txt").write_bytes(content)
        with pytest.raises(NoImagesError):
            read_images(tmp_path / "names.txt")
