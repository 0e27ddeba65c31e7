"""Detectors that must be signed, with signatures of the real minisign program."""

import base64
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from discopatch.errors import DiscopatchError
from discopatch.model import read_safetensors, write_safetensors
from discopatch.serve.signatures import signed_copy
from tests.serve.conftest import Serve
from tests.serve.samples import NAME, SCORE, camera_files, form

MINISIGN = shutil.which("minisign")
pytestmark = pytest.mark.skipif(MINISIGN is None, reason="needs minisign, of Debian's package of that name")
Change = Callable[[Path], object]


class Owner:
    """The keys of somebody who signs detectors."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.public, self._secret = folder / "owner.pub", folder / "owner.key"
        self._run("-G", "-W", "-p", self.public, "-s", self._secret)

    def sign(self, path: Path, *options: str) -> None:
        self._run("-S", *options, "-s", self._secret, "-t", "camera 3, line 1", "-m", path)

    def _run(self, *arguments: object) -> None:
        subprocess.run([str(MINISIGN), *map(str, arguments)], check=True, capture_output=True)


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path / "owner")


@pytest.fixture(params=["detector", "export"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a detector's file or of an export."""
    if request.param == "detector":
        source = request.getfixturevalue("detector_file")
        return Path(shutil.copy(source, tmp_path / f"{NAME}.safetensors"))
    return Path(shutil.copytree(request.getfixturevalue("export_folder"), tmp_path / f"{NAME}-onnx"))


def signed_file(place: Path) -> Path:
    return place / "detector.json" if place.is_dir() else place


def change_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("options", [(), ("-l",)], ids=["hashed", "legacy"])
def test_a_signed_detector_is_served_and_a_reload_refuses_a_changed_one(
    serve: Serve, owner: Owner, place: Path, options: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "discopatch.serve")
    owner.sign(signed_file(place), *options)
    client = serve(detectors={NAME: place}, require_signature=owner.public)
    assert [each.fields["trusted_comment"] for each in caplog.records if each.msg == "signature"] == [  # type: ignore[attr-defined]
        "camera 3, line 1"
    ]
    before = client.post(SCORE, files=form(camera_files(1))).json()["predictions"]
    assert client.post("/v1/reload").status_code == 200
    change_a_byte(signed_file(place))
    refused = client.post("/v1/reload")
    assert (refused.status_code, "does not fit" in refused.json()["detail"]) == (422, True)
    assert client.post(SCORE, files=form(camera_files(1))).json()["predictions"] == before


def replace_line(number: int, line: str) -> Change:
    def change(place: Path) -> None:
        path = Path(f"{signed_file(place)}.minisig")
        lines = path.read_text().splitlines()
        path.write_text("\n".join([*lines[:number], line, *lines[number + 1 :]]))

    return change


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda place: Path(f"{signed_file(place)}.minisig").unlink(), "is not signed"),
        (lambda place: change_a_byte(signed_file(place)), "does not fit"),
        (lambda place: change_a_byte(place / "detector.onnx" if place.is_dir() else place), ""),
        (lambda place: Owner(place.parent / "other").sign(signed_file(place)), "another key"),
        (replace_line(2, "trusted comment: camera 4"), "does not fit"),
        (replace_line(3, base64.b64encode(bytes(64)).decode()), "does not fit"),
        (replace_line(1, base64.b64encode(b"XX" + bytes(72)).decode()), "not a signature"),
        (replace_line(1, "nonsense"), "not a signature"),
    ],
    ids=["unsigned", "content", "graph", "key", "comment", "outer", "algorithm", "nonsense"],
)
def test_any_other_detector_is_refused(serve: Serve, owner: Owner, place: Path, change: Change, part: str) -> None:
    owner.sign(signed_file(place))
    change(place)
    with pytest.raises(DiscopatchError, match=f"detector {NAME}: .*{part}"):
        serve(detectors={NAME: place}, require_signature=owner.public)


def test_what_is_loaded_are_the_bytes_that_were_checked(owner: Owner, place: Path) -> None:
    owner.sign(signed_file(place))
    names = ["detector.json", "detector.onnx"] if place.is_dir() else [""]
    before = [(place / name).read_bytes() for name in names]
    with signed_copy(place, owner.public) as copied:
        for name in names:
            change_a_byte(place / name)
        assert [(copied / name).read_bytes() for name in names] == before
        (private,) = (each for each in copied.parents if each.suffix == ".partial")
        assert private.stat().st_mode & 0o077 == 0
    assert not copied.exists()


def test_a_detector_that_reads_unsigned_networks_is_refused(owner: Owner, detector_file: Path, tmp_path: Path) -> None:
    header, tensors = read_safetensors(detector_file, kind="detector")
    path = tmp_path / "outside.safetensors"
    write_safetensors(path, tensors, kind="detector", header={**header, "networks": {"dinov2=/anywhere": "0" * 16}})
    owner.sign(path)
    with pytest.raises(DiscopatchError, match="network from outside"), signed_copy(path, owner.public):
        pass


def test_a_file_that_is_no_key_is_refused(owner: Owner, detector_file: Path, tmp_path: Path) -> None:
    for content in (b"", b"nonsense", base64.b64encode(b"XX" + bytes(40)), b"x" * 100_000):
        (tmp_path / "key.pub").write_bytes(content)
        with pytest.raises(DiscopatchError, match=r"key\.pub"), signed_copy(detector_file, tmp_path / "key.pub"):
            pass
