"""Routes give pictures the sizes and traces that a set's own files have."""

import io

import numpy as np
import pytest
from PIL import Image

from discopatch.benchmark.routes import LOSSLESS, SIZES, Route, Storage, nearest_quality, routes_of, travel
from discopatch.images import Pixels, Transform
from discopatch.images.samples import sample_photos


@pytest.fixture(scope="module")
def photo() -> Pixels:
    return sample_photos(["cat"])["cat"]


def encoded(pixels: Pixels, kind: str, **options: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("quality", [10, 50, 75, 92, 95, 100])
@pytest.mark.parametrize("subsampling", [0, 2])
def test_the_quality_of_a_file_is_read_off_its_tables(photo: Pixels, quality: int, subsampling: int) -> None:
    data = encoded(photo, "JPEG", quality=quality, subsampling=subsampling)
    assert Storage.of(data) == Storage(quality, subsampling)


def test_tables_of_no_quality_are_read_as_the_nearest() -> None:
    table = Image.open(io.BytesIO(encoded(np.zeros((8, 8, 3), np.uint8), "JPEG", quality=80))).quantization[0]  # type: ignore[attr-defined]
    assert nearest_quality([*table[:-1], table[-1] + 3]) == 80


def test_png_is_without_loss(photo: Pixels) -> None:
    assert Storage.of(encoded(photo, "PNG")) == LOSSLESS
    assert np.array_equal(LOSSLESS.store(photo), photo)
    assert np.array_equal(LOSSLESS.store_all(photo[None]), photo[None])


def test_storing_is_what_pillow_writes(photo: Pixels) -> None:
    expected = np.asarray(Image.open(io.BytesIO(encoded(photo, "JPEG", quality=75))).convert("RGB"))
    assert np.array_equal(Storage(75).store(photo), expected)
    assert np.array_equal(Storage(75).store_all(np.stack([photo, photo])), np.stack([expected, expected]))


@pytest.mark.parametrize("name", ["sketches", "steel", "receipts"])
def test_a_route_ends_at_the_size_of_the_set(photo: Pixels, name: str) -> None:
    result = Route(SIZES.get(name, ()), Storage(75))(photo)
    assert result.shape == ((SIZES[name][-1],) * 2 + (3,) if name in SIZES else photo.shape)


def test_detail_lost_on_the_way_does_not_come_back(photo: Pixels) -> None:
    direct, detour = (Transform(416)(Route(sizes, LOSSLESS)(photo)) for sizes in ((416,), (200, 416)))
    sharpness = [np.abs(np.diff(each.astype(float), axis=0)).mean() for each in (direct, detour)]
    assert sharpness[1] < 0.9 * sharpness[0]


def test_every_way_in_which_a_set_is_stored_occurs(photo: Pixels) -> None:
    small = photo[:64, :64]
    files = [encoded(small, "JPEG", quality=75), encoded(small, "PNG"), encoded(small, "JPEG", quality=92)]
    routes = routes_of("chest-xray", files, 7, seed=0)
    assert {route.storage for route in routes} == {Storage(75), LOSSLESS, Storage(92)}
    assert len(routes) == 7
    assert routes == routes_of("chest-xray", files, 7, seed=0)
    assert {route.sizes for route in routes_of("steel", files, 3, seed=0)} == {(200, 416)}


def test_travelling_ends_in_the_transform_and_is_always_the_same(photo: Pixels) -> None:
    files, routes = [encoded(photo, "PNG")] * 2, [Route((227,), Storage(95)), Route((), LOSSLESS)]
    result = travel(files, routes, Transform(256))
    assert result.shape == (2, 256, 256, 3)
    assert np.array_equal(result, travel(files, routes, Transform(256)))
    assert np.array_equal(result[1], Transform(256)(photo)), "without a route only the transform is left"
    assert not np.array_equal(result[0], result[1])
