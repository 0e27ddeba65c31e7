"""Where the images of tar shards lie: each can be read by itself, and is what the shard gives from front to back."""

import gzip
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from discopatch.errors import NoImagesError, ParameterError
from discopatch.images import Limits, NamedImage, Refusal, RefusalReason, open_index, read_images
from discopatch.images.tar import TarReader
from tests.training.shards import add, write_shards


def test_each_image_is_the_one_that_the_shard_gives_from_front_to_back(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", (5, 1, 3))
    index = open_index(str(shards), tmp_path / "cache")
    assert index.counts.tolist() == [5, 1, 3]
    expected = list(read_images(str(shards)))
    for number in (8, 0, 5, 4, 6):
        (found,) = read_images([index.item(number)])
        due = expected[number]
        assert isinstance(found, NamedImage)
        assert isinstance(due, NamedImage)
        assert found.name == due.name
        assert np.array_equal(found.pixels, due.pixels)


def test_a_shard_is_listed_once_and_again_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards, listed = write_shards(tmp_path / "shards", (3, 2)), []
    original = TarReader.__init__

    def open_and_note(reader: TarReader, path: Path) -> None:
        listed.append(path.name)
        original(reader, path)

    monkeypatch.setattr(TarReader, "__init__", open_and_note)
    first = open_index(str(shards), tmp_path / "cache")
    assert sorted(listed) == ["shard-000.tar", "shard-001.tar"]
    assert open_index(str(shards), tmp_path / "cache").digest == first.digest
    assert len(listed) == 2
    with tarfile.open(shards / "shard-001.tar", "a") as archive:
        add(archive, "new.png", b"x" * 700)
    assert len(open_index(str(shards), tmp_path / "cache")) == 6
    assert listed[2:] == ["shard-001.tar"]


def test_a_damaged_index_is_made_again(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", (3,))
    first = open_index(str(shards), tmp_path / "cache")
    (stored,) = (tmp_path / "cache" / "shards").iterdir()
    whole = stored.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"PK" + whole[2:100]):
        stored.write_bytes(damaged)
        assert open_index(str(shards), tmp_path / "cache").digest == first.digest


def test_the_digest_is_the_same_wherever_the_shards_lie(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", (3, 2))
    shutil.copytree(shards, tmp_path / "elsewhere")
    here, there = (open_index(str(tmp_path / name), tmp_path / "cache") for name in ("shards", "elsewhere"))
    assert here.digest == there.digest
    (tmp_path / "elsewhere" / "shard-001.tar").unlink()
    assert open_index(str(tmp_path / "elsewhere"), tmp_path / "cache").digest != here.digest


def test_what_is_refused_unread_is_told_and_not_listed(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", (3,))
    with tarfile.open(shards / "shard-000.tar", "a") as archive:
        add(archive, "empty.png", b"")
        add(archive, "inside.tar", b"x" * 2000)
        add(archive, "label.txt", b"cat")
        add(archive, ".hidden.png", b"x" * 2000)
        add(archive, "large.png", b"x" * 200_000)
    index = open_index(str(shards), tmp_path / "cache", limits=Limits(max_bytes=100_000))
    assert len(index) == 3
    assert index.report.refused == {
        RefusalReason.EMPTY: 1,
        RefusalReason.UNSUPPORTED: 1,
        RefusalReason.TOO_LARGE: 1,
    }
    again = open_index(str(shards), tmp_path / "cache", limits=Limits(max_bytes=100_000))
    assert again.report == index.report
    assert len(open_index(str(shards), tmp_path / "cache")) == 4


def test_of_a_shard_that_is_cut_short_what_comes_before_stays(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", (4,))
    path = shards / "shard-000.tar"
    last = open_index(str(shards), tmp_path / "cache").offsets[-1]
    os.truncate(path, int(last) + 100)
    index = open_index(str(shards), tmp_path / "cache")
    assert index.report.refused == {RefusalReason.TRUNCATED: 1}
    found = list(read_images(index.item(number) for number in range(len(index))))
    assert [isinstance(each, NamedImage) for each in found[:3]] == [True] * 3
    assert all(isinstance(each, Refusal) for each in found[3:])


def test_other_sources_say_what_to_do(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", (2,))
    (tmp_path / "packed.tar.gz").write_bytes(gzip.compress((shards / "shard-000.tar").read_bytes()))
    with pytest.raises(ParameterError, match="compressed"):
        open_index(str(tmp_path / "packed.tar.gz"), tmp_path / "cache")
    with pytest.raises(ParameterError, match="no tar shard"):
        open_index([np.zeros((64, 64, 3), np.uint8)], tmp_path / "cache")
    with tarfile.open(tmp_path / "nothing.tar", "w") as archive:
        add(archive, "label.txt", b"cat")
    with pytest.raises(NoImagesError):
        open_index(str(tmp_path / "nothing.tar"), tmp_path / "cache")
