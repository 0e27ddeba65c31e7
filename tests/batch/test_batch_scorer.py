"""Batches of columns, as Ray Data, Daft and Spark hand them out."""

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from numpy.typing import NDArray
from PIL import Image

from discopatch import Detector, Runtime
from discopatch.batch import BatchScorer
from discopatch.errors import ParameterError
from discopatch.results import as_row, column_types
from tests.samples import TOO_SMALL, new_detector, one_camera

from .samples import local_ray

Columns = dict[str, NDArray[Any]]


def objects(values: list[Any]) -> NDArray[np.object_]:
    found = np.empty(len(values), object)
    found[:] = values
    return found


def encoded(paths: list[Path]) -> Columns:
    content = objects([path.read_bytes() for path in paths])
    return {"image": content, "name": np.array([path.name for path in paths]), "number": np.arange(len(paths))}


def assert_same(results: Columns, tiny: Detector, paths: list[Path]) -> None:
    expected = [as_row(each, tiny.component_names) for each in tiny.predict(paths)]
    for name in column_types(tiny.component_names).keys() - {"name"}:
        assert list(results[name]) == [row[name] for row in expected], name


def test_results_are_those_of_predict(tiny: Detector, tiny_file: Path, paths: list[Path]) -> None:
    batch = encoded(paths)
    for scorer in (BatchScorer(tiny_file), BatchScorer(tiny), BatchScorer(str(tiny_file), keep_image=True)):
        results = scorer(batch)
        assert_same(results, tiny, paths)
        assert results["number"] is batch["number"]
        assert ("image" in results) == scorer.keep_image


def test_paths_arrays_and_dicts_have_the_same_scores(tiny: Detector, tiny_file: Path, paths: list[Path]) -> None:
    arrays = [np.array(Image.open(path)) for path in paths]
    for column in (
        np.array([str(path) for path in paths]),
        np.stack(arrays),
        objects([Image.open(path) for path in paths]),
        objects([memoryview(path.read_bytes()) for path in paths]),
        objects([{"bytes": path.read_bytes(), "path": None} for path in paths]),
        objects([{"bytes": None, "path": str(path)} for path in paths]),
    ):
        assert_same(BatchScorer(tiny_file, image="photo")({"photo": column}), tiny, paths)


def test_a_bad_image_is_a_row_with_an_error(tiny_file: Path, paths: list[Path], tmp_path: Path) -> None:
    good = paths[0].read_bytes()
    missing = [None, float("nan"), str(tmp_path / "none.png"), str(tmp_path), "ftp://a/b.png"]
    bad = [*missing, b"", b"no image", good[:-200], TOO_SMALL, 17]
    scorer = BatchScorer(tiny_file)
    results = scorer({"image": objects([*bad, good])})
    assert all(isinstance(error, str) for error in results["error"][:-1])
    assert results["error"][-1] is None
    assert np.isnan(results["score"][:-1]).all()
    assert np.isfinite(results["score"][-1])
    assert list(results["is_ood"][:-1]) == [None] * len(bad)
    assert scorer({"image": objects([])}).keys() == results.keys()


def test_wrong_columns_are_refused_by_name(tiny_file: Path, paths: list[Path]) -> None:
    batch = {**encoded(paths), "score": np.zeros(len(paths))}
    with pytest.raises(ParameterError, match="score"):
        BatchScorer(tiny_file)(batch)
    results = BatchScorer(tiny_file, prefix="ood_")(batch)
    assert (results["score"] == 0).all()
    assert (results["ood_score"] != 0).all()
    with pytest.raises(ParameterError, match="photo"):
        BatchScorer(tiny_file, image="photo")({"image": objects([None])})
    with pytest.raises(ParameterError, match="S4"):
        BatchScorer(tiny_file)({"image": np.array([b"ab\0\0"], "S4")})
    with pytest.raises(ParameterError, match="cores"):
        BatchScorer(tiny_file, cores=0)


@pytest.mark.slow
def test_a_scorer_passes_to_other_processes(tiny: Detector, tiny_file: Path, paths: list[Path]) -> None:
    scorers = [BatchScorer(tiny_file, cores=1), BatchScorer(tiny, cores=1)]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for results in pool.map(BatchScorer.__call__, scorers, [encoded(paths)] * 2):
            assert_same(results, tiny, paths)


def test_a_replaced_detector_is_loaded_again(tiny_file: Path, paths: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "detector.safetensors"
    path.write_bytes(tiny_file.read_bytes())
    scorer = BatchScorer(path)
    before = scorer(encoded(paths))
    other = new_detector(head="logit").fit(one_camera(40))
    other.save(path)
    results = scorer(encoded(paths))
    assert list(results["score"]) == [each.score for each in other.predict(paths)]
    assert before["score"][0] != results["score"][0]


@pytest.mark.slow
def test_an_export_is_pickled_by_its_path(runtime: Runtime, export_folder: Path, paths: list[Path]) -> None:
    scored = pickle.loads(pickle.dumps(BatchScorer(export_folder, cores=1)))(encoded(paths))
    assert list(scored["score"]) == [each.score for each in runtime.predict(paths)]
    with pytest.raises(ParameterError, match="path"):
        pickle.dumps(BatchScorer(runtime))


def test_record_batches_of_spark_have_one_schema(tiny: Detector, paths: list[Path]) -> None:
    """As `mapInArrow` calls it: with an iterator, for an iterator."""
    scorer = pickle.loads(pickle.dumps(BatchScorer(tiny)))
    rows = [{"image": path.read_bytes(), "name": path.name} for path in paths]
    batch = pyarrow.RecordBatch.from_pylist([*rows, {"image": b"no image", "name": "bad"}])
    first, second = scorer.map_arrow(iter([batch[:4], batch[4:]]))
    assert first.schema == second.schema == scorer.schema_after(batch.schema)
    table = pyarrow.Table.from_batches([first, second])
    assert_same({name: table[name].to_pylist()[:-1] for name in table.column_names}, tiny, paths)
    last = table.to_pylist()[-1]
    assert last["error"].startswith("not_an_image: ")
    assert last["score"] is last["p_value"] is last["is_ood"] is last["z_content"] is last["significant"] is None


def expected_rows(tiny: Detector, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(BatchScorer(tiny)(pyarrow.Table.from_pylist(rows)).to_pylist(), key=lambda row: str(row["name"]))


@pytest.fixture
def rows(paths: list[Path]) -> list[dict[str, Any]]:
    found = [{"name": path.name, "image": path.read_bytes()} for path in paths]
    return [*found, {"name": "bad", "image": b"no image"}]


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray Data sets options of its own that it calls deprecated
def test_ray_data_scores_with_a_pool_of_actors(tiny: Detector, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    import ray.data

    with local_ray(cores=2):
        data = ray.data.from_items(rows, override_num_blocks=3)
        tiny.save(tmp_path / "detector")
        data.map_batches(
            BatchScorer,
            fn_constructor_args=(str(tmp_path / "detector"),),
            batch_format="pyarrow",
            batch_size=4,
            compute=ray.data.ActorPoolStrategy(size=2),
            num_cpus=1,
        ).write_parquet(str(tmp_path / "scores"))
        in_memory = data.map_batches(BatchScorer(tiny), batch_size=None).take_all()
    found = pyarrow.parquet.read_table(tmp_path / "scores").to_pylist()
    expected = expected_rows(tiny, rows)
    assert sorted(found, key=lambda row: str(row["name"])) == expected
    scores = {row["name"]: row["score"] for row in in_memory if row["error"] is None}
    assert scores == {row["name"]: row["score"] for row in expected if row["error"] is None}


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Daft leaves a pipe open
def test_daft_scores_with_a_class(
    tiny: Detector, tiny_file: Path, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DO_NOT_TRACK", "SCARF_NO_ANALYTICS"):
        monkeypatch.setenv(name, "true")
    import daft

    results = daft.DataType.from_arrow_type(pyarrow.struct(BatchScorer(tiny_file).schema_after()))

    @daft.cls(max_concurrency=1)
    class Scores:
        def __init__(self, path: str) -> None:
            self.scorer = BatchScorer(path)

        @daft.method.batch(return_dtype=results, unnest=True, batch_size=4)  # type: ignore[untyped-decorator]
        def score(self, image: daft.Series) -> Any:
            table = self.scorer(pyarrow.table({"image": image.to_arrow()}))
            return table.to_struct_array().combine_chunks()

    frame = daft.from_pylist(rows)
    found = frame.select(frame["name"], Scores(str(tiny_file)).score(frame["image"])).to_pylist()
    assert sorted(found, key=lambda row: str(row["name"])) == expected_rows(tiny, rows)
