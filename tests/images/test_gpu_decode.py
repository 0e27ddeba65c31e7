"""Batches that are decoded on a GPU, here by a decoder that only looks like one: order, refusals, what is left."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from discopatch.images import (
    ImageBatch,
    Limits,
    NamedImage,
    Processes,
    Refusal,
    Transform,
    Workers,
    gpu_decode,
    read_batches,
    read_images,
)

from .samples import encoded, noise, photo

CPU = torch.device("cpu")
GPU = Transform(64, decoder="nvimgcodec")


class PillowJpegs:
    """A decoder like nvImageCodec's that uses Pillow."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, tuple[int, int, int]]] = []  # files, and the shape that was expected of them
        self.unreadable: set[bytes] = set()

    def decode(self, files: Sequence[bytes], shape: tuple[int, int, int]) -> list[torch.Tensor | None]:
        self.calls.append((len(files), shape))
        mode = "L" if shape[2] == 1 else "RGB"
        return [
            None
            if data in self.unreadable
            else torch.from_numpy(np.array(Image.open(BytesIO(data)).convert(mode)).reshape(shape))
            for data in files
        ]


@pytest.fixture
def jpegs(monkeypatch: pytest.MonkeyPatch) -> PillowJpegs:
    """Takes the place of nvImageCodec, without a GPU."""
    found = PillowJpegs()
    monkeypatch.setattr(gpu_decode, "open_decoder", lambda device: found)
    return found


def batches_of(source: object, *, size: int = 8, transform: Transform = GPU, **options: Any) -> list[ImageBatch]:
    return list(read_batches([source], transform=transform, size=size, workers=2, device=CPU, **options))


def items_of(batches: list[ImageBatch]) -> list[NamedImage | Refusal]:
    return [item for batch in batches for item in batch.items]


def as_ever(source: object, transform: Transform = GPU, **options: Any) -> list[NamedImage | Refusal]:
    usual = Transform(transform.size, fit=transform.fit, resample=transform.resample)
    return list(read_images(source, transform=usual, workers=1, **options))


def assert_alike(found: list[NamedImage | Refusal], expected: list[NamedImage | Refusal]) -> None:
    assert [item.name for item in found] == [item.name for item in expected]
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, NamedImage) and isinstance(other, NamedImage):
            off = np.abs(one.pixels.astype(int) - other.pixels)
            assert off.max() <= 1
            assert (off > 0).mean() < 2e-3
        else:
            assert one == other


def of_all_kinds() -> list[bytes]:
    """JPEG files of several sizes, colours and orientations, other formats, and files that are refused."""
    rgb, turned = Image.fromarray(photo(120, 90)), []
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        turned.append(encoded(photo(90, 140), "JPEG", exif=exif))
    whole = encoded(noise(100, 100), "JPEG")
    return [
        encoded(photo(100, 100), "JPEG"),
        encoded(photo(64, 64), "JPEG"),
        encoded(photo(40, 200), "PNG"),
        encoded(rgb.convert("L"), "JPEG"),
        encoded(rgb.convert("CMYK"), "JPEG"),
        whole[: len(whole) // 2],
        *turned,
        encoded(photo(20, 20), "JPEG"),
        b"hello",
        b"",
        encoded(photo(100, 100), "JPEG", progressive=True),
        encoded(photo(100, 100), "JPEG", subsampling=0, quality=95),
        encoded(photo(48, 700), "JPEG"),
        whole + b"behind the end",
        encoded(photo(100, 100), "JPEG"),
    ]


@pytest.mark.parametrize(("size", "fit"), [(1, "crop"), (7, "squash"), (100, "crop")])
def test_a_mixture_is_read_as_ever(jpegs: PillowJpegs, size: int, fit: Any) -> None:
    transform = Transform(64, fit=fit, decoder="nvimgcodec")
    batches = batches_of(of_all_kinds(), size=size, transform=transform)
    assert_alike(items_of(batches), as_ever(of_all_kinds(), transform))
    assert sum(count for count, _ in jpegs.calls) > 10
    for batch in batches:
        images = [item.pixels for item in batch.items if isinstance(item, NamedImage)]
        assert batch.pixels is None if not images else np.array_equal(np.asarray(batch.pixels), np.stack(images))


@pytest.mark.usefixtures("jpegs")
@pytest.mark.parametrize("transform", [GPU, Transform(64)])
@pytest.mark.parametrize("workers", [1, Processes(2)])
def test_no_batch_holds_images_of_two_sources(transform: Transform, workers: Workers) -> None:
    """Where the first is done is known at once, even if its images filled batches to the last."""
    file = encoded(photo(), "JPEG")
    sources = [[file] * 4, [file] * 3, [b"hello"], [file]]
    found = list(read_batches(sources, transform=transform, size=2, workers=workers, device=CPU))
    assert [len(batch.items) for batch in found] == [2, 2, 0, 2, 1, 1, 1]
    assert [batch.ends for batch in found] == [False, False, True, False, True, True, True]


def test_no_more_are_decoded_at_once_than_memory_allows(jpegs: PillowJpegs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_decode, "MOST_DECODED", 2 * 100 * 100 * 3)
    files = [encoded(noise(100, 100, seed=number), "JPEG") for number in range(5)]
    assert_alike(items_of(batches_of(files)), as_ever(files))
    assert [count for count, _ in jpegs.calls] == [2, 2, 1]


def test_what_the_decoder_does_not_read_is_left_to_pillow(jpegs: PillowJpegs) -> None:
    files = [encoded(noise(100, 100, seed=number), "JPEG") for number in range(6)]
    for unreadable in ({files[0], files[3]}, set(files)):
        jpegs.unreadable = unreadable
        assert_alike(items_of(batches_of(files)), as_ever(files))


@pytest.mark.parametrize("limits", [{"max_pixels": 9999}, {"max_bytes": 2500}])
def test_what_exceeds_a_limit_never_reaches_the_decoder(jpegs: PillowJpegs, limits: dict[str, int]) -> None:
    files = [encoded(noise(100, 100), "JPEG"), encoded(photo(100, 100), "PNG"), encoded(photo(40, 40), "JPEG")]
    given = Limits(**limits)
    found = items_of(batches_of(files, limits=given))
    assert isinstance(found[0], Refusal)
    assert_alike(found, as_ever(files, limits=given))
    assert all(shape[0] == 40 for _, shape in jpegs.calls)
