"""A folder that is not what was exported is refused with the remedy."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from discopatch import Runtime
from discopatch.deploy.sidecar import FORMAT, ExportError


@pytest.fixture
def copied(onnx_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(onnx_folder, tmp_path / "copied"))


def changed(folder: Path, **changes: Any) -> Path:
    content = json.loads((folder / "detector.json").read_text())
    (folder / "detector.json").write_text(json.dumps({**content, **changes}))
    return folder


def test_a_folder_that_was_copied_loads(copied: Path) -> None:
    """Or the refusals below would prove nothing."""
    Runtime.load(changed(copied))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": FORMAT + 1}, rf"has format {FORMAT + 1}, this discopatch reads up to {FORMAT}: update discopatch"),
        ({"format": "1"}, "is not one of discopatch: give a folder that `discopatch export` wrote"),
        ({"kind": "detector"}, "is not one of discopatch"),
        ({"graph": "tflite"}, r"of the format 'tflite', which this version does not know: install .*, or export again"),
        ({"graph": "openvino"}, r"lists \['detector.onnx'\], but an export to openvino has .*export again"),
        ({"files": {}}, r"lists \[\], but an export to onnx has \['detector.onnx'\]: it was changed by hand"),
        ({"files": {"../detector.onnx": "0"}}, "it was changed by hand; export again"),
        ({"files": {"/etc/passwd": "0"}}, "it was changed by hand; export again"),
        ({"files": {"detector.onnx": "0" * 64}}, "is not the file that was exported: copy the folder again"),
        ({"transform_digest": "0" * 16}, "names another transform than its digest: export the detector again"),
        ({"transform": {"version": 99}}, "update discopatch or fit again"),
    ],
)
def test_a_sidecar_that_does_not_fit_is_refused(copied: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Runtime.load(changed(copied, **changes))


@pytest.mark.parametrize("missing", ["files", "transform", "calibration", "threshold"])
def test_a_sidecar_that_leaves_something_out_is_refused(copied: Path, missing: str) -> None:
    content = json.loads((copied / "detector.json").read_text())
    del content[missing]
    (copied / "detector.json").write_text(json.dumps(content))
    with pytest.raises(ExportError, match=rf"does not say {missing}: export the detector again"):
        Runtime.load(copied)


def test_a_graph_that_was_changed_is_noticed(copied: Path) -> None:
    content = bytearray((copied / "detector.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (copied / "detector.onnx").write_bytes(content)
    with pytest.raises(ExportError, match=r"detector\.onnx is not the file that was exported: copy the folder again"):
        Runtime.load(copied)


def test_a_missing_graph_is_named(copied: Path) -> None:
    (copied / "detector.onnx").unlink()
    with pytest.raises(ExportError, match=r"has no detector\.onnx: copy the whole folder, or export again"):
        Runtime.load(copied)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"format": 1}'])
def test_a_sidecar_that_is_none_is_refused(copied: Path, content: str) -> None:
    (copied / "detector.json").write_text(content)
    with pytest.raises(ExportError, match=r"cannot be read as JSON.*copy the folder again|is not one of discopatch"):
        Runtime.load(copied)


def test_another_folder_is_no_export(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ExportError, match=r"no export at .*: give a folder that `discopatch export` wrote"):
            Runtime.load(folder)
