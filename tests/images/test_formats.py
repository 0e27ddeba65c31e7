"""What lies in a folder of images is read, or refused with the way to read it; nothing is passed over in silence."""

import io
import lzma
import struct
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from discopatch.images import Limits, NamedImage, Refusal, RefusalReason, Transform, count_images, read_images
from discopatch.images.formats import IMAGE_SUFFIXES, OTHER_FORMATS

from .bombs import END, GOOD, header, member, pax_record, with_checksum
from .samples import encoded, names_of, noise, photo, pixels_of, read, refusal_of


def heic(pixels: np.ndarray, orientation: int = 1) -> bytes:
    pillow_heif = pytest.importorskip("pillow_heif")
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    image, buffer = pillow_heif.from_pillow(Image.fromarray(pixels)), io.BytesIO()
    image.info["exif"] = exif.tobytes()
    image.save(buffer, quality=95)
    return buffer.getvalue()


def turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    image = Image.fromarray(pixels)
    image.getexif()[ExifTags.Base.Orientation] = orientation
    return np.array(ImageOps.exif_transpose(image))


def distance(one: np.ndarray, other: np.ndarray) -> float:
    assert one.shape == other.shape
    return float(np.abs(one.astype(int) - other).mean())


@pytest.mark.parametrize("orientation", range(1, 9))
def test_heic_and_avif_are_read_as_a_viewer_shows_them(orientation: int) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    shown = turned(photo(), orientation)
    assert distance(pixels_of(heic(photo(), orientation)), shown) < 6
    assert distance(pixels_of(encoded(photo(), "AVIF", quality=95, exif=exif)), shown) < 6


def test_without_the_package_a_heic_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.heic").write_bytes(heic(photo()))
    (tmp_path / "b.png").write_bytes(encoded(photo(), "PNG"))
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    first, second = read(tmp_path)
    assert isinstance(first, Refusal)
    assert first.reason is RefusalReason.UNSUPPORTED
    assert "pip install 'discopatch[heif]'" in first.detail
    assert isinstance(second, NamedImage)


def test_heic_and_avif_are_bounded_as_all_others() -> None:
    for data in (heic(photo()), encoded(photo(), "AVIF")):
        refusal = refusal_of(data, Limits(max_pixels=2000))
        assert refusal.reason is RefusalReason.TOO_LARGE
        assert "--max-pixels" in refusal.detail


def test_reading_heic_does_not_register_it_with_pillow() -> None:
    before = dict(Image.EXTENSION), list(Image.OPEN)
    pixels_of(heic(photo()))
    assert before == (dict(Image.EXTENSION), list(Image.OPEN))


@pytest.mark.parametrize("suffix", OTHER_FORMATS)
def test_formats_that_are_not_read_are_refused_with_the_way_to_convert_them(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a{suffix.upper()}").write_bytes(b"\0\1\2 something else" * 10)
    for source in (tmp_path, [tmp_path / f"a{suffix.upper()}"], f"{tmp_path}/*"):
        refusal = refusal_of(source)
        assert refusal.reason is RefusalReason.UNSUPPORTED
        assert suffix in refusal.detail
    assert count_images(tmp_path) == 1


def test_a_large_file_of_another_format_is_known_by_its_beginning(tmp_path: Path) -> None:
    with (tmp_path / "a.psd").open("wb") as file:
        file.write(b"8BPS")
        file.truncate(2**40)
    assert refusal_of(tmp_path).reason is RefusalReason.UNSUPPORTED


def test_the_content_decides_whatever_the_name(tmp_path: Path) -> None:
    for name in ("a.psd", "b.heic", "c.jp2"):
        (tmp_path / name).write_bytes(encoded(photo(), "PNG"))
    assert all(isinstance(item, NamedImage) for item in read(tmp_path))


def test_the_thumbnail_of_a_raw_file_is_not_taken_for_the_image(tmp_path: Path) -> None:
    tiff = encoded(photo(), "TIFF", tiffinfo={50706: b"\1\4\0\0"})  # DNGVersion
    assert refusal_of(tiff).reason is RefusalReason.UNSUPPORTED
    plain = encoded(photo(), "TIFF")
    (tmp_path / "a.nef").write_bytes(plain)
    assert refusal_of(tmp_path).reason is RefusalReason.UNSUPPORTED
    assert isinstance(read(plain)[0], NamedImage)
    canon = plain[:4] + struct.pack("<L", 16) + b"CR\2\0" + b"\0" * 4 + b"\0" * 100
    assert refusal_of(canon).reason in (RefusalReason.UNSUPPORTED, RefusalReason.TRUNCATED)


def test_text_tables_and_labels_are_still_ignored(tmp_path: Path) -> None:
    for name in ("a.txt", "b.json", "c.xml", "d.csv", "e.npy", "f.zip", "g.mp4", "h", "i.md"):
        (tmp_path / name).write_bytes(b"something")
    (tmp_path / "z.png").write_bytes(encoded(photo(), "PNG"))
    assert len(read(tmp_path)) == 1


def test_shards_in_folders_are_read_in_their_place(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(photo(), "PNG"))
    (tmp_path / "c.png").write_bytes(encoded(photo(), "PNG"))
    (tmp_path / "sub").mkdir()
    for path in (tmp_path / "b.tar", tmp_path / "sub" / "d.tar"):
        path.write_bytes(GOOD * 2 + END)
    names = [Path(name).relative_to(tmp_path).as_posix() for name in names_of(read(tmp_path))]
    assert names == ["a.png", "b.tar/good.png", "b.tar/good.png", "c.png", *["sub/d.tar/good.png"] * 2]
    assert count_images(tmp_path) is None


def test_archives_of_other_compressions_are_refused_and_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.tar.xz").write_bytes(lzma.compress(GOOD + END))
    refusal = refusal_of(tmp_path)
    assert refusal.reason is RefusalReason.UNSUPPORTED
    assert ".tar.gz" in refusal.detail


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_those_that_tarfile_finds(tmp_path: Path, form: int) -> None:
    names = ["a.png", "deep/" * 25 + "b.png", "ä/ö.png", "c" * 90 + ".png"]
    if form != tarfile.USTAR_FORMAT:
        names += ["long/" * 300 + "d.png", "日本/" * 60 + "e.png"]
    images = {name: encoded(noise(40, 40 + number, seed=number), "PNG") for number, name in enumerate(names)}
    with tarfile.open(tmp_path / "s.tar", "w", format=form) as archive:
        for name, data in images.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1.5 if form == tarfile.PAX_FORMAT else 1
            archive.addfile(info, io.BytesIO(data))
            folder = tarfile.TarInfo(name + ".folder")
            folder.type, folder.size = tarfile.DIRTYPE, 0
            archive.addfile(folder)
    found = read(tmp_path / "s.tar")
    assert names_of(found) == [f"{tmp_path}/s.tar/{name}" for name in names]
    for item, data in zip(found, images.values(), strict=True):
        assert isinstance(item, NamedImage)
        assert np.array_equal(item.pixels, pixels_of(data))


def test_sizes_in_binary_in_pax_and_signed_checksums_are_understood(tmp_path: Path) -> None:
    data = encoded(photo(), "PNG")
    padded = data + b"\0" * (-len(data) % 512)
    binary = bytearray(header("binary.png", 0))
    binary[124:136] = b"\x80" + len(data).to_bytes(11)
    signed = bytearray(header("s.png", len(data)))
    signed[0] = 0xFF
    blank = bytes(signed[:148]) + b" " * 8 + bytes(signed[156:])
    signed[148:156] = b"%06o\0 " % sum(byte - 256 if byte > 127 else byte for byte in blank)
    pax = member("x", pax_record(b"size", str(len(data)).encode()) + pax_record(b"path", b"pax.png"), b"x")
    content = with_checksum(binary) + padded + bytes(signed) + padded + pax + header("short.png", 0) + padded
    (tmp_path / "s.tar").write_bytes(content + END)
    found = read(tmp_path / "s.tar")
    assert [name.rpartition("/")[2] for name in names_of(found)] == ["binary.png", "\udcff.png", "pax.png"]
    assert all(isinstance(item, NamedImage) for item in found)


def test_a_member_with_holes_is_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    sparse = member("x", pax_record(b"GNU.sparse.major", b"1") + pax_record(b"GNU.sparse.name", b"a.png"), b"x")
    old = header("b.png", 512, tarfile.GNUTYPE_SPARSE) + b"\0" * 512
    (tmp_path / "s.tar").write_bytes(sparse + member("a.png", b"1\n0\n") + old + GOOD + END)
    first, second, third = read(tmp_path / "s.tar")
    for item in (first, second):
        assert isinstance(item, Refusal)
        assert item.reason is RefusalReason.UNSUPPORTED
    assert isinstance(third, NamedImage)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP", "JPEG"])
def test_above_pillows_own_bound_images_are_read_without_a_warning(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings are errors here; Pillow's bound is lowered in place of a large image."""
    data = encoded(photo(300, 400), kind)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    (item,) = read_images(data, transform=Transform(64), workers=1)
    monkeypatch.undo()
    (expected,) = read_images(data, transform=Transform(64), workers=1)
    assert isinstance(item, NamedImage)
    assert isinstance(expected, NamedImage)
    assert np.array_equal(item.pixels, expected.pixels)


def test_every_suffix_that_is_read_is_found_in_folders(tmp_path: Path) -> None:
    for suffix in IMAGE_SUFFIXES:
        (tmp_path / f"a{suffix}").write_bytes(encoded(photo(), "PNG"))
    assert len(read(tmp_path)) == len(IMAGE_SUFFIXES)
