"""An archive is read, never unpacked, and refused whole when anything in it is odd."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from discopatch.baselines.backbones.archive import read_members
from discopatch.baselines.backbones.convert import PackageRefused

from .samples import write_tar, write_zip

Write = Callable[[Path, dict[str, bytes]], Path]
MEMBERS = {"package/a.bin": b"first", "package/deep/b.bin": b"second", "package/README.md": b"not wanted"}

both = pytest.mark.parametrize("write", [write_tar, write_zip])


@both
def test_only_what_is_wanted_is_read(write: Write, tmp_path: Path) -> None:
    path = write(tmp_path / "some", MEMBERS)
    found = read_members(path, ["package/deep/b.bin", "package/a.bin"], limit=100)
    assert found == {"package/a.bin": b"first", "package/deep/b.bin": b"second"}
    assert list(tmp_path.iterdir()) == [path]


@both
@pytest.mark.parametrize("name", ["../outside", "package/../../outside", "/etc/outside", "package\\..\\outside"])
def test_a_path_that_leads_out_is_refused(write: Write, name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "some", MEMBERS | {name: b"evil"})
    with pytest.raises(PackageRefused, match="leads out of it"):
        read_members(path, ["package/a.bin"], limit=100)
    assert list(tmp_path.iterdir()) == [path]


@both
def test_a_file_above_the_limit_is_refused_wanted_or_not(write: Write, tmp_path: Path) -> None:
    path = write(tmp_path / "some", MEMBERS | {"package/large": bytes(101)})
    with pytest.raises(PackageRefused, match="package/large has 101 bytes, more than 100"):
        read_members(path, ["package/a.bin"], limit=100)


@both
def test_a_missing_file_is_refused(write: Write, tmp_path: Path) -> None:
    with pytest.raises(PackageRefused, match=r"has no package/c\.bin"):
        read_members(write(tmp_path / "some", MEMBERS), ["package/a.bin", "package/c.bin"], limit=100)


def test_a_wheel_that_lies_about_a_size_is_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "some", {"package/a.bin": bytes(5000)})
    told = path.read_bytes().replace((5000).to_bytes(4, "little"), (50).to_bytes(4, "little"))
    path.write_bytes(told)
    with pytest.raises(PackageRefused):
        read_members(path, ["package/a.bin"], limit=100)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(kind: bytes, tmp_path: Path) -> None:
    path = tmp_path / "some"
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("package/a.bin")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(PackageRefused, match="neither a file nor a folder"):
        read_members(path, ["package/a.bin"], limit=100)


@both
def test_a_cut_archive_is_refused(write: Write, tmp_path: Path) -> None:
    path = write(tmp_path / "some", MEMBERS)
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(PackageRefused, match="cannot be read as a package"):
        read_members(path, ["package/a.bin"], limit=100)


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "some"
    path.write_bytes(io.BytesIO(b"<html>not found</html>").getvalue())
    with pytest.raises(PackageRefused, match="cannot be read as a package"):
        read_members(path, ["package/a.bin"], limit=100)
