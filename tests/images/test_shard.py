"""Tar shards in the layout of WebDataset are read as streams and never extracted."""

import io
import itertools
import os
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from discopatch import images
from discopatch.images import Limits, Picture, Reason, Refusal

from .samples import encoded, names_of, noise, photo, read, refusal_of

MEMBERS = {
    "000.jpg": encoded(photo(), "JPEG"),
    "000.json": b'{"label": 3}',
    "000.cls": b"3",
    "deep/001.png": encoded(photo(), "PNG"),
    "deep/001.txt": b"an astronaut",
    "deep/._001.png": b"resource fork",
    "002.webp": encoded(photo(), "WEBP"),
}
IMAGES = ["000.jpg", "deep/001.png", "002.webp"]


def write_shard(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return path


@pytest.mark.parametrize(("name", "mode"), [("s.tar", "w"), ("s.tar.gz", "w:gz"), ("s.tgz", "w:gz")])
def test_only_image_members_are_read_and_named_after_the_shard(tmp_path: Path, name: str, mode: str) -> None:
    shard = write_shard(tmp_path / name, MEMBERS, mode)
    stream = read(shard)
    assert names_of(stream) == [f"{shard}/{member}" for member in IMAGES]
    assert isinstance(stream[1], Picture)
    assert np.array_equal(stream[1].pixels, photo())


def test_patterns_and_lists_find_shards(tmp_path: Path) -> None:
    shards = [write_shard(tmp_path / f"{number}.tar", MEMBERS) for number in range(3)]
    assert len(read(f"{tmp_path}/*.tar")) == len(read(shards)) == 9


def test_a_member_path_that_climbs_out_writes_nothing(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    shard = write_shard(inside / "s.tar", {"../../etc/x.jpg": MEMBERS["000.jpg"], "/abs/y.jpg": MEMBERS["000.jpg"]})
    before = sorted(tmp_path.rglob("*"))
    assert all(isinstance(item, Picture) for item in read(shard))
    assert sorted(tmp_path.rglob("*")) == before


def test_links_and_devices_among_the_members_are_ignored(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            header = tarfile.TarInfo("password.jpg")
            header.type, header.linkname = kind, "/etc/passwd"
            archive.addfile(header)
    refusal = refusal_of(tmp_path / "s.tar")
    assert refusal.reason is Reason.MISSING
    assert "no images" in refusal.detail


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("share", [0.35, 0.5, 0.75])
def test_a_truncated_archive_is_refused_and_what_came_before_stays(tmp_path: Path, mode: str, share: float) -> None:
    shard = write_shard(tmp_path / "s.tar", {f"{n}.png": encoded(noise(seed=n), "PNG") for n in range(10)}, mode)
    os.truncate(shard, int(shard.stat().st_size * share))
    *before, last = read(shard)
    assert 2 <= len(before) <= 8
    assert all(isinstance(item, Picture) for item in before)
    assert isinstance(last, Refusal)
    assert (last.name, last.reason) == (str(shard), Reason.TRUNCATED)


def test_an_archive_cut_exactly_between_two_members_is_refused_too(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", {f"{n}.png": encoded(noise(seed=n), "PNG") for n in range(4)})
    with tarfile.open(shard) as archive:
        third = archive.getmembers()[2].offset
    os.truncate(shard, third)
    *before, last = read(shard)
    assert len(before) == 2
    assert isinstance(last, Refusal)
    assert last.reason is Reason.TRUNCATED


def test_a_damaged_header_in_the_middle_is_not_taken_for_the_end(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", {f"{n}.png": encoded(noise(seed=n), "PNG") for n in range(4)})
    with tarfile.open(shard) as archive:
        third = archive.getmembers()[2].offset
    data = bytearray(shard.read_bytes())
    data[third : third + 100] = b"\xff" * 100
    shard.write_bytes(data)
    *before, last = read(shard)
    assert len(before) == 2
    assert isinstance(last, Refusal)
    assert last.reason is Reason.TRUNCATED


@pytest.mark.parametrize("content", [b"", b"not a tar archive" * 100, b"\x1f\x8b\x08broken"])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s.tar").write_bytes(content)
    assert refusal_of(tmp_path / "s.tar").reason is Reason.TRUNCATED


def test_a_bad_member_is_one_refusal(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", {"a.jpg": b"", "b.jpg": b"text", "c.png": MEMBERS["deep/001.png"]})
    assert [getattr(item, "reason", None) for item in read(shard)] == [
        Reason.EMPTY,
        Reason.NOT_AN_IMAGE,
        None,
    ]


def test_a_member_of_too_many_bytes_is_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", {"a.png": b"\0" * 50_000, "b.png": MEMBERS["deep/001.png"]})
    first, second = read(shard, Limits(max_bytes=20_000))
    assert isinstance(first, Refusal)
    assert first.reason is Reason.TOO_LARGE
    assert isinstance(second, Picture)


def test_skip_goes_into_shards(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", MEMBERS)
    assert [item.name for item in images.open(shard, skip=2)] == [f"{shard}/002.webp"]


def test_closing_early_closes_the_archive(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", MEMBERS)
    for workers in (1, 2):
        stream = images.open([shard] * 50, workers=workers)
        next(stream)
        stream.close()  # an archive left open would be a ResourceWarning, and so an error


def test_memory_does_not_grow_with_the_archive(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", {f"{n:05}.bmp": b"BM" + b"\0" * 100 for n in range(4000)})
    stream = images.open(shard, workers=1)
    list(itertools.islice(stream, 100))
    tracemalloc.start()
    for _ in range(3000):
        next(stream)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    stream.close()
    assert grown < 300_000
