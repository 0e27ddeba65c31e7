"""Images deeper than 8 bits: every value is read, and the stored levels make them RGB of 8 bits."""

import io
import struct
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from discopatch.errors import ImageError, ParameterError
from discopatch.images import DEFAULT_LIMITS, Item, Limits, NamedImage, Refusal, RefusalReason, Transform, read_images
from discopatch.images.levels import Choice, Levels, Values

from .samples import encoded, photo, pixels_of, refusal_of

imagecodecs = pytest.importorskip("imagecodecs")
pydicom = pytest.importorskip("pydicom")
tifffile = pytest.importorskip("tifffile")

Array = NDArray[Any]
GREY = Levels(1, "uint16", (1,), (0.0,), (4095.0,))
BAND = Levels(12, "uint16", (4, 3, 2), (0.0,) * 3, (4095.0,) * 3)


def deep_photo(*, bits: int = 12, bands: int = 3) -> Array:
    """A photo with values of that many bits."""
    fine = photo().astype(np.uint16) << (bits - 8) | np.random.default_rng(0).integers(0, 1 << (bits - 8), (48, 64, 3))
    return np.concatenate([fine] * 4, axis=2)[:, :, :bands].astype(np.uint16)


def tiff(array: Array, **options: Any) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, array, **options)
    return buffer.getvalue()


def dicom(array: Array, **fields: Any) -> bytes:
    """A DICOM file with these pixels, uncompressed, of a patient with a name."""
    meta = pydicom.dataset.FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = (
        pydicom.uid.ExplicitVRLittleEndian,
        "1.2.840.10008.5.1.4.1.1.2",
    )
    meta.MediaStorageSOPInstanceUID = "1.2.3"
    header, buffer = pydicom.dataset.FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128), io.BytesIO()
    header.PatientName, header.PatientID = "Secret^Name", "4711-secret"
    header.Rows, header.Columns = array.shape[:2]
    header.SamplesPerPixel = 1 if array.ndim == 2 else 3
    header.PhotometricInterpretation = "MONOCHROME2" if array.ndim == 2 else "RGB"
    if array.ndim == 3:
        header.PlanarConfiguration = 0
    header.BitsAllocated = header.BitsStored = 8 * array.itemsize
    header.HighBit, header.PixelRepresentation = header.BitsStored - 1, int(array.dtype.kind == "i")
    header.PixelData = array.tobytes()
    for name, value in fields.items():
        setattr(header, name, value)
    header.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


def values_of(source: Any, limits: Limits = DEFAULT_LIMITS) -> Values:
    found = Item("x", source).values(limits)
    assert found is not None
    return found


def through(levels: Levels | None, source: Any, transform: Transform | None = None) -> NamedImage:
    (found,) = read_images([source], transform=transform or Transform(64, levels=levels), workers=1)
    assert isinstance(found, NamedImage)
    return found


def refused_by(levels: Levels, source: Any) -> Refusal:
    (found,) = read_images([source], transform=Transform(64, levels=levels), workers=1)
    assert isinstance(found, Refusal)
    return found


# Every value of every kind is read.


@pytest.mark.parametrize("kind", ["uint16", "int16", "int32", "uint32", "float32", "float64"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_a_tiff_of_one_band_keeps_its_values_and_its_type(kind: str, order: Any) -> None:
    array = (deep_photo(bands=1)[:, :, 0].astype(np.int64) - 2000 * (kind[0] != "u")).astype(kind)
    found = values_of(tiff(array, byteorder=order))
    assert np.array_equal(found.bands[:, :, 0], array)
    assert (found.kind, found.deep) == (kind, True)


@pytest.mark.parametrize("compression", [None, "lzw", "zlib", "packbits", "zstd"])
@pytest.mark.parametrize("options", [{"planarconfig": "contig"}, {"planarconfig": "separate"}, {"tile": (16, 16)}])
@pytest.mark.parametrize("bands", [3, 12])
def test_a_tiff_of_many_bands_keeps_all_of_them(compression: str | None, options: dict[str, Any], bands: int) -> None:
    array = deep_photo(bands=bands)
    stored = np.moveaxis(array, 2, 0).copy() if options.get("planarconfig") == "separate" else array
    options = {"planarconfig": "contig", **options, "photometric": "rgb" if bands == 3 else "minisblack"}
    for big in (False, True):
        data = tiff(stored, compression=compression, bigtiff=big, **options)
        assert np.array_equal(values_of(data).bands, array)
        assert Item("x", data).shape(DEFAULT_LIMITS) == (48, 64)


def test_a_png_of_16_bits_keeps_both_bytes_of_grey_and_of_colour() -> None:
    array = deep_photo(bits=16)
    assert np.array_equal(values_of(bytes(imagecodecs.png_encode(array))).bands, array)
    assert np.array_equal(values_of(encoded(Image.fromarray(array[:, :, 0]), "PNG")).bands, array[:, :, :1])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_to_deep_images_as_to_all_others(orientation: int) -> None:
    tag = [(274, 3, 1, orientation, True)]
    expected = through(None, tiff(photo(), photometric="rgb", extratags=tag))
    deep = through(
        Levels(3, "uint16", (1, 2, 3), (0.0,) * 3, (255.0,) * 3),
        tiff(photo().astype(np.uint16), photometric="rgb", extratags=tag),
    )
    assert deep.size == expected.size
    assert np.array_equal(deep.pixels, expected.pixels)


@pytest.mark.parametrize("dtype", ["uint16", "int16", "int32", "float32", "float16"])
@pytest.mark.parametrize("bands", [1, 2, 7])
def test_arrays_of_any_type_and_number_of_bands_pass_the_levels(dtype: str, bands: int) -> None:
    array = (deep_photo(bands=bands) // 4).astype(dtype)
    levels = Levels(bands, dtype, (1,), (0.0,), (1023.0,))
    found = through(levels, array)
    expected = np.rint(array[:, :, :1].astype(np.float64) * (255 / 1023)).astype(np.uint8)
    assert np.array_equal(found.pixels, Transform(64)(np.repeat(expected, 3, 2)))


# DICOM.


def test_a_dicom_file_is_rescaled_and_inverted_for_monochrome1() -> None:
    array = deep_photo(bands=1)[:, :, 0]
    slope = {"RescaleSlope": 2, "RescaleIntercept": -1024, "BitsStored": 12, "HighBit": 11}
    found = values_of(dicom(array, **slope))
    assert np.array_equal(found.bands[:, :, 0], 2.0 * array - 1024)
    assert (found.kind, found.deep, found.window) == ("DICOM", True, None)
    inverted = values_of(dicom(4095 - array, **slope, PhotometricInterpretation="MONOCHROME1"))
    assert np.array_equal(inverted.bands, found.bands)


def test_the_window_of_a_file_is_used_only_if_it_is_declared() -> None:
    array = deep_photo(bands=1)[:, :, 0]
    files = [
        dicom(array, WindowCenter=[1000.5, 7], WindowWidth=[1001, 9]),
        dicom(array, WindowCenter=2000.5, WindowWidth=4001),
    ]
    assert [values_of(each).window for each in files] == [(500.0, 1500.0), (0.0, 4000.0)]
    fitted = [through(GREY, each) for each in files]
    assert np.array_equal(fitted[0].pixels, fitted[1].pixels)
    window = Levels(1, "DICOM", (1,), (), ())
    narrow = through(window, files[0])
    expected = np.rint(np.clip((array - 500.0) * 0.255, 0, 255)).astype(np.uint8)
    assert np.array_equal(narrow.pixels, Transform(64)(np.repeat(expected[:, :, None], 3, 2)))
    for other in (dicom(array), array):
        refusal = refused_by(window, other)
        assert "window" in refusal.detail


def test_a_dicom_file_of_8_bits_is_an_image_of_8_bits() -> None:
    for image in (photo(), photo()[:, :, 0]):
        expected = image if image.ndim == 3 else np.repeat(image[:, :, None], 3, 2)
        assert np.array_equal(pixels_of(dicom(image)), expected)


def test_what_is_not_read_of_dicom_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, array = Path(pydicom.__file__).parent / "data" / "test_files", deep_photo(bands=1)[:, :, 0]
    sources: dict[str, Any] = {
        "pylibjpeg": folder / "MR_small_jpeg_ls_lossless.dcm",
        "Explicit VR": folder / "image_dfl.dcm",
        "frame": dicom(np.stack([array[:, :, None]] * 2), Rows=48, Columns=64, NumberOfFrames=2, SamplesPerPixel=1),
        "RGB": folder / "examples_palette.dcm",
        "mask": folder / "liver_1frame.dcm",
        "levels": dicom(array),
    }
    for remedy, source in sources.items():
        refusal = refusal_of([source])
        assert refusal.reason is RefusalReason.UNSUPPORTED
        assert remedy in refusal.detail
    for module, extra, data in (
        ("pydicom", "dicom", dicom(array)),
        ("tifffile", "tiff", tiff(deep_photo(), photometric="rgb")),
        ("imagecodecs", "tiff", tiff(deep_photo(), photometric="rgb", compression="lzw")),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        refusal = refused_by(Levels(3, "uint16", (1,), (0.0,), (1.0,)), data)
        assert f"pip install 'discopatch[{extra}]'" in refusal.detail
        monkeypatch.delitem(sys.modules, module)


# Levels.


@cache
def normal(count: int = 40) -> list[Values]:
    rng = np.random.default_rng(1)
    return [Values(deep_photo(bands=1) // 2 + rng.integers(100, 140), "uint16") for _ in range(count)]


def test_levels_are_those_of_normal_images_whatever_one_odd_image_has() -> None:
    levels = Levels.choose(normal(), "auto", None)
    values = np.concatenate([each.bands for each in normal()])
    assert (levels.count, levels.kind, levels.bands) == (1, "uint16", (1,))
    assert levels.low[0] <= values.min() + 20
    assert values.max() - 20 <= levels.high[0] < 1.15 * values.max()
    assert Levels.choose(normal(), "auto", None) == levels
    broken = Values(np.full((48, 64, 1), 65_535, np.uint16), "uint16")
    assert Levels.choose([*normal(), broken], "auto", None).high[0] < 1.15 * values.max()


def test_bands_have_levels_of_their_own_and_images_with_fewer_are_refused() -> None:
    array = deep_photo(bands=12).astype(np.float64) * np.arange(1, 13)
    levels = Levels.choose([Values(array, "float64")], "auto", (4, 3, 2))
    assert levels.bands == (4, 3, 2)
    assert levels.high[0] > levels.high[2] * 1.5
    refusal = refused_by(BAND, deep_photo(bands=3))
    assert "12" in refusal.detail


@given(
    low=st.floats(-1e6, 1e6),
    width=st.floats(1e-3, 1e6),
    values=st.lists(st.floats(-1e7, 1e7), min_size=32, max_size=64),
)
@settings(deadline=None)
def test_levels_are_monotone_reach_black_and_white_and_are_reproducible(
    low: float, width: float, values: list[float]
) -> None:
    levels = Levels(1, "float64", (1,), (low,), (low + width,))
    row = np.sort(np.array([*values, low, low + width]))
    image = levels.apply(Values(np.tile(row, (32, 1))[:, :, None], "float64"))
    found = np.asarray(image)[0, :, 0].astype(int)
    assert (np.diff(found) >= 0).all()
    assert (found[row <= low] == 0).all()
    assert (found[row >= low + width] == 255).all()
    again = levels.apply(Values(np.tile(row, (32, 1))[:, :, None], "float64"))
    assert np.array_equal(np.asarray(image), np.asarray(again))


@pytest.mark.parametrize(
    ("choice", "bands"),
    [((5.0, 5.0), None), ((9.0, 2.0), None), ("auto", (1, 2)), ("auto", (13,)), ("auto", (1, 13, 2))],
)
def test_levels_that_make_no_sense_are_an_error(choice: Choice, bands: tuple[int, ...] | None) -> None:
    with pytest.raises(ParameterError):
        Levels.choose([Values(deep_photo(bands=12), "uint16")], choice, bands)


def test_the_transform_of_images_of_8_bits_has_no_trace_of_levels() -> None:
    assert "levels" not in Transform().to_dict()
    assert Transform(256).digest == "e3be862dbaa32499"
    own = Transform(64, levels=BAND)
    assert Transform.from_dict(own.to_dict()) == own
    assert own.digest != Transform(64).digest


def test_files_of_8_bits_are_refused_by_levels_and_a_decoded_image_passes_as_it_is() -> None:
    for data in (encoded(photo(), "JPEG"), encoded(photo(), "PNG"), encoded(photo(), "TIFF"), photo(), dicom(photo())):
        refusal = refused_by(Levels(3, "uint16", (1, 2, 3), (0.0,) * 3, (9.0,) * 3), data)
        assert refusal.reason is RefusalReason.UNSUPPORTED
        assert "8 bits" in refusal.detail
    found = through(GREY, NamedImage("ready", photo(64, 64)))
    assert np.array_equal(found.pixels, photo(64, 64))


@pytest.mark.parametrize("decoder", ["scaled", "nvimgcodec"])
def test_other_decoders_leave_deep_images_to_the_same_path(decoder: Any) -> None:
    found = through(None, tiff(deep_photo(bands=1)[:, :, 0]), Transform(64, decoder=decoder, levels=GREY))
    expected = through(GREY, deep_photo(bands=1))
    assert np.array_equal(found.pixels, expected.pixels)


# Hostile files.


@cache
def samples() -> dict[str, bytes]:
    array = deep_photo()
    grey = array[:, :, 0]
    return {
        "grey TIFF": tiff(grey),
        "colour TIFF": tiff(array, photometric="rgb", compression="lzw"),
        "tiles": tiff(
            deep_photo(bands=12), photometric="minisblack", planarconfig="contig", tile=(16, 16), compression="zlib"
        ),
        "planes": tiff(
            np.moveaxis(array, 2, 0).astype(np.float32), planarconfig="separate", photometric="rgb", bigtiff=True
        ),
        "PNG": bytes(imagecodecs.png_encode(array)),
        "DICOM": dicom(grey, RescaleSlope=1.5, RescaleIntercept=-10, WindowCenter=40, WindowWidth=400),
        "JPEG 2000": (Path(pydicom.__file__).parent / "data/test_files/MR_small_jp2klossless.dcm").read_bytes(),
    }


@pytest.mark.parametrize("name", ["grey TIFF", "colour TIFF", "tiles", "planes", "PNG", "DICOM"])
@pytest.mark.parametrize("share", [0.5, 0.95])
def test_a_file_cut_short_is_refused_as_truncated(name: str, share: float) -> None:
    data = samples()[name]
    with pytest.raises(ImageError) as raised:
        Item("x", data[: int(len(data) * share)]).values(DEFAULT_LIMITS)
    assert raised.value.reason is RefusalReason.TRUNCATED


def tiff_of_bands(bands: int, side: int = 64, *, tile: int = 0, content: bytes = b"") -> bytes:
    """A TIFF of 16 bits that claims so many bands, in one strip or tile of deflate."""
    blob = zlib.compress(content or b"\0", 9)
    tags = [(256, 4, 1, side), (257, 4, 1, side), (258, 3, 1, 16), (259, 3, 1, 8), (262, 3, 1, 1), (277, 3, 1, bands)]
    tags += [(322, 4, 1, tile), (323, 4, 1, tile), (324, 4, 1, 8), (325, 4, 1, len(blob))] if tile else []
    tags += [] if tile else [(273, 4, 1, 8), (278, 4, 1, side), (279, 4, 1, len(blob))]
    entries = b"".join(struct.pack("<HHLL", *tag) for tag in sorted(tags))
    return b"II*\0" + struct.pack("<L", 8 + len(blob)) + blob + struct.pack("<H", len(tags)) + entries + b"\0" * 4


@pytest.mark.parametrize(
    "make",
    [
        lambda: tiff_of_bands(60_000, 8_000),
        lambda: tiff_of_bands(3, 64, tile=60_000),
        lambda: tiff_of_bands(1, 64, tile=60_000),
        lambda: dicom(np.zeros((40, 40), np.uint16), Rows=60_000, Columns=60_000),
    ],
)
def test_a_file_that_claims_much_is_refused_before_it_is_decoded(make: Callable[[], bytes]) -> None:
    with pytest.raises(ImageError) as raised:
        Item("x", make()).values(DEFAULT_LIMITS)
    assert raised.value.reason is RefusalReason.TOO_LARGE


def test_a_strip_that_expands_beyond_the_image_takes_no_memory() -> None:
    resource = pytest.importorskip("resource")
    bomb = tiff_of_bands(3, 64, content=bytes(2**28))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with suppress(ImageError):
        Item("x", bomb).values(DEFAULT_LIMITS)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024
