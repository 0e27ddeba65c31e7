"""What a reader of the pages has: images, detectors and all else by the names that pages use."""

from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree

import pyarrow
import pyarrow.parquet
import pytest

from discopatch.images import NamedImage
from tests.bench.bench_samples import write_shard
from tests.docs.reader import run_page
from tests.encoders.outside_samples import SmallNetwork, save_checkpoint
from tests.hub.test_hub import FakeHub, hub  # noqa: F401 - a fixture
from tests.images.s3 import Bucket, s3_bucket
from tests.samples import natural_detector, one_camera, save_images

BY_ITSELF = "docs/tutorial.md"  # makes the folders that others find


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("prepared")
    prepare(root)
    return root


@pytest.fixture(scope="session")
def made() -> dict[tuple[str, ...], Path]:
    """What long commands have made on one page, for others with the same command."""
    return {}


@pytest.fixture(scope="module")
def bucket(prepared: Path) -> Iterator[Bucket]:
    with s3_bucket("bucket") as found:
        for folder, name in (("incoming", "incoming"), ("incoming", "photos"), ("shards", "shards")):
            found.put_folder(prepared / folder, name)
        yield found


@pytest.fixture
def read_page(
    prepared: Path,
    bucket: Bucket,
    made: dict[tuple[str, ...], Path],
    hub: FakeHub,  # noqa: F811 - the fixture of that name
    tmp_path: Path,
) -> Callable[[str], None]:
    """Runs all that a page has, in a folder of its own."""

    def read(page: str) -> None:
        folder = tmp_path / "reader"
        folder.mkdir()
        if page == BY_ITSELF:
            run_page(page, folder, bucket, {})
        else:
            copytree(prepared, folder, dirs_exist_ok=True)
            run_page(page, folder, bucket, made)

    return read


def prepare(root: Path) -> None:
    """Folders of images, shards, tables, networks from outside and detectors, by the names that pages use."""
    for folder, count, seed in (("photos", 40, 0), ("new-normal-images", 24, 3), ("more-normal-images", 40, 4)):
        save_images(root / folder, one_camera(count, size=256, seed=seed))
    for number, image in enumerate(one_camera(18, size=256, seed=1)):
        save_images(root / "incoming", [NamedImage(f"{number:02}", image.pixels)])
    for number, image in enumerate(one_camera(60, size=256, seed=2)):
        scene, frame = divmod(number, 2)
        save_images(root / "bursts", [NamedImage(f"part-{scene:02}_{frame:04}", image.pixels)])
        save_images(root / "days" / f"day-{scene:02}", [NamedImage(f"{frame}", image.pixels)])
    (root / "shards").mkdir()
    for number in range(2):
        write_shard(root / "shards" / f"part-{number}.tar", one_camera(20, size=256, seed=5 + number), "PNG")
    photos = sorted((root / "photos").iterdir())
    data = [each.read_bytes() for each in photos]
    table = pyarrow.table({"name": [each.name for each in photos], "image": data, "thumbnail": data})
    pyarrow.parquet.write_table(table, root / "photos.parquet")
    (root / "names.txt").write_text("incoming/00.png\nincoming/17.png\n")
    (root / "tokens").write_text("a-token-of-a-test\n")
    (root / "tokens").chmod(0o600)
    save_checkpoint(root / "models" / "dinov2-small", "dinov2")
    SmallNetwork().save(root / "models" / "parts.onnx")
    for name in ("camera-3", "camera-4"):
        natural_detector().save(root / name)
    natural_detector().export(root / "camera-3-onnx", reference=one_camera(8, size=256, seed=3))
    copytree(root / "camera-3-onnx", root / "camera-4-onnx")
