"""Folders and files that the code blocks of the pages use."""

import tarfile
from dataclasses import replace
from pathlib import Path
from shutil import copyfile, copytree

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from discopatch.images import NamedImage
from tests.encoders.outside_samples import save_checkpoint
from tests.samples import one_camera, save_images


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory, detector_file: Path, export_folder: Path) -> Path:
    """A folder with images, shards, tables, networks from outside and detectors, by the names that pages use."""
    root = tmp_path_factory.mktemp("prepared")
    for folder, count, seed in (("photos", 40, 0), ("new-normal-images", 66, 3), ("more-normal-images", 40, 4)):
        save_images(root / folder, one_camera(count, size=256, seed=seed))
    for number, image in enumerate(one_camera(18, size=256, seed=1)):
        save_images(root / "incoming", [NamedImage(f"{number:02}", image.pixels)])
    for number, image in enumerate(one_camera(60, size=256, seed=2)):
        scene, frame = divmod(number, 2)
        save_images(root / "bursts", [NamedImage(f"part-{scene:02}_{frame:04}", image.pixels)])
        save_images(root / "days" / f"day-{scene:02}", [NamedImage(f"{frame}", image.pixels)])
    for kind, seed, change in (("bolt", 8, 0), ("nut", 9, 255)):
        images = one_camera(32, size=256, seed=seed)
        save_images(root / "line" / kind, [replace(each, pixels=each.pixels ^ np.uint8(change)) for each in images])
    for kind, seed in (("good", 5), ("scratch", 6), ("stain", 7)):
        images = one_camera(3, size=256, seed=seed)
        save_images(root / "labelled" / kind, images)
        if kind != "good":
            save_images(root / "masks" / kind, [NamedImage(f"{each.name}_mask", each.pixels) for each in images])
    photos = sorted((root / "photos").iterdir())
    (root / "shards").mkdir()
    for number in range(2):
        with tarfile.open(root / "shards" / f"part-{number}.tar", "w") as archive:
            for path in photos[number::2]:
                archive.add(path, path.name)
    data = [path.read_bytes() for path in photos]
    table = pyarrow.table({"name": [path.name for path in photos], "image": data, "thumbnail": data})
    pyarrow.parquet.write_table(table, root / "photos.parquet")
    (root / "names.txt").write_text("incoming/00.png\nincoming/17.png\n")
    save_checkpoint(root / "models" / "dinov2-small", "dinov2")
    copyfile(detector_file, root / "camera-3.safetensors")
    copytree(export_folder, root / "camera-3-onnx")
    return root
