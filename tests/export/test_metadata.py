"""A folder that is not what was exported is refused; a new one is there whole or not at all."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from discopatch import Runtime, utils
from discopatch.errors import ExportError, OutputError, ParameterError
from discopatch.export.metadata import FORMAT, staged_folder
from discopatch.seal import UNSEALED, seal


@pytest.fixture
def copied(onnx_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(onnx_folder, tmp_path / "copied"))


def change(folder: Path, **changes: Any) -> Path:
    """Entries of the metadata get other values, or go where the value is None."""
    content = {**json.loads((folder / "detector.json").read_text()), **changes}
    kept = {name: value for name, value in content.items() if value is not None}
    (folder / "detector.json").write_text(json.dumps({**kept, "file_digest": UNSEALED}))
    seal(folder / "detector.json")
    return folder


def test_a_copied_folder_loads(copied: Path) -> None:
    Runtime.load(change(copied))


@pytest.mark.parametrize(
    ("changes", "mentioned"),
    [
        ({"format": FORMAT + 1}, "update discopatch"),
        ({"format": FORMAT - 1}, "export the detector again"),
        ({"format": str(FORMAT)}, "`discopatch export`"),
        ({"kind": "detector"}, "`discopatch export`"),
        ({"graph": "tflite"}, "'tflite'"),
        ({"graph": "openvino"}, r"\['detector.onnx'\]"),
        ({"files": {}}, r"\['detector.onnx'\]"),
        ({"files": {"../detector.onnx": "0"}}, "export again"),
        ({"files": {"/etc/passwd": "0"}}, "export again"),
        ({"files": {"detector.onnx": "0" * 64}}, "detector.onnx"),
        ({"transform_digest": "0" * 16}, "transform"),
        *(({name: None}, name) for name in ("files", "transform", "calibration", "false_alarm_rate")),
    ],
)
def test_metadata_that_does_not_fit_is_refused(copied: Path, changes: dict[str, Any], mentioned: str) -> None:
    with pytest.raises(ExportError, match=mentioned):
        Runtime.load(change(copied, **changes))


def test_a_transform_of_another_version_is_refused(copied: Path) -> None:
    with pytest.raises(ValueError, match="99"):
        Runtime.load(change(copied, transform={"version": 99}))


def test_a_changed_graph_is_noticed(copied: Path) -> None:
    content = bytearray((copied / "detector.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (copied / "detector.onnx").write_bytes(content)
    with pytest.raises(ExportError, match=r"detector\.onnx"):
        Runtime.load(copied)


def test_a_missing_graph_is_named(copied: Path) -> None:
    (copied / "detector.onnx").unlink()
    with pytest.raises(ExportError, match=r"detector\.onnx"):
        Runtime.load(copied)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"format": 1}'])
def test_a_file_that_is_no_metadata_is_refused(copied: Path, content: str) -> None:
    (copied / "detector.json").write_text(content)
    with pytest.raises(ExportError, match=r"detector\.json"):
        Runtime.load(copied)


def test_another_folder_is_no_export(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ExportError, match=str(folder)):
            Runtime.load(folder)


def test_threads_are_at_least_one(copied: Path) -> None:
    with pytest.raises(ParameterError, match="threads"):
        Runtime.load(copied, threads=0)


# The folder


def fill(folder: Path, content: str) -> None:
    (folder / "detector.json").write_text(content)
    (folder / "detector.onnx").write_text(content)


@pytest.fixture
def existing(tmp_path: Path) -> Path:
    """An export from before."""
    folder = tmp_path / "camera-onnx"
    folder.mkdir()
    fill(folder, "old")
    return folder


def contents(folder: Path) -> set[str]:
    """What the files of the folder hold; nothing else stands beside it."""
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    return {path.read_text() for path in folder.iterdir()}


def test_a_new_folder_appears_with_all_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "camera-onnx"
    with staged_folder(folder) as staged:
        fill(staged, "new")
        assert not folder.exists()
    assert contents(folder) == {"new"}


def test_an_export_is_replaced_only_when_asked(existing: Path) -> None:
    with pytest.raises(ExportError, match="camera-onnx"), staged_folder(existing):
        pytest.fail("it began")
    with staged_folder(existing, force=True) as staged:
        fill(staged, "new")
        assert {path.read_text() for path in existing.iterdir()} == {"old"}
    assert contents(existing) == {"new"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_nothing_behind_and_the_old_one_as_it_was(existing: Path, error: type[BaseException]) -> None:
    def fail(staged: Path) -> None:
        fill(staged, "half")
        raise error

    with pytest.raises(error), staged_folder(existing, force=True) as staged:
        fail(staged)
    assert contents(existing) == {"old"}


def test_the_old_one_comes_back_when_the_new_one_cannot_be_moved(
    existing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(utils, "exchange", lambda first, second: False)
    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OutputError, match="no"), staged_folder(existing, force=True) as staged:
        fill(staged, "new")
    assert contents(existing) == {"old"}


def test_a_folder_with_other_things_in_it_is_never_replaced(existing: Path) -> None:
    (existing / "photo.png").write_text("precious")
    with pytest.raises(ExportError, match="camera-onnx"), staged_folder(existing, force=True):
        pytest.fail("it began")
    assert contents(existing) == {"old", "precious"}


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "camera").write_text("a detector")
    with pytest.raises(ExportError, match="camera"), staged_folder(tmp_path / "camera", force=True):
        pytest.fail("it began")
    assert (tmp_path / "camera").read_text() == "a detector"
