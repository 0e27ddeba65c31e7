"""Large shards in several parts: the rows of one part, also when the shard is damaged or has changed."""

import os
import tarfile
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from discopatch import Detector
from discopatch.batch import open_scores, read_scores, score_to
from discopatch.errors import RunError
from discopatch.images import Shard
from discopatch.images.shards import split_shard
from tests.images.s3 import s3_bucket
from tests.images.samples import encoded
from tests.images.test_tar import write_shard
from tests.samples import one_camera

from .samples import contents, part_files, score_first

PADDING = bytes(2**20)  # of notes, so that a small archive is large


def archive(path: Path, count: int, *, seed: int = 0, long: bool = False) -> Path:
    """Images, between them labels, a file that is passed over, and one image that is no image."""
    members = dict[str, bytes]()
    for number, image in enumerate(one_camera(count, seed=seed)):
        name = f"{'long/' * 60 if long else ''}{number}"
        members |= {f"{name}.png": encoded(image.pixels, "PNG"), f"{name}.txt": PADDING}
    return write_shard(path, members | {"2.mp4": b"film", "3.png": b"no image", "last.mp4": b"film"})


def table(path: Path, count: int, group: int, *, names: bool = True) -> Path:
    rows = [
        {"image": encoded(image.pixels, "PNG") if number != 4 else b"no image", "name": f"same-{number // 2}"}
        for number, image in enumerate(one_camera(count))
    ]
    content = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(content if names else content.drop_columns("name"), path, row_group_size=group)
    return path


def rows_of(out: Path | str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_scores(out).to_table().to_pylist()
    return found


def sizes(out: Path) -> list[int]:
    return [pyarrow.parquet.read_metadata(path).num_rows for path in part_files(out)]


@pytest.mark.parametrize("long", [False, True])
def test_a_large_archive_is_several_parts_with_the_rows_of_one(tiny: Detector, tmp_path: Path, long: bool) -> None:
    source = archive(tmp_path / "a.tar", 10, long=long)
    score_to(tiny, source, tmp_path / "one", per_part=1000)
    score_first(1, tiny, source, tmp_path / "many", per_part=3)
    run = score_to(tiny, source, tmp_path / "many", per_part=3, workers=2)
    assert (run.before, run.parts, run.total) == (1, 3, 7 + long)
    assert sizes(tmp_path / "one") == [10 + long]
    assert sizes(tmp_path / "many") == [3, 3, 3, 1 + long]
    assert rows_of(tmp_path / "many") == rows_of(tmp_path / "one")
    one, many = (open_scores(tmp_path / name).summary() for name in ("one", "many"))
    assert one == many
    assert many.reading.passed_over == 2


@pytest.mark.parametrize("names", [True, False])
def test_a_table_is_split_between_row_groups(tiny: Detector, tmp_path: Path, names: bool) -> None:
    source = table(tmp_path / "a.parquet", 11, 2, names=names)
    score_to(tiny, source, tmp_path / "one")
    run = score_to(tiny, source, tmp_path / "many", per_part=5)
    assert run.total == 11
    assert sizes(tmp_path / "many") == [4, 4, 3]
    assert rows_of(tmp_path / "many") == rows_of(tmp_path / "one")
    assert [row["row"] for row in rows_of(tmp_path / "many")] == list(range(11))


def test_small_and_compressed_archives_and_large_row_groups_are_not_split(tmp_path: Path) -> None:
    source = archive(tmp_path / "a.tar", 6)
    assert len(split_shard(Shard(source), 2)) == 3
    assert split_shard(Shard(source), 7) == [None]
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as packed:
        packed.add(__file__, "0.png")
    os.truncate(tmp_path / "a.tar.gz", 10**9)
    assert split_shard(Shard(tmp_path / "a.tar.gz"), 2) == [None]
    small = write_shard(tmp_path / "small.tar", {f"{number}.png": b"image" for number in range(6)})
    assert split_shard(Shard(small), 2) == [None]
    assert split_shard(Shard(table(tmp_path / "a.parquet", 6, 6)), 2) == [None]
    (tmp_path / "b.parquet").write_bytes(b"PAR1 cut short")
    assert split_shard(Shard(tmp_path / "b.parquet"), 2) == [None]


@pytest.mark.parametrize("keep", [0.45, 0.95])
def test_a_damaged_archive_is_read_up_to_the_damage_and_repaired(tiny: Detector, tmp_path: Path, keep: float) -> None:
    source, out = archive(tmp_path / "a.tar", 9), tmp_path / "scores"
    whole = source.read_bytes()
    os.truncate(source, int(keep * len(whole)))
    score_to(tiny, source, tmp_path / "one")
    score_to(tiny, source, out, per_part=2)
    assert len(part_files(out)) > 1
    assert rows_of(out) == rows_of(tmp_path / "one")
    assert open_scores(out).summary().reading.damaged.keys() == {str(source)}
    assert open_scores(out).summary() == open_scores(tmp_path / "one").summary()

    source.write_bytes(whole)
    with pytest.raises(RunError, match="--retry"):
        score_to(tiny, source, out)
    score_to(tiny, source, out, retry=True)
    score_to(tiny, source, tmp_path / "expected", per_part=2)
    assert rows_of(out) == rows_of(tmp_path / "expected")
    assert len(part_files(out)) == 5


@pytest.mark.parametrize("count", [1, 4, 9])
def test_a_shard_that_changed_before_it_was_scored_is_planned_again(tiny: Detector, tmp_path: Path, count: int) -> None:
    """With fewer, as many or more parts."""
    source, out = tmp_path / "in", tmp_path / "scores"
    archive(source / "a.tar", 2, seed=1)
    archive(source / "b.tar", 5)
    score_first(1, tiny, source, out, per_part=2)
    archive(source / "b.tar", count, seed=2)
    run = score_to(tiny, source, out)
    expected = score_to(tiny, source, tmp_path / "expected", per_part=2)
    assert run.parts + 1 == len(run.folder.parts) == expected.parts
    assert rows_of(out) == rows_of(tmp_path / "expected")
    assert score_to(tiny, source, out).parts == 0


@pytest.mark.slow
def test_shards_of_a_bucket_are_split(tiny: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discopatch.images.shards._STORED", 1)
    archive(tmp_path / "in" / "a.tar", 5)
    table(tmp_path / "in" / "b.parquet", 5, 2)
    with s3_bucket() as bucket:
        source = bucket.put_folder(tmp_path / "in", "in")
        score_to(tiny, source, bucket.uri("one"))
        score_to(tiny, source, bucket.uri("many"), per_part=2)
        assert len(open_scores(bucket.uri("many")).parts) == 6
        assert rows_of(bucket.uri("many")) == rows_of(bucket.uri("one"))
        assert contents(tmp_path) == {}
