"""A folder is there whole or not at all, and nothing else is ever lost for it."""

from pathlib import Path

import pytest

from discopatch.deploy.folder import whole_folder
from discopatch.deploy.sidecar import ExportError


def fill(folder: Path, content: str) -> None:
    (folder / "detector.json").write_text(content)
    (folder / "detector.onnx").write_text(content)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """An export from before."""
    folder = tmp_path / "camera-onnx"
    folder.mkdir()
    fill(folder, "old")
    return folder


def contents(folder: Path) -> set[str]:
    return {path.read_text() for path in folder.iterdir()}


def test_a_new_folder_appears_with_all_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "camera-onnx"
    with whole_folder(folder) as building:
        fill(building, "new")
        assert not folder.exists()
    assert contents(folder) == {"new"}
    assert [path.name for path in folder.parent.iterdir()] == ["camera-onnx"]


def test_an_export_is_replaced_only_when_asked(there: Path) -> None:
    with pytest.raises(ExportError, match=r"camera-onnx exists: choose another folder, or force"), whole_folder(there):
        pytest.fail("it began")
    with whole_folder(there, force=True) as building:
        fill(building, "new")
        assert contents(there) == {"old"}
    assert contents(there) == {"new"}
    assert [path.name for path in there.parent.iterdir()] == ["camera-onnx"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_fails_leaves_nothing_behind_and_the_old_one_as_it_was(there: Path, error: type[BaseException]) -> None:
    def fail(building: Path) -> None:
        fill(building, "half")
        raise error

    with pytest.raises(error), whole_folder(there, force=True) as building:
        fail(building)
    assert contents(there) == {"old"}
    assert [path.name for path in there.parent.iterdir()] == ["camera-onnx"]


def test_the_old_one_comes_back_when_the_new_one_cannot_be_moved(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="no"), whole_folder(there, force=True) as building:
        fill(building, "new")
    assert contents(there) == {"old"}
    assert [path.name for path in there.parent.iterdir()] == ["camera-onnx"]


def test_a_folder_with_other_things_in_it_is_never_replaced(there: Path) -> None:
    (there / "photo.png").write_text("precious")
    with (
        pytest.raises(ExportError, match="holds other things than an export, and is not replaced: choose another"),
        whole_folder(there, force=True),
    ):
        pytest.fail("it began")
    assert contents(there) == {"old", "precious"}


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "camera").write_text("a detector")
    with pytest.raises(ExportError, match="is not replaced"), whole_folder(tmp_path / "camera", force=True):
        pytest.fail("it began")
    assert (tmp_path / "camera").read_text() == "a detector"
