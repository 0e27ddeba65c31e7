"""Tar shards: read as a stream in bounded memory, damaged or not."""

import io
import os
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from discopatch.images import Limits, NamedImage, Refusal, RefusalReason, Shard, list_source

from .bombs import END, GOOD, header, member, pax_record, with_checksum
from .samples import encoded, names_of, noise, photo, read, refusal_of

PNG = encoded(photo(), "PNG")
MEMBERS = {
    "000.jpg": encoded(photo(), "JPEG"),
    "000.json": b'{"label": 3}',
    "deep/001.png": PNG,
    "deep/._001.png": b"resource fork",
    "002.webp": encoded(photo(), "WEBP"),
}
IMAGES = ["000.jpg", "deep/001.png", "002.webp"]


def write_shard(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def numbered(count: int) -> dict[str, bytes]:
    return {f"{number}.png": encoded(noise(seed=number), "PNG") for number in range(count)}


@pytest.mark.parametrize(("name", "mode"), [("s.tar", "w"), ("s.tgz", "w:gz")])
def test_only_image_members_are_read_and_named_after_the_shard(tmp_path: Path, name: str, mode: str) -> None:
    shard = write_shard(tmp_path / name, MEMBERS, mode)
    stream = read(tmp_path)
    assert names_of(stream) == [f"{shard}/{member}" for member in IMAGES]
    assert isinstance(stream[1], NamedImage)
    assert np.array_equal(stream[1].pixels, photo())


@pytest.mark.parametrize(("name", "mode"), [("s.tar", "w"), ("s.tgz", "w:gz")])
def test_members_are_images_by_their_first_bytes_too(tmp_path: Path, name: str, mode: str) -> None:
    members = {"noext": PNG, "b.jpg_large": MEMBERS["000.jpg"], "film.mp4": PNG[1:], "c.bin": b"x", "d.png": PNG}
    shard = write_shard(tmp_path / name, members, mode)
    source = list_source(shard)
    stream = read(source)
    assert names_of(stream) == [f"{shard}/{each}" for each in ("noext", "b.jpg_large", "d.png")]
    assert [isinstance(each, NamedImage) for each in stream] == [True] * 3
    assert (source.reading.passed_over, source.reading.names) == (2, [f"{shard}/film.mp4", f"{shard}/c.bin"])
    assert (Shard(shard).count(), source.reading.passed_over) == (3, 2)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("a/0.jpg", "a/0.seg.png"), True),
        (("a/0.seg.png", "a/0.jpg"), True),
        (("a/0.jpg", "b/0.png"), False),
        (("2024.01.05.jpg", "2024.01.06.jpg"), False),
        (("0.left.jpg", "0.right.jpg"), False),
    ],
)
def test_two_images_of_one_sample_are_noted(tmp_path: Path, names: tuple[str, str], found: bool) -> None:
    source = list_source(write_shard(tmp_path / "s.tar", dict.fromkeys(names, PNG)))
    assert len(read(source)) == 2
    assert bool(source.reading.several) == found


def test_members_are_chosen_by_the_end_of_their_names(tmp_path: Path) -> None:
    members = dict.fromkeys(("0.JPG", "0.seg.png", "1.png", ".2.png", "2.jpg.txt"), PNG)
    shard = write_shard(tmp_path / "s.tar", members)
    for chosen, expected in (("jpg", ["0.JPG"]), ("jpg,png", ["0.JPG", "1.png"]), ("seg.png", ["0.seg.png"])):
        for source in (list_source(tmp_path, member=chosen), f"{shard}#{chosen}"):
            assert [Path(name).name for name in names_of(read(source))] == expected
    assert refusal_of(f"{shard}#webp").reason is RefusalReason.MISSING


def test_members_that_climb_out_write_nothing_and_links_are_ignored(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "inside" / "s.tar", {"../../etc/x.jpg": PNG, "/abs/y.jpg": PNG})
    with tarfile.open(shard, "a") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            info = tarfile.TarInfo("password.jpg")
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    before = sorted(tmp_path.rglob("*"))
    assert [isinstance(item, NamedImage) for item in read(shard)] == [True, True]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("mode", "share"), [("w", 0.35), ("w:gz", 0.75)])
def test_a_truncated_archive_is_refused_and_what_came_before_stays(tmp_path: Path, mode: str, share: float) -> None:
    shard = write_shard(tmp_path / "s.tar", numbered(10), mode)
    os.truncate(shard, int(shard.stat().st_size * share))
    *before, last = read(shard)
    assert 2 <= len(before) <= 8
    assert all(isinstance(item, NamedImage) for item in before)
    assert isinstance(last, Refusal)
    assert (last.name, last.reason) == (str(shard), RefusalReason.TRUNCATED)


@pytest.mark.parametrize("damage", ["cut between two members", "broken header"])
def test_only_the_end_mark_is_taken_for_the_end_of_an_archive(tmp_path: Path, damage: str) -> None:
    shard = write_shard(tmp_path / "s.tar", numbered(4))
    with tarfile.open(shard) as archive:
        third = archive.getmembers()[2].offset
    data = shard.read_bytes()
    rest = b"" if damage == "cut between two members" else b"\xff" * 100 + data[third + 100 :]
    shard.write_bytes(data[:third] + rest)
    *before, last = read(shard)
    assert len(before) == 2
    assert isinstance(last, Refusal)
    assert last.reason is RefusalReason.TRUNCATED


@pytest.mark.parametrize("content", [b"", b"not a tar archive" * 100, b"\x1f\x8b\x08broken"])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s.tar").write_bytes(content)
    assert refusal_of(tmp_path / "s.tar").reason is RefusalReason.TRUNCATED


def test_a_bad_member_is_one_refusal_and_the_rest_goes_on(tmp_path: Path) -> None:
    bad = {"a.jpg": b"", "b.jpg": b"text", "c.png": b"\0" * 50_000, "d.tar": b"x" * 2000, "e.png": PNG}
    stream = read(write_shard(tmp_path / "s.tar", bad), Limits(max_bytes=20_000))
    assert [getattr(item, "reason", None) for item in stream] == [
        *("empty", "not_an_image", "too_large", "unsupported", None)
    ]


def test_sizes_in_binary_and_in_pax_headers_are_understood(tmp_path: Path) -> None:
    binary = bytearray(header("binary.png", 0))
    binary[124:136] = b"\x80" + len(PNG).to_bytes(11)
    padded = PNG + b"\0" * (-len(PNG) % 512)
    pax = member("x", pax_record(b"size", b"%d" % len(PNG)) + pax_record(b"path", b"p/\xc3\xa9.png"), b"x")
    (tmp_path / "s.tar").write_bytes(with_checksum(binary) + padded + pax + header("short", 0) + padded + GOOD + END)
    stream = read(tmp_path / "s.tar")
    assert [Path(name).name for name in names_of(stream)] == ["binary.png", "é.png", "good.png"]
    assert all(isinstance(item, NamedImage) for item in stream)


def test_memory_does_not_grow_with_the_archive(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", {f"{n}.txt": b"" for n in range(3000)} | {"a.png": PNG})
    tracemalloc.start()
    assert Shard(shard).count() == 1
    assert tracemalloc.get_traced_memory()[1] < 300_000
    tracemalloc.stop()
