"""Exports from anyone: one ExportError with the remedy, or one that scores; nothing outside the folder is read."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzz_files
import numpy as np
import onnx
import pytest
from discopatch.export.guard import GuardedEngine
from onnx import TensorProto, helper

from discopatch import Runtime
from discopatch.errors import ExportError
from discopatch.export.engines import GraphOutput
from discopatch.export.metadata import MAX_GRAPH_BYTES, MAX_METADATA_BYTES, Metadata
from discopatch.seal import UNSEALED, seal
from discopatch.utils import file_digest
from tests.export.samples import camera_pixels


@pytest.fixture
def copied(onnx_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(onnx_folder, tmp_path / "copied"))


def reseal(folder: Path, change: Callable[[dict[str, Any]], object] = lambda content: None) -> Path:
    """The folder with other metadata, whose digests fit the files as they are now."""
    path = folder / "detector.json"
    content = json.loads(path.read_text())
    content["files"]["detector.onnx"] = file_digest(folder / "detector.onnx")
    change(content)
    path.write_text(json.dumps({**content, "file_digest": UNSEALED}))
    seal(path)
    return folder


def test_changed_exports_are_refused_with_one_error_or_load_and_are_sound(
    onnx_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = fuzz_files.Kind(lambda folder: shutil.copytree(onnx_folder, folder / "export"), fuzz_files.load_export)
    monkeypatch.setitem(fuzz_files.KINDS, "export", kind)
    found = fuzz_files.fuzz("export", 150, seed=1)
    assert found.other == []
    assert sum(found.counts.values()) == 150
    assert found.most_bytes < fuzz_files.MOST_BYTES


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda content: content["calibration"]["scores"].reverse(), "ascending"),
        (lambda content: content["calibration"].update(scores=[1.0]), "calibration"),
        (lambda content: content["calibration"].update(scores=["1"] * 20), "scores"),
        (lambda content: content["calibration"].update(by="me"), "calibration.by"),
        (lambda content: content.update(calibration=[]), "calibration"),
        (lambda content: content.update(false_alarm_rate=True), "false_alarm_rate"),
        (lambda content: content.update(false_alarm_rate=2), "false_alarm_rate"),
        (lambda content: content.update(images=-1), "images"),
        (lambda content: content.update(files=["detector.onnx"]), "files"),
        (lambda content: content["transform"].update(size=10**6), "size"),
        (lambda content: content.update(graph=["onnx"]), "graph"),
        (lambda content: content.update(components=["place"]), "components"),
        (lambda content: content.update(components={"names": [], "significance_level": 1}), "components.names"),
        (lambda content: content.update(components={"names": ["place"]}), "components"),
        (
            lambda content: content.update(components={"names": ["place"], "significance_level": None}),
            "significance_level",
        ),
        *(
            (lambda content, names=names: content.update(components={"names": names, "significance_level": 1}), "names")
            for names in (["place", "place"], ["other"], [3], ["place", "content", "acquisition", "place"] * 1000)
        ),
    ],
)
def test_a_field_of_another_type_or_range_is_named(
    copied: Path, change: Callable[[dict[str, Any]], object], named: str
) -> None:
    with pytest.raises(ExportError, match=rf"detector\.json.*{named}"):
        Runtime.load(reseal(copied, change))


def test_a_changed_digit_is_noticed(copied: Path) -> None:
    path = copied / "detector.json"
    path.write_text(path.read_text().replace('"false_alarm_rate": 0.1', '"false_alarm_rate": 0.2'))
    with pytest.raises(ExportError, match="digest"):
        Runtime.load(copied)


@pytest.mark.parametrize(("name", "size"), [("detector.json", MAX_METADATA_BYTES), ("detector.onnx", MAX_GRAPH_BYTES)])
def test_a_file_of_many_empty_bytes_is_refused_by_its_size(copied: Path, name: str, size: int) -> None:
    with (copied / name).open("r+b") as file:
        file.truncate(size + 1)
    with pytest.raises(ExportError, match=f"{size:,} are the most"):
        Runtime.load(copied)


def test_more_calibration_scores_than_can_be_read_are_not_written(copied: Path) -> None:
    content = dict(Metadata.read(copied).content)
    content["calibration"] = {"by": "export", "scores": np.random.default_rng(0).normal(size=400_000).tolist()}
    with pytest.raises(ExportError, match="fewer images"):
        Metadata(content).write(copied)


@pytest.mark.parametrize("place", ["beside.bin", "../outside.bin", "/etc/passwd"])
def test_a_graph_that_takes_numbers_from_another_file_is_refused(copied: Path, place: str) -> None:
    """Also one that fits its digests: whoever writes a graph writes them too."""
    model = onnx.load(copied / "detector.onnx")
    tensor = next(each for each in model.graph.initializer if each.raw_data)
    for path in (copied / "beside.bin", copied.parent / "outside.bin"):
        path.write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    onnx.save(model, copied / "detector.onnx")
    with pytest.raises(ExportError, match="other files"):
        Runtime.load(reseal(copied))


def test_a_graph_that_is_none_is_refused_with_the_remedy(copied: Path) -> None:
    (copied / "detector.onnx").write_bytes(b"no graph at all")
    with pytest.raises(ExportError, match="export again"):
        Runtime.load(reseal(copied))


def test_a_graph_of_other_inputs_and_outputs_is_refused_when_it_runs(copied: Path) -> None:
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "other", [given], [made])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, copied / "detector.onnx")
    with pytest.raises(ExportError, match="export again"):
        Runtime.load(reseal(copied)).score_pixels(camera_pixels(1))


@pytest.mark.parametrize(
    "output",
    [
        GraphOutput(np.zeros(1), np.array([10]), None),
        GraphOutput(np.zeros(1), np.array([-1]), None),
        GraphOutput(np.zeros(1), np.zeros(1), None),  # type: ignore[arg-type]
        GraphOutput(np.zeros(2), np.array([0]), None),
        GraphOutput(np.zeros(1, np.float32), np.array([0]), None),
        GraphOutput(np.zeros(1), np.array([0]), np.full((1, 64, 64), np.nan, np.float32)),
    ],
)
def test_outputs_that_no_export_has_are_refused(output: GraphOutput) -> None:
    guarded = GuardedEngine(Path("graph"), lambda pixels, *, anomaly_map=False: output, calibrated=9)
    with pytest.raises(ExportError, match="outputs"):
        guarded(np.zeros((1, 4, 4, 3), np.uint8))


ZERO, NONE = np.zeros(1), np.array([0])
MAP, PLACES = (np.zeros((1, side, side), np.float32) for side in (64, 16))


@pytest.mark.parametrize(
    ("components", "output"),
    [
        ((), GraphOutput(ZERO, NONE, None, np.zeros((1, 1)))),
        ((), GraphOutput(ZERO, NONE, MAP, None, PLACES)),
        (("content",), GraphOutput(ZERO, NONE, None)),
        (("content",), GraphOutput(ZERO, NONE, None, np.zeros((1, 2)))),
        (("content",), GraphOutput(ZERO, NONE, None, np.zeros(1))),
        (("content",), GraphOutput(ZERO, NONE, None, np.zeros((1, 1), np.float32))),
        (("content",), GraphOutput(ZERO, NONE, None, np.full((1, 1), np.nan))),
        (("content",), GraphOutput(ZERO, NONE, MAP, np.zeros((1, 1)), PLACES)),
        (("place",), GraphOutput(ZERO, NONE, MAP, np.zeros((1, 1)))),
        (("place",), GraphOutput(ZERO, NONE, MAP, np.zeros((1, 1)), PLACES[:, :4])),
        (("place",), GraphOutput(ZERO, NONE, MAP, np.zeros((1, 1)), PLACES[:, :0, :0])),
        (("place",), GraphOutput(ZERO, NONE, MAP, np.zeros((1, 1)), PLACES + np.float32(np.inf))),
        (("place",), GraphOutput(ZERO, NONE, MAP, np.zeros((1, 1)), PLACES[0])),
    ],
)
def test_components_that_are_not_those_of_the_metadata_are_refused(
    components: tuple[str, ...], output: GraphOutput
) -> None:
    guarded = GuardedEngine(
        Path("graph"), lambda pixels, *, anomaly_map=False: output, calibrated=9, components=components
    )
    with pytest.raises(ExportError, match="outputs"):
        guarded(np.zeros((1, 4, 4, 3), np.uint8))


def test_components_that_are_those_of_the_metadata_pass() -> None:
    output = GraphOutput(ZERO, NONE, MAP, np.zeros((1, 1)), PLACES)
    guarded = GuardedEngine(
        Path("graph"), lambda pixels, *, anomaly_map=False: output, calibrated=9, components=("place",)
    )
    assert guarded(np.zeros((1, 4, 4, 3), np.uint8)) == output
