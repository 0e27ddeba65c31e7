"""The stream is lazy, ordered, bounded, and the same for any number of workers."""

import io
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from discopatch import images
from discopatch.images import Picture, Pixels, Processes, Transform, Workers

from .samples import as_bytes, encoded, endless, noise, photo


def workers_alive() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("discopatch-images")]


def test_order_and_pixels_do_not_depend_on_workers(tmp_path: Path) -> None:
    for number in range(20):
        side = 40 + 37 * (number % 5)  # unequal work, so that threads finish out of order
        (tmp_path / f"{number:02}.png").write_bytes(encoded(noise(side, side, seed=number), "PNG"))
    (tmp_path / "07.png").write_bytes(b"broken")
    one = as_bytes(images.open(tmp_path, workers=1, transform=Transform(64)))
    for workers in (2, 3, 8):
        assert as_bytes(images.open(tmp_path, workers=workers, transform=Transform(64))) == one


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_an_endless_generator_is_read_only_a_few_images_ahead(workers: int) -> None:
    consumed: list[int] = []
    stream = images.open(endless(consumed), workers=workers)
    assert consumed == []
    for taken in range(1, 300):
        assert isinstance(next(stream), Picture)
        assert len(consumed) <= taken + 2 * workers
    stream.close()


def test_a_slow_consumer_does_not_let_pictures_pile_up() -> None:
    consumed: list[int] = []
    stream = images.open(endless(consumed), workers=2)
    next(stream)
    time.sleep(0.1)
    assert len(consumed) <= 5
    stream.close()


def test_closing_early_ends_the_threads() -> None:
    stream = images.open(endless([]), workers=4)
    next(stream)
    assert workers_alive()
    stream.close()
    assert workers_alive() == []


def test_the_transform_runs_inside_the_workers() -> None:
    threads = set()

    def note_thread(pixels: Pixels) -> Pixels:
        threads.add(threading.current_thread())
        return pixels[:32, :32]

    stream = list(images.open([photo()] * 6, transform=note_thread, workers=2))
    assert all(isinstance(item, Picture) and item.pixels.shape == (32, 32, 3) for item in stream)
    assert threading.current_thread() not in threads


def test_one_lazily_opened_image_may_come_many_times() -> None:
    image = Image.open(io.BytesIO(encoded(photo(900, 900), "PNG")))
    pixels = [item.pixels for item in images.open([image] * 8, workers=8) if isinstance(item, Picture)]
    assert len(pixels) == 8
    assert all(np.array_equal(one, pixels[0]) for one in pixels)


@pytest.mark.parametrize("workers", [1, 3])
def test_skip_leaves_out_the_first_items_undecoded(workers: int) -> None:
    decoded: list[int] = []

    def note(pixels: Pixels) -> Pixels:
        decoded.append(int(pixels[0, 0, 0]))
        return pixels

    source = [np.full((32, 32, 3), level, np.uint8) for level in range(6)]
    names = [item.name for item in images.open(source, transform=note, skip=4, workers=workers)]
    assert names == ["image-000004", "image-000005"]
    assert sorted(decoded) == [4, 5]


def test_refusals_count_when_skipping() -> None:
    (rest,) = images.open([b"broken", b"", photo()], skip=2)
    assert rest.name == "image-000002"


@pytest.mark.parametrize("workers", [1, 4, Processes(2)])
def test_when_a_source_fails_the_images_before_come_first(workers: Workers) -> None:
    def failing() -> Iterator[Pixels]:
        yield from [photo()] * 3
        raise RuntimeError("camera unplugged")

    stream = images.open(failing(), workers=workers)
    assert len(list(itertools.islice(stream, 3))) == 3
    with pytest.raises(RuntimeError, match="camera unplugged"):
        next(stream)
    with pytest.raises(RuntimeError, match="camera unplugged"):
        list(images.open(failing(), workers=workers, skip=5))


@pytest.mark.parametrize("workers", [1, 4])
def test_a_fault_in_a_transform_is_not_taken_for_a_bad_image(workers: int) -> None:
    def faulty(pixels: Pixels) -> Pixels:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(images.open([photo()], transform=faulty, workers=workers))
    assert workers_alive() == []


def test_senseless_numbers_are_refused() -> None:
    for workers, skip in ((0, 0), (1, -1)):
        with pytest.raises(ValueError, match="at least one worker"):
            images.open([photo()], workers=workers, skip=skip)
