"""Hostile files are refused in little memory and time, and what came before them stays."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from discopatch.images import NamedImage, Refusal, RefusalReason

from . import bombs, test_levels
from .samples import encoded, noise, photo, read

pytestmark = pytest.mark.slow

CHILD = """
import json, resource, sys, warnings
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30,) * 2)
import numpy as np
from discopatch.images import Refusal, read_images

warnings.simplefilter("ignore")
list(read_images(np.zeros((64, 64, 3), np.uint8), workers=1))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
for path in sys.argv[1:]:
    items = read_images(path, workers=1)
    found = [item.reason if isinstance(item, Refusal) else "image" for item in items]
    print(json.dumps([path, found, peak() - before]), flush=True)
"""
ENOUGH = 80  # MB that reading may take


class Outcome(NamedTuple):
    """What became of the images of a file, and the megabytes that the process had grown by when it was read."""

    found: list[str]
    grown: float


def read_in_a_process(paths: list[Path]) -> dict[str, Outcome]:
    command = [sys.executable, "-c", CHILD, *map(str, paths)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert child.returncode == 0, child.stderr
    lines: list[Any] = [json.loads(line) for line in child.stdout.splitlines()]
    return {Path(path).name.removesuffix(".tar.gz"): Outcome(found, grown) for path, found, grown in lines}


def test_an_archive_that_would_take_too_much_is_refused_and_what_came_before_stays(tmp_path: Path) -> None:
    paths = [bombs.write_archive(tmp_path / f"{name}.tar.gz", make()) for name, make in bombs.ARCHIVES.items()]
    assert max(path.stat().st_size for path in paths) < 6_000_000
    for name, (found, grown) in read_in_a_process(paths).items():
        assert found == ["image", RefusalReason.TRUNCATED], name
        assert grown < ENOUGH, name


def test_an_image_that_would_take_too_much_is_refused_or_read_without_what_would(tmp_path: Path) -> None:
    expected = {
        "exif.jpg": "image",  # metadata are no reason to lose the pixels
        "exif.webp": "image",
        "tile.tif": RefusalReason.TOO_LARGE,
        "claim.webp": RefusalReason.TOO_LARGE,
        "scans.jpg": RefusalReason.UNSUPPORTED,
    }
    for name, data in bombs.images().items():
        (tmp_path / name).write_bytes(data)
    outcomes = read_in_a_process([tmp_path / name for name in expected])
    assert {name: outcome.found for name, outcome in outcomes.items()} == {
        name: [each] for name, each in expected.items()
    }
    assert max(outcome.grown for outcome in outcomes.values()) < 2 * ENOUGH


def test_a_hole_of_a_terabyte_is_passed_over(tmp_path: Path) -> None:
    outcome = read_in_a_process([bombs.archive_with_a_hole(tmp_path / "hole.tar")])["hole.tar"]
    assert outcome.found == ["image", RefusalReason.TOO_LARGE, "image"]
    assert outcome.grown < ENOUGH


FUZZ = """
import resource, time, warnings
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30,) * 2)
import numpy as np
from discopatch.images import Limits, NamedImage, Refusal, Transform, read_images
from discopatch.images.levels import Levels
from tests.images.test_bombs import mutated, samples

warnings.simplefilter("ignore")
slowest, levels = 0.0, Levels(3, "uint16", (1, 2, 3), (0.0,) * 3, (4095.0,) * 3)
for kind, data in samples().items():
    random = np.random.default_rng(list(kind.encode()))
    for _ in range(200):
        file = mutated(data, random)
        for transform in (None, Transform(64, levels=levels)):
            start = time.process_time()
            (item,) = read_images(file, transform=transform, workers=1, limits=Limits(max_pixels=10**7))
            slowest = max(slowest, time.process_time() - start)
            assert isinstance(item, NamedImage | Refusal)
            assert "Secret" not in getattr(item, "detail", "")  # of a patient
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # of this program alone
print(slowest, int(peak.split()[1]) / 1024)
"""


def samples() -> dict[str, bytes]:
    """A small file of each format."""
    pillow_heif = pytest.importorskip("pillow_heif")
    buffer = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(photo())).save(buffer)
    small = noise(40, 40)
    return {
        "JPEG": encoded(small, "JPEG"),
        "progressive": encoded(photo(), "JPEG", progressive=True),
        "PNG": encoded(photo(), "PNG"),
        "WebP": encoded(photo(), "WEBP"),
        "lossless": encoded(photo(), "WEBP", lossless=True),
        "TIFF": encoded(small, "TIFF", compression="tiff_lzw"),
        "BMP": encoded(small, "BMP"),
        "GIF": encoded(photo(), "GIF"),
        "AVIF": encoded(photo(), "AVIF"),
        "HEIF": buffer.getvalue(),
        **{f"deep {name}": data for name, data in test_levels.samples().items()},
    }


def mutated(data: bytes, random: np.random.Generator) -> bytes:
    """The file with a few bytes changed, most of them near its beginning, and sometimes cut short or doubled inside."""
    changed = bytearray(data)
    for _ in range(int(random.integers(1, 6))):
        reach = len(changed) if random.random() < 0.3 else min(len(changed), 300)
        place = int(random.integers(reach))
        changed[place : place + int(random.integers(1, 5))] = random.bytes(int(random.integers(1, 5)))
    if random.random() < 0.1:
        del changed[int(random.integers(len(changed))) :]
    if random.random() < 0.1:
        place = int(random.integers(len(changed) + 1))
        changed[place:place] = changed[: int(random.integers(len(changed) + 1))]
    return bytes(changed)


def test_damaged_files_of_every_format_end_in_an_image_or_a_refusal() -> None:
    child = subprocess.run([sys.executable, "-c", FUZZ], capture_output=True, text=True, timeout=1000, check=False)
    assert child.returncode == 0, child.stderr[-2000:]
    slowest, peak = map(float, child.stdout.split())
    assert slowest < 10
    assert peak < 900


def test_archives_with_damaged_headers_end_in_images_and_a_refusal(tmp_path: Path) -> None:
    random, path = np.random.default_rng(0), tmp_path / "a.tar"
    whole = bombs.GOOD + bombs.member("x", bombs.pax_record(b"path", b"b.png"), b"x") + bombs.GOOD * 2 + bombs.END
    for _ in range(300):
        path.write_bytes(mutated(whole, random))
        assert all(isinstance(item, NamedImage | Refusal) for item in read(path))


@pytest.mark.parametrize("size", [b"\xff" * 4 + (2**64 - 1024).to_bytes(8), b"\x80" + b"\x7f" * 11, b"99999999999\0"])
def test_a_header_with_an_impossible_size_ends_the_archive(tmp_path: Path, size: bytes) -> None:
    header = bytearray(bombs.header("a.txt", 0))
    header[124:136] = size
    (tmp_path / "a.tar").write_bytes(bombs.GOOD + bombs.with_checksum(header) + bombs.GOOD + bombs.END)
    first, last = read(tmp_path / "a.tar")
    assert isinstance(first, NamedImage)
    assert isinstance(last, Refusal)
