"""Batches of columns, as the engines of pipelines hand them out."""

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
from numpy.typing import NDArray
from PIL import Image

from discopatch import Detector, ParameterError
from discopatch.batch import BatchScorer
from tests.samples import TOO_SMALL, new_detector, one_camera

Columns = dict[str, NDArray[Any]]


def objects(values: list[Any]) -> NDArray[np.object_]:
    found = np.empty(len(values), object)
    found[:] = values
    return found


def encoded(paths: list[Path]) -> Columns:
    return {
        "image": objects([path.read_bytes() for path in paths]),
        "name": np.array([path.name for path in paths]),
        "number": np.arange(len(paths)),
    }


def assert_same(results: Columns, detector: Detector, paths: list[Path]) -> None:
    expected = detector.predict(paths)
    assert np.array_equal(results["score"], expected.scores)
    assert np.array_equal(results["p_value"], expected.p_values)
    assert np.array_equal(results["is_ood"], expected.is_ood)
    assert list(results["error"]) == [None] * len(paths)
    for place, name in enumerate(detector.component_names):
        assert results[f"z_{name}"].tolist() == [each.components[place].z for each in expected]


def test_bytes_have_the_scores_of_predict(detector: Detector, detector_path: Path, paths: list[Path]) -> None:
    results = BatchScorer(detector_path)(encoded(paths))
    assert_same(results, detector, paths)
    assert len(detector.component_names) > 1


def test_other_columns_stay_and_images_are_left_out(detector_path: Path, paths: list[Path]) -> None:
    batch = encoded(paths)
    results = BatchScorer(detector_path)(batch)
    assert "image" not in results
    assert results["name"] is batch["name"]
    assert results["number"] is batch["number"]
    assert BatchScorer(detector_path, keep_image=True)(batch)["image"] is batch["image"]


def test_paths_arrays_and_dicts_have_the_same_scores(
    detector: Detector, detector_path: Path, paths: list[Path]
) -> None:
    arrays = [np.array(Image.open(path)) for path in paths]
    for column in (
        np.array([str(path) for path in paths]),
        np.stack(arrays),
        objects(list(arrays)),
        objects([Image.open(path) for path in paths]),
        objects([memoryview(path.read_bytes()) for path in paths]),
        objects([{"bytes": path.read_bytes(), "path": None} for path in paths]),
        objects([{"bytes": None, "path": str(path)} for path in paths]),
    ):
        assert_same(BatchScorer(detector_path, image="photo")({"photo": column}), detector, paths)


def test_a_bad_image_is_a_row_with_an_error(detector_path: Path, paths: list[Path], tmp_path: Path) -> None:
    good = paths[0].read_bytes()
    bad = [
        None,
        float("nan"),
        b"",
        b"no image",
        good[:-200],
        TOO_SMALL,
        17,
        str(tmp_path / "none.png"),
        str(tmp_path),
        "ftp://a/b.png",
    ]
    results = BatchScorer(detector_path)({"image": objects([*bad, good])})
    assert all(isinstance(error, str) for error in results["error"][:-1])
    assert results["error"][-1] is None
    assert np.isnan(results["score"][:-1]).all()
    assert np.isnan(results["z_content"][:-1]).all()
    assert not results["is_ood"][:-1].any()
    assert np.isfinite(results["score"][-1])


def test_an_empty_batch_has_all_columns(detector_path: Path, paths: list[Path]) -> None:
    scorer = BatchScorer(detector_path)
    assert scorer({"image": objects([])}).keys() == scorer({"image": objects([None])}).keys()


def test_a_column_that_results_would_replace_is_refused(detector_path: Path, paths: list[Path]) -> None:
    batch = {**encoded(paths), "score": np.zeros(len(paths))}
    with pytest.raises(ParameterError, match="prefix"):
        BatchScorer(detector_path)(batch)
    results = BatchScorer(detector_path, prefix="ood_")(batch)
    assert (results["score"] == 0).all()
    assert (results["ood_score"] != 0).all()


def test_a_wrong_column_is_refused_by_name(detector_path: Path) -> None:
    with pytest.raises(ParameterError, match="'photo'"):
        BatchScorer(detector_path, image="photo")({"image": objects([None])})
    with pytest.raises(ParameterError, match="S4"):
        BatchScorer(detector_path)({"image": np.array([b"ab\0\0"], "S4")})


def test_a_scorer_passes_to_other_processes(detector: Detector, detector_path: Path, paths: list[Path]) -> None:
    scorers = [BatchScorer(detector_path, cores=1), detector.map_batches(cores=1)]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for results in pool.map(BatchScorer.__call__, scorers, [encoded(paths)] * 2):
            assert_same(results, detector, paths)


def test_a_detector_in_memory_goes_along(detector: Detector, paths: list[Path], tmp_path: Path) -> None:
    pickled = pickle.dumps(detector.map_batches())
    assert_same(pickle.loads(pickled)(encoded(paths)), detector, paths)


def test_a_detector_that_was_replaced_is_loaded_again(detector_path: Path, paths: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "detector.safetensors"
    path.write_bytes(detector_path.read_bytes())
    scorer = BatchScorer(path)
    before = scorer(encoded(paths))
    other = new_detector(head="logit").fit(one_camera(40))
    other.save(path)
    assert_same(scorer(encoded(paths)), other, paths)
    assert before["score"][0] != other.predict(paths).scores[0]


@pytest.mark.slow
def test_an_export_scores_as_it_does_by_itself(detector: Detector, paths: list[Path], tmp_path: Path) -> None:
    detector.export(tmp_path / "export")
    scored = pickle.loads(pickle.dumps(BatchScorer(tmp_path / "export", cores=1)))(encoded(paths))
    assert scored["score"] == pytest.approx(detector.predict(paths).scores, abs=0.05)


def test_sparks_functions_take_frames_and_record_batches(
    detector: Detector, detector_path: Path, paths: list[Path]
) -> None:
    """As `mapInPandas` and `mapInArrow` call them: with an iterator, for an iterator."""
    scorer = pickle.loads(pickle.dumps(BatchScorer(detector_path)))
    frame = pandas.DataFrame({name: list(column) for name, column in encoded(paths).items()})
    (scored,) = scorer.map_pandas(iter([frame]))
    assert_same({name: scored[name].to_numpy() for name in scored}, detector, paths)

    rows = [*frame.to_dict("records"), {"image": b"no image", "name": "bad", "number": 99}]
    batch = pyarrow.RecordBatch.from_pylist(rows)
    first, second = scorer.map_arrow(iter([batch[:4], batch[4:]]))
    assert first.schema == second.schema == scorer.schema_after(batch.schema)
    assert first.schema.names[:2] == ["name", "number"]
    table = pyarrow.Table.from_batches([first, second])
    assert_same({name: table[name].to_numpy()[:-1] for name in table.column_names}, detector, paths)
    last = table.to_pylist()[-1]
    assert last["error"].startswith("not_an_image: ")
    assert last["score"] is last["p_value"] is last["is_ood"] is last["z_content"] is None
