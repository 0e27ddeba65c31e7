"""A folder that is not what was exported is refused; a new folder is complete or not there."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from discopatch import Runtime
from discopatch.errors import ExportError, OutputError
from discopatch.export.metadata import FORMAT, MAX_BYTES, Metadata, check_destination, digest_of
from discopatch.export.runtime import Outputs
from discopatch.utils import file_digest, staged_folder
from tests.export.samples import camera_pixels

Content = dict[str, Any]


@pytest.fixture
def copied(onnx_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(onnx_folder, tmp_path / "copied"))


def change(folder: Path, alter: Callable[[Content], object] = lambda content: None) -> Path:
    """The folder with other metadata, whose digests fit its files as they are now."""
    path = folder / "detector.json"
    content = json.loads(path.read_text())
    del content["digest"]
    content["files"] = {name: file_digest(folder / name) for name in content["files"]}
    alter(content)
    path.write_text(json.dumps({**content, "digest": digest_of(content)}))
    return folder


def test_a_copied_folder_loads(copied: Path) -> None:
    scores = Runtime.load(copied).score(list(camera_pixels(2)))
    assert Runtime.load(change(copied)).score(list(camera_pixels(2))).tolist() == scores.tolist()


@pytest.mark.parametrize(
    ("alter", "named"),
    [
        (lambda content: content.update(format=FORMAT + 1), "format"),
        (lambda content: content.update(format=str(FORMAT)), "format"),
        (lambda content: content.update(kind="detector"), "export"),
        (lambda content: content.update(graph="tflite"), "graph"),
        (lambda content: content.update(graph="openvino"), "files"),
        (lambda content: content.update(files={}), "files"),
        (lambda content: content.update(files={"../detector.onnx": "0" * 64}), "files"),
        (lambda content: content["files"].update({"maps.onnx": "0" * 64}), "maps.onnx"),
        (lambda content: content.pop("place_level"), "place_level"),
        (lambda content: content.update(place_level=0.0), "place_level"),
        (lambda content: content.pop("settings"), "settings"),
        (lambda content: content["settings"].pop("transform"), "transform"),
        (lambda content: content["settings"].update(transform_digest="0" * 16), "transform"),
        (lambda content: content["settings"]["transform"].update(version=99), "transform"),
        (lambda content: content["settings"]["transform"].update(size=10**6), "size"),
        (lambda content: content["settings"].update(false_alarm_rate=True), "false_alarm_rate"),
        (lambda content: content["settings"].update(false_alarm_rate=2), "false_alarm_rate"),
        (lambda content: content["settings"].update(images=-1), "images"),
        (lambda content: content["calibration_scores"].reverse(), "ascending"),
        (lambda content: content.update(calibration_scores=[1.0]), "calibration"),
        (lambda content: content.update(calibration_scores=["1"] * 20), "calibration_scores"),
        (lambda content: content.update(calibrated_by="me"), "calibrated_by"),
        (lambda content: content.update(components=["place", "place"]), "components"),
        (lambda content: content.update(components=["other"]), "components"),
        (lambda content: content.update(significance_level=None), "significance_level"),
    ],
)
def test_metadata_that_does_not_fit_is_refused_by_name(
    copied: Path, alter: Callable[[Content], object], named: str
) -> None:
    with pytest.raises(ExportError, match=named):
        Runtime.load(change(copied, alter))


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"format": 3}'])
def test_a_file_that_is_not_metadata_is_refused(copied: Path, content: str) -> None:
    (copied / "detector.json").write_text(content)
    with pytest.raises(ExportError, match=r"detector\.json"):
        Runtime.load(copied)


def test_another_folder_is_not_an_export(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ExportError, match=str(folder)):
            Runtime.load(folder)


@pytest.mark.parametrize("name", ["detector.json", "detector.onnx"])
def test_a_change_of_any_byte_is_noticed(copied: Path, name: str) -> None:
    """Each changed byte of the metadata is one ExportError, or, as in white space, changes nothing."""
    path, rng = copied / name, np.random.default_rng(0)
    original, before = path.read_bytes(), Metadata.read(copied)
    for place in rng.integers(0, len(original), 40 if name == "detector.json" else 4):
        content = bytearray(original)
        content[place] ^= int(rng.integers(1, 256))
        path.write_bytes(content)
        try:
            assert Metadata.read(copied) == before
        except ExportError:
            continue
        assert name == "detector.json"
    path.unlink()
    with pytest.raises(ExportError, match=str(copied)):
        Runtime.load(copied)


@pytest.mark.parametrize("name", ["detector.json", "detector.onnx"])
def test_a_file_of_many_empty_bytes_is_refused_by_its_size(copied: Path, name: str) -> None:
    with (copied / name).open("r+b") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(ExportError, match=f"{MAX_BYTES:,}"):
        Runtime.load(copied)


@pytest.mark.parametrize("place", ["beside.bin", "../outside.bin", "/etc/passwd"])
def test_a_graph_that_reads_another_file_is_refused(copied: Path, place: str) -> None:
    """Also one that fits its digests: whoever writes a graph writes them too."""
    model = onnx.load(copied / "detector.onnx")
    tensor = next(each for each in model.graph.initializer if each.raw_data)
    for path in (copied / "beside.bin", copied.parent / "outside.bin"):
        path.write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    onnx.save(model, copied / "detector.onnx")
    with pytest.raises(ExportError, match="files"):
        Runtime.load(change(copied))


def test_a_file_that_is_not_a_graph_is_refused(copied: Path) -> None:
    (copied / "detector.onnx").write_bytes(b"no graph at all")
    with pytest.raises(ExportError, match="graph"):
        Runtime.load(change(copied))


def test_a_graph_of_other_inputs_and_outputs_is_refused(copied: Path) -> None:
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "other", [given], [made])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, copied / "detector.onnx")
    with pytest.raises(ExportError, match="graph"):
        Runtime.load(change(copied)).score(camera_pixels(1))


SOUND: Outputs = {"score": np.zeros(1), "components": np.zeros((1, 3)), "place_map": np.zeros((1, 16, 16))}


@pytest.mark.parametrize(
    "wrong",
    [
        {"score": np.zeros(2)},
        {"score": np.zeros((1, 1))},
        {"components": np.zeros((1, 2))},
        {"components": None},
        {"other": np.zeros(1)},
        {"place_map": None},
        {"place_map": np.zeros((1, 0, 0))},
        {"place_map": np.zeros((16, 16))},
    ],
)
def test_outputs_that_do_not_fit_the_metadata_are_refused(onnx_folder: Path, wrong: dict[str, Any]) -> None:
    def run_with(outputs: dict[str, Any]) -> object:
        kept = {name: values for name, values in outputs.items() if values is not None}
        return Runtime(Metadata.read(onnx_folder), lambda pixels: kept).explain(camera_pixels(1)[0])

    run_with(SOUND)
    with pytest.raises(ExportError, match="shapes"):
        run_with({**SOUND, **wrong})


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
    """What the files of the folder hold; nothing else is beside it."""
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    return {path.read_text() for path in folder.iterdir()}


def test_the_old_export_stays_when_the_new_one_cannot_be_moved(existing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OutputError), staged_folder(existing) as staged:
        fill(staged, "new")
    assert contents(existing) == {"old"}


def test_a_file_or_a_folder_with_other_files_is_never_replaced(existing: Path, tmp_path: Path) -> None:
    (existing / "photo.png").write_text("precious")
    (tmp_path / "camera").write_text("a detector")
    for place in (existing, tmp_path / "camera"):
        with pytest.raises(ExportError, match=place.name):
            check_destination(place, force=True)
    assert {path.read_text() for path in existing.iterdir()} == {"old", "precious"}
    assert (tmp_path / "camera").read_text() == "a detector"
