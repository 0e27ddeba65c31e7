"""What a run would miss is named set by set, without downloading anything."""

import shutil
from pathlib import Path

import pytest

from discopatch.bench.suites import check_data
from discopatch.errors import NoImagesError
from tests.bench.bench_samples import make_folders
from tests.bench.suites.imagenet_samples import make_imagenet

LARGE = "images_largescale"


def test_missing_files_and_lists_of_imagenet_have_their_path_and_their_source(tmp_path: Path) -> None:
    root = make_imagenet(tmp_path / "data", fit=30)
    assert check_data(root) == {}
    shutil.rmtree(root / LARGE / "imagenet_1k/train")
    images = sorted((root / LARGE / "openimage_o/images").iterdir())
    for path in images[2:5]:
        path.unlink()
    (root / "benchmark_imglist/imagenet/test_ninco.txt").unlink()
    problems = check_data(root)
    assert list(problems) == ["train", "ninco", "openimage_o"]
    assert "30 of 30" in problems["train"]
    assert "https://image-net.org" in problems["train"]
    assert "test_ninco.txt" in problems["ninco"]
    assert "3 of 8" in problems["openimage_o"]
    assert f"openimage_o/images/{images[2].name}" in problems["openimage_o"]
    assert "--datasets openimage_o" in problems["openimage_o"]


def test_shards_of_photos_and_solar_cells_are_recognised(tmp_path: Path) -> None:
    make_folders(tmp_path)
    assert check_data(tmp_path) == check_data(tmp_path / "solar") == {}
    (tmp_path / "ood/steel.tar").unlink()
    assert "ood/steel.tar" in check_data(tmp_path)["natural"]
    (tmp_path / "solar/images/cell0004.png").unlink()
    assert "images/cell0004.png" in check_data(tmp_path / "solar")["solar"]
    with pytest.raises(NoImagesError):
        check_data(tmp_path / "solar/images")
