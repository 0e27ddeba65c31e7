"""Paths, folders, patterns, images in memory, tar shards, and any mixture of them."""

import glob
import io
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest
import torch
from PIL import Image

from discopatch.errors import NoImagesError, ParameterError
from discopatch.images import Limits, NamedImage, Refusal, RefusalReason, list_source, read_images

from .samples import encoded, endless, names_of, photo, pixels_of, read, refusal_of
from .test_tar import write_shard


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


def test_files_are_images_by_their_first_bytes_and_others_are_counted(folder: Path) -> None:
    (folder / "noext").write_bytes(encoded(photo(), "PNG"))
    (folder / "sub" / "x.jpg_large").write_bytes(encoded(photo(), "JPEG"))
    (folder / "Makefile").write_text("all:")
    (folder / "gone").symlink_to("nowhere")
    for place in (folder, f"{folder}/**/*"):
        source = list_source(place)
        assert {"noext", "sub/x.jpg_large"} <= set(relative(read(source), folder))
        assert sorted(source.reading.names) == [f"{folder}/Makefile", f"{folder}/gone"]
    os.mkfifo(folder / "pipe")
    assert list_source(folder).reading.passed_over == 3


def test_braces_stand_for_numbers_and_words(folder: Path) -> None:
    for number in range(8, 12):
        write_shard(folder / "shards" / f"s-{number:03}.tar", {"a.png": encoded(photo(), "PNG")})
    (folder / "shards" / "{1,2}.png").write_bytes(encoded(photo(), "PNG"))
    names = relative(read(f"{folder}/shards/s-{{008..011}}.tar"), folder)
    assert names == [f"shards/s-{number}.tar/a.png" for number in ("008", "009", "010", "011")]
    assert relative(read(f"{folder}/{{a,b}}.*"), folder) == ["a.PNG", "b.jpg"]
    assert len(read(f"{folder}/{{shards,sub/../shards}}/s-00{{8..9}}.*")) == 4
    assert relative(read(f"{folder}/shards/{{1,2}}.png"), folder) == ["shards/{1,2}.png"]
    for missing in ("shards/s-{008..012}.tar", "{a,none}.PNG"):
        with pytest.raises(NoImagesError, match=r"s-012|none\.PNG"):
            read(f"{folder}/{missing}")


@pytest.mark.parametrize("name", ["photos.zip", "s.tar.zst", "s.zst", "s.tar.bz2"])
def test_an_archive_that_is_not_read_is_an_error_with_a_remedy(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"PK")
    with pytest.raises(ParameterError, match="unpack it"):
        read(folder / name)
    for source in (folder, [folder / name]):
        (refused,) = (each for each in read(source) if isinstance(each, Refusal))
        assert (refused.reason, "unpack it" in refused.detail) == (RefusalReason.UNSUPPORTED, True)


def relative(stream: list[NamedImage | Refusal], folder: Path) -> list[str]:
    assert all(isinstance(item, NamedImage) for item in stream)
    return [str(Path(name).relative_to(folder)) for name in names_of(stream)]


def test_a_folder_gives_its_images_to_the_bottom_in_the_order_of_names(folder: Path) -> None:
    expected = ["a.PNG", "b.jpg", "sub/c.tif", "sub/deep/d.webp", "z.bmp"]
    assert relative(read(folder), folder) == relative(read(str(folder)), folder) == expected


def test_a_linked_folder_is_followed_but_never_in_a_circle(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "e.png").write_bytes(encoded(photo(), "PNG"))
    (folder / "link").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(folder)
    assert "link/e.png" in relative(read(folder), folder)
    assert len(read(folder)) == 6


def test_double_stars_find_what_glob_finds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for pattern in ("**/*.jpg", "s*/**/*.webp", f"{folder}/**/*", "**/sub/**/d.*", "**"):
        found = filter(os.path.isfile, glob.glob(pattern, recursive=True))  # noqa: PTH207 - the reference
        images = sorted(name for name in found if name.lower().endswith((".jpg", ".png", ".tif", ".webp", ".bmp")))
        assert names_of(read(pattern)) == images


def test_a_source_without_images_is_an_error_at_the_call(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    sources = (tmp_path / "nowhere", tmp_path, f"{tmp_path}/*.jpg", "")
    for source in sources:
        with pytest.raises(NoImagesError, match=re.escape(str(source) or "path")):
            read_images(source)
    assert [getattr(item, "reason", None) for item in read([*sources, photo()])] == [RefusalReason.MISSING] * 4 + [None]
    with pytest.raises(ParameterError, match="int"):
        read_images(3)


def test_sources_mix_and_nest(folder: Path) -> None:
    mixture = [
        folder / "b.jpg",
        [photo(), (Image.fromarray(photo()), f"{folder}/*.bmp")],
        encoded(photo(), "PNG"),
        NamedImage("mine", photo()),
        Refusal("lost", RefusalReason.EMPTY, "0 bytes"),
    ]
    names = names_of(found := read(mixture))
    assert names[:5] == [f"{folder}/b.jpg", "image-000000", "image-000001", f"{folder}/z.bmp", "image-000002"]
    assert names[5:] == ["mine", "lost"]
    assert found[-1] == mixture[-1]


def test_arrays_of_every_accepted_type_and_shape_are_read() -> None:
    for same in (photo(), photo().astype(np.uint16) * 257, photo() / 255, (photo() / 255).astype(np.float32)):
        assert np.array_equal(pixels_of(same), photo())
        assert np.array_equal(pixels_of(same.astype(same.dtype.newbyteorder())), photo())
    grey = photo()[:, :, 0]
    for same in (grey, grey[:, :, None]):
        assert np.array_equal(pixels_of(same), np.repeat(grey[:, :, None], 3, axis=2))
    assert set(np.unique(pixels_of(grey > 128))) == {0, 255}


class Upload:
    """As web frameworks hand them over: no file, but with a name and a read of its own."""

    filename = "photo.png"

    def __init__(self, data: bytes) -> None:
        self.read = io.BytesIO(data).read


@pytest.mark.parametrize("make", [io.BytesIO, bytes, bytearray, memoryview, Upload])
def test_bytes_and_open_files_are_one_image_each(make: Any) -> None:
    data = encoded(photo(), "PNG")
    assert np.array_equal(pixels_of(make(data)), photo())
    assert names_of(read([make(data)])) == ["photo.png" if make is Upload else "image-000000"]
    assert list_source([make(data), make(data)]).count == 2
    assert refusal_of(make(data), Limits(max_bytes=10)).reason is RefusalReason.TOO_LARGE


def test_what_cannot_be_read_as_bytes_is_one_refusal() -> None:
    closed = io.BytesIO()
    closed.close()
    stream = read([closed, io.StringIO("text"), photo()])
    assert [getattr(item, "reason", None) for item in stream] == [RefusalReason.UNREADABLE] * 2 + [None]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.uint16, torch.bool])
def test_tensors_have_their_channels_first(dtype: torch.dtype) -> None:
    full = {torch.uint8: 255, torch.uint16: 65535}.get(dtype, 1)
    halves = torch.zeros((3, 40, 48), dtype=torch.float64)
    halves[0, :, 24:] = full
    read_back = pixels_of(halves.to(dtype))
    assert (read_back[:, :24] == 0).all()
    assert (read_back[:, 24:] == (255, 0, 0)).all()


def test_a_source_is_listed_once_and_counted_where_that_is_possible(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Refusal("lost", RefusalReason.EMPTY, "0 bytes")
    mixture = [folder, photo(), np.stack([photo()] * 3), torch.rand(2, 3, 40, 48), Image.fromarray(photo()), b"", lost]
    for one in (folder, f"{folder}/*.jpg", photo(), mixture, [mixture, "nowhere.png"]):
        assert list_source(one).count == len(read(one))
    shard = write_shard(folder / "s.tar", {"a.png": encoded(photo(), "PNG")})
    for hidden in (shard, [folder, shard], iter([photo()])):
        assert list_source(hidden).count is None
    source = list_source(folder)
    monkeypatch.setattr(os, "scandir", None)
    assert len(read(source)) == len(read([source])) == 6


@pytest.mark.parametrize("most", [1, 7, 12, 100])
def test_images_are_drawn_evenly_from_files_arrays_shards_and_tables(folder: Path, most: int) -> None:
    members = {f"{number}.png": encoded(photo(), "PNG") for number in range(3)}
    write_shard(folder / "sub" / "s.tar", members)
    parquet.write_table(pyarrow.table({"image": [encoded(photo(), "PNG")] * 3}), folder / "t.parquet")
    source = [str(folder), np.stack([photo()] * 2)]
    every = names_of(read(source))
    assert len(every) == 13
    drawn = names_of(read(list_source(source).draw(most)))
    assert drawn == ([every[place * 13 // most] for place in range(most)] if most < 13 else every)


def test_of_an_iterator_the_first_images_are_drawn() -> None:
    consumed: list[int] = []
    assert len(read(list_source(endless(consumed)).draw(5))) == 5
    assert len(consumed) <= 6
    source = list_source(iter([photo()] * 3)).repeatable()
    assert len(read(source)) == len(read(source)) == source.count == 3
