"""Paths, folders, patterns, images in memory, tar shards, and any mixture of them."""

import glob
import io
import itertools
import os
import re
import subprocess
import sys
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from discopatch.errors import NoImagesError, ParameterError
from discopatch.images import Limits, NamedImage, Refusal, RefusalReason, count_images, read_images

from .samples import encoded, names_of, noise, photo, pixels_of, read, refusal_of

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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five images, and much that is none."""
    for name in ("b.jpg", "a.PNG", "sub/c.tif", "sub/deep/d.webp", "z.bmp"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(photo(), {"jpg": "JPEG", "tif": "TIFF"}.get(name[-3:], name[name.index(".") + 1 :])))
    for name in ("notes.txt", ".hidden.jpg", "._a.PNG", ".cache/x.jpg", "Thumbs.db", "sub/labels.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("not an image")
    return tmp_path


def relative(stream: list[NamedImage | Refusal], folder: Path) -> list[str]:
    assert all(isinstance(item, NamedImage) for item in stream)
    return [str(Path(name).relative_to(folder)) for name in names_of(stream)]


def test_an_empty_path_is_not_the_current_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(NoImagesError):
        read("")
    assert len(read(".")) == 5


def test_a_folder_gives_its_images_to_the_bottom_in_the_order_of_names(folder: Path) -> None:
    expected = ["a.PNG", "b.jpg", "sub/c.tif", "sub/deep/d.webp", "z.bmp"]
    assert relative(read(folder), folder) == expected
    assert relative(read(str(folder)), folder) == expected


def test_folders_are_walked_in_the_order_of_sorted_paths(folder: Path) -> None:
    every = sorted(path for path in folder.rglob("*") if path.suffix in {".PNG", ".jpg", ".tif", ".webp", ".bmp"})
    visible = [path for path in every if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    assert names_of(read(folder)) == [str(path) for path in visible]


def test_a_linked_folder_is_followed_but_never_in_a_circle(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "e.png").write_bytes(encoded(photo(), "PNG"))
    (folder / "link").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(folder)
    assert "link/e.png" in relative(read(folder), folder)
    assert len(read(folder)) == 6


def test_a_folder_of_any_depth_is_read_to_its_bottom(tmp_path: Path) -> None:
    bottom = tmp_path
    for _ in range(1050):
        bottom /= "d"
        bottom.mkdir()
    (bottom / "a.png").write_bytes(encoded(photo(), "PNG"))
    assert names_of(read(tmp_path)) == [f"{bottom}/a.png"]
    (bottom / "a.png").unlink()
    while bottom != tmp_path:  # what pytest itself could not remove
        bottom.rmdir()
        bottom = bottom.parent


def test_folders_that_all_link_to_each_other_come_to_an_end(tmp_path: Path) -> None:
    folders = [tmp_path / f"{number}" for number in range(9)]
    for folder in folders:
        folder.mkdir()
        for other in folders:
            (folder / f"to {other.name}").symlink_to(other)
        (folder / "a.png").write_bytes(b"")
    stream = read(tmp_path)
    assert 9 <= len(stream) < 20_000  # by every way there would be a million
    assert {item.reason for item in stream if isinstance(item, Refusal)} == {
        RefusalReason.EMPTY,
        RefusalReason.UNREADABLE,
    }


def test_patterns_find_files_and_double_stars_search_folders(folder: Path) -> None:
    assert relative(read(f"{folder}/*.jpg"), folder) == ["b.jpg"]
    assert relative(read(f"{folder}/*"), folder) == ["a.PNG", "b.jpg", "z.bmp"]
    assert len(read(f"{folder}/**/*")) == 5
    assert relative(read(f"{folder}/**/[cd].*"), folder) == ["sub/c.tif", "sub/deep/d.webp"]


def test_double_stars_find_what_glob_finds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for pattern in (
        "**/*",
        "**/*.jpg",
        "sub/**/*",
        "**/deep/*",
        "s*/**/*.webp",
        f"{folder}/**/*",
        "**/sub/**/d.*",
        "**",
    ):
        found = filter(os.path.isfile, glob.glob(pattern, recursive=True))  # noqa: PTH207 - the reference
        images = sorted(name for name in found if name.lower().endswith((".jpg", ".png", ".tif", ".webp", ".bmp")))
        assert names_of(read(pattern)) == images


def test_double_stars_do_not_follow_links_in_circles(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(photo(), "PNG"))
    for name in "xyz":
        (tmp_path / name).symlink_to(tmp_path)
    assert names_of(read(f"{tmp_path}/**/*.png")) == [f"{tmp_path}/a.png"]


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "photo[1].png"
    path.write_bytes(encoded(photo(), "PNG"))
    assert names_of(read(path)) == [str(path)]


def test_a_single_file_needs_no_extension(tmp_path: Path) -> None:
    (tmp_path / "upload").write_bytes(encoded(photo(), "PNG"))
    assert np.array_equal(pixels_of(tmp_path / "upload"), photo())


def test_a_source_without_images_is_an_error_at_the_call(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    for source in (tmp_path / "nowhere", tmp_path, f"{tmp_path}/*.jpg"):
        with pytest.raises(NoImagesError, match=re.escape(str(source))):
            read_images(source)
    with pytest.raises(ParameterError, match="int"):
        read_images(3)


def test_inside_a_list_a_source_without_images_is_a_refusal(tmp_path: Path) -> None:
    stream = read([tmp_path / "nowhere", tmp_path, f"{tmp_path}/*.jpg", photo()])
    assert [getattr(item, "reason", None) for item in stream] == [RefusalReason.MISSING] * 3 + [None]


@given(st.lists(st.text(max_size=20)))
@settings(max_examples=50, deadline=None)
def test_entries_of_any_text_never_crash(names: list[str]) -> None:
    absent = [f"nowhere/{name}/*.jpg" for name in names]
    assert len(read(absent)) == len(names)


def test_sources_mix_and_nest(folder: Path) -> None:
    mixture = [
        folder / "b.jpg",
        [photo(), (Image.fromarray(photo()), f"{folder}/*.bmp")],
        encoded(photo(), "PNG"),
    ]
    names = names_of(read(mixture))
    assert names == [f"{folder}/b.jpg", "image-000000", "image-000001", f"{folder}/z.bmp", "image-000002"]


def test_generators_are_sources(folder: Path) -> None:
    assert len(read(path for path in (folder / "sub", folder / "b.jpg"))) == 3


def test_images_keep_their_names_and_refusals_their_reasons() -> None:
    stream = [NamedImage("mine", photo()), Refusal("lost", RefusalReason.EMPTY, "0 bytes")]
    again = read(stream)
    assert names_of(again) == ["mine", "lost"]
    assert again[1] == stream[1]


def test_arrays_of_every_accepted_type_give_the_same_image() -> None:
    for same in (photo(), photo().astype(np.uint16) * 257, photo() / 255, (photo() / 255).astype(np.float32)):
        assert np.array_equal(pixels_of(same), photo())
        assert np.array_equal(pixels_of(same.astype(same.dtype.newbyteorder())), photo())


def test_arrays_of_every_accepted_shape_are_read() -> None:
    grey = photo()[:, :, 0]
    opaque = np.concatenate([photo(), np.full((48, 64, 1), 255, np.uint8)], axis=2)
    for same in (grey, grey[:, :, None]):
        assert np.array_equal(pixels_of(same), np.repeat(grey[:, :, None], 3, axis=2))
    assert np.array_equal(pixels_of(opaque), photo())
    assert set(np.unique(pixels_of(grey > 128))) == {0, 255}


def test_a_batch_is_as_many_images() -> None:
    stream = read(np.stack([photo(), photo()[::-1]]))
    assert names_of(stream) == ["image-000000", "image-000001"]
    assert isinstance(stream[1], NamedImage)
    assert np.array_equal(stream[1].pixels, photo()[::-1])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64, torch.float16, torch.uint16, torch.bool])
def test_tensors_have_their_channels_first(dtype: torch.dtype) -> None:
    full = {torch.uint8: 255, torch.uint16: 65535}.get(dtype, 1)
    halves = torch.zeros((3, 40, 48), dtype=torch.float64)
    halves[0, :, 24:] = full
    read_back = pixels_of(halves.to(dtype))
    assert (read_back[:, :24] == 0).all()
    assert (read_back[:, 24:] == (255, 0, 0)).all()


def test_tensors_may_be_grey_batched_on_a_graph_or_of_bfloat16() -> None:
    assert pixels_of(torch.rand(40, 48)).shape == (40, 48, 3)
    assert pixels_of(torch.rand(1, 40, 48, requires_grad=True)).shape == (40, 48, 3)
    assert pixels_of(torch.ones(4, 40, 48, dtype=torch.bfloat16)).shape == (40, 48, 3)
    assert len(read(torch.rand(5, 3, 40, 48))) == 5
    assert refusal_of(torch.zeros(40, 48, dtype=torch.int64)).reason is RefusalReason.UNSUPPORTED
    assert refusal_of(torch.zeros(40, 48, 3)).reason is RefusalReason.UNSUPPORTED


def test_images_are_counted_before_they_are_read_where_that_is_possible(folder: Path) -> None:
    lost = Refusal("lost", RefusalReason.EMPTY, "0 bytes")
    mixture = [folder, photo(), np.stack([photo()] * 3), torch.rand(2, 3, 40, 48), Image.fromarray(photo()), b"", lost]
    for source in (folder, f"{folder}/*.jpg", photo(), mixture, [mixture, "nowhere.png"]):
        assert count_images(source) == len(read(source))
    shard = write_shard(folder / "s.tar", MEMBERS)
    for hidden in (shard, [folder, shard], iter([photo()])):
        assert count_images(hidden) is None


def test_a_buffer_that_is_filled_again_and_again_gives_every_image() -> None:
    def frames() -> Iterator[np.ndarray]:
        buffer = np.zeros((32, 32, 3), np.uint8)
        for level in range(50):
            buffer[:] = level
            yield buffer

    levels = [item.pixels[0, 0, 0] for item in read_images(frames(), workers=4) if isinstance(item, NamedImage)]
    assert levels == list(range(50))


@pytest.mark.parametrize("package", ["torch", "scipy"])
def test_slow_packages_are_not_imported(package: str) -> None:
    code = f"import sys, discopatch.images; sys.exit('{package}' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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
    assert isinstance(stream[1], NamedImage)
    assert np.array_equal(stream[1].pixels, photo())


def test_patterns_and_lists_find_shards(tmp_path: Path) -> None:
    shards = [write_shard(tmp_path / f"{number}.tar", MEMBERS) for number in range(3)]
    assert len(read(f"{tmp_path}/*.tar")) == len(read(shards)) == 9


def test_a_member_path_that_climbs_out_writes_nothing(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    shard = write_shard(inside / "s.tar", {"../../etc/x.jpg": MEMBERS["000.jpg"], "/abs/y.jpg": MEMBERS["000.jpg"]})
    before = sorted(tmp_path.rglob("*"))
    assert all(isinstance(item, NamedImage) for item in read(shard))
    assert sorted(tmp_path.rglob("*")) == before


def test_links_and_devices_among_the_members_are_ignored(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            header = tarfile.TarInfo("password.jpg")
            header.type, header.linkname = kind, "/etc/passwd"
            archive.addfile(header)
    assert refusal_of(tmp_path / "s.tar").reason is RefusalReason.MISSING


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("share", [0.35, 0.5, 0.75])
def test_a_truncated_archive_is_refused_and_what_came_before_stays(tmp_path: Path, mode: str, share: float) -> None:
    shard = write_shard(tmp_path / "s.tar", {f"{n}.png": encoded(noise(seed=n), "PNG") for n in range(10)}, mode)
    os.truncate(shard, int(shard.stat().st_size * share))
    *before, last = read(shard)
    assert 2 <= len(before) <= 8
    assert all(isinstance(item, NamedImage) for item in before)
    assert isinstance(last, Refusal)
    assert (last.name, last.reason) == (str(shard), RefusalReason.TRUNCATED)


@pytest.mark.parametrize("damage", ["cut between two members", "broken header"])
def test_only_the_end_mark_is_taken_for_the_end_of_an_archive(tmp_path: Path, damage: str) -> None:
    shard = write_shard(tmp_path / "s.tar", {f"{n}.png": encoded(noise(seed=n), "PNG") for n in range(4)})
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


def test_a_bad_member_is_one_refusal(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", {"a.jpg": b"", "b.jpg": b"text", "c.png": MEMBERS["deep/001.png"]})
    assert [getattr(item, "reason", None) for item in read(shard)] == [
        RefusalReason.EMPTY,
        RefusalReason.NOT_AN_IMAGE,
        None,
    ]


def test_a_member_of_too_many_bytes_is_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", {"a.png": b"\0" * 50_000, "b.png": MEMBERS["deep/001.png"]})
    first, second = read(shard, Limits(max_bytes=20_000))
    assert isinstance(first, Refusal)
    assert first.reason is RefusalReason.TOO_LARGE
    assert isinstance(second, NamedImage)


def test_skip_goes_into_shards(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", MEMBERS)
    assert [item.name for item in read_images(shard, skip=2)] == [f"{shard}/002.webp"]


def test_closing_early_closes_the_archive(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", MEMBERS)
    for workers in (1, 2):
        stream = read_images([shard] * 50, workers=workers)
        next(stream)
        stream.close()  # an archive left open would be a ResourceWarning, and so an error


def test_memory_does_not_grow_with_the_archive(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", {f"{n:05}.bmp": b"BM" + b"\0" * 100 for n in range(4000)})
    stream = read_images(shard, workers=1)
    list(itertools.islice(stream, 100))
    tracemalloc.start()
    for _ in range(3000):
        next(stream)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    stream.close()
    assert grown < 300_000
