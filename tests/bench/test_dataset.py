"""An image inside a shard is so many bytes of it; nothing is ever extracted."""

import io
import tarfile
from pathlib import Path

import pytest

from discopatch.bench.dataset import list_files
from discopatch.demo import crops, sample_photos
from discopatch.errors import NoImagesError, ParameterError
from tests.bench.bench_samples import write_shard


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    write_shard(tmp_path / "photos.tar", crops(sample_photos(["cat", "coins"]), 4, size=70, seed=0), "JPEG")
    return tmp_path / "photos.tar"


def test_a_member_read_from_its_offset_is_the_member(shard: Path) -> None:
    with tarfile.open(shard) as archive:
        members = {member.name: archive.extractfile(member) for member in archive}
        expected = {name: stream.read() for name, stream in members.items() if stream is not None}
    found = list_files(shard)
    assert [file.name for file in found] == sorted(expected)
    assert {file.name: file.read() for file in found} == expected


@pytest.mark.parametrize("name", ["../../outside.jpg", "/etc/outside.jpg"])
def test_a_path_that_leads_out_is_only_a_name(shard: Path, tmp_path: Path, name: str) -> None:
    data = list_files(shard)[0].read()
    with tarfile.open(tmp_path / "odd.tar", "w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    before = set(tmp_path.rglob("*"))
    (file,) = list_files(tmp_path / "odd.tar")
    assert (file.path, file.read()) == (tmp_path / "odd.tar", data)
    assert file.name == name
    assert set(tmp_path.rglob("*")) == before


def test_what_is_no_image_is_left_out(shard: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "mixed.tar", "w") as archive:
        archive.add(shard, "photos/notes.txt")
        (link := tarfile.TarInfo("photos/link.jpg")).type = tarfile.SYMTYPE
        link.linkname = "/etc/passwd"
        archive.addfile(link)
        archive.add(tmp_path, "photos.jpg", recursive=False)  # a folder
    with pytest.raises(NoImagesError, match=r"mixed\.tar"):
        list_files(tmp_path / "mixed.tar")


def test_a_compressed_shard_is_refused_with_the_remedy(shard: Path, tmp_path: Path) -> None:
    with tarfile.open(packed := tmp_path / "photos.tar.gz", "w:gz") as archive:
        archive.add(shard, "photos.jpg")
    with pytest.raises(ParameterError, match="gunzip"):
        list_files(packed)
