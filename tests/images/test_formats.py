"""What lies in a folder of images is read, or refused with the way to read it; nothing is passed over in silence."""

import io
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from discopatch.images import Limits, NamedImage, Refusal, RefusalReason, list_source

from .samples import encoded, photo, pixels_of, read, refusal_of


def heic(pixels: np.ndarray, orientation: int = 1) -> bytes:
    pillow_heif = pytest.importorskip("pillow_heif")
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    image, buffer = pillow_heif.from_pillow(Image.fromarray(pixels)), io.BytesIO()
    image.info["exif"] = exif.tobytes()
    image.save(buffer, quality=95)
    return buffer.getvalue()


@pytest.mark.parametrize("orientation", [1, 6])
def test_heic_and_avif_are_read_as_a_viewer_shows_them(orientation: int) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    shown = np.rot90(photo(), -1 if orientation == 6 else 0)
    for data in (heic(photo(), orientation), encoded(photo(), "AVIF", quality=95, exif=exif)):
        assert np.abs(pixels_of(data).astype(int) - shown).mean() < 6


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


@pytest.mark.parametrize("suffix", [".dng", ".psd"])
def test_formats_that_are_not_read_are_refused_with_the_way_to_convert_them(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a{suffix.upper()}").write_bytes(b"\0\1\2 something else" * 10)
    for source in (tmp_path, [tmp_path / f"a{suffix.upper()}"], f"{tmp_path}/*"):
        refusal = refusal_of(source)
        assert refusal.reason is RefusalReason.UNSUPPORTED
        assert suffix in refusal.detail
    assert list_source(tmp_path).count == 1


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
