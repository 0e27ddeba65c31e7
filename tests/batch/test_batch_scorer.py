"""Batches of columns, as Ray Data, Daft and Spark hand them out."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from discopatch import Detector
from discopatch.batch import BatchScorer
from discopatch.errors import ParameterError
from discopatch.results import as_row, column_types
from tests.samples import new_detector, one_camera

from .samples import local_ray


def encoded(paths: list[Path]) -> pyarrow.Table:
    rows = [{"image": path.read_bytes(), "name": path.name, "number": row} for row, path in enumerate(paths)]
    return pyarrow.Table.from_pylist(rows)


def assert_same(results: pyarrow.Table, tiny: Detector, paths: list[Path]) -> None:
    expected = [as_row(each, tiny.component_names) for each in tiny.predict(paths)]
    for name in column_types(tiny.component_names).keys() - {"name"}:
        assert results[name].to_pylist() == [row[name] for row in expected], name


def test_results_are_those_of_predict(tiny: Detector, tiny_file: Path, paths: list[Path]) -> None:
    batch = encoded(paths)
    for scorer in (BatchScorer(tiny_file), BatchScorer(tiny), BatchScorer(str(tiny_file), keep_image=True)):
        results = scorer(batch)
        assert_same(results, tiny, paths)
        assert results["number"] == batch["number"]
        assert ("image" in results.column_names) == scorer.keep_image


def test_paths_arrays_and_dicts_have_the_same_scores(tiny: Detector, tiny_file: Path, paths: list[Path]) -> None:
    arrays = np.stack([np.array(Image.open(path)) for path in paths])
    for column in (
        [str(path) for path in paths],
        pyarrow.FixedShapeTensorArray.from_numpy_ndarray(arrays),
        [{"bytes": path.read_bytes(), "path": None} for path in paths],
        [{"bytes": None, "path": str(path)} for path in paths],
    ):
        assert_same(BatchScorer(tiny_file, image="photo")(pyarrow.table({"photo": column})), tiny, paths)


def test_a_bad_image_is_a_row_with_an_error(tiny_file: Path, paths: list[Path], tmp_path: Path) -> None:
    good = paths[0].read_bytes()
    names = [None, str(tmp_path / "none.png"), str(tmp_path), "ftp://a/b.png"]
    bad = [*({"path": name} for name in names), *({"bytes": data} for data in (b"", good[:-200]))]
    scorer = BatchScorer(tiny_file)
    batch = pyarrow.Table.from_pylist([{"image": each} for each in [{"bytes": b"no image"}, *bad, {"bytes": good}]])
    *refused, last = scorer(batch).to_pylist()
    assert all(row["error"] and row["score"] is row["is_ood"] is None for row in refused)
    assert last["error"] is None
    assert np.isfinite(last["score"])
    assert scorer(batch[:0]).column_names == scorer(batch).column_names
    assert scorer(pyarrow.table({"image": [17]}))["error"][0].as_py().startswith("unsupported: ")


def test_wrong_columns_are_refused_by_name(tiny_file: Path, paths: list[Path]) -> None:
    batch = encoded(paths).append_column("score", [[0.0] * len(paths)])
    with pytest.raises(ParameterError, match="score"):
        BatchScorer(tiny_file)(batch)
    results = BatchScorer(tiny_file, prefix="ood_")(batch)
    assert results["score"] == batch["score"]
    assert all(results["ood_score"].to_pylist())
    with pytest.raises(ParameterError, match="photo"):
        BatchScorer(tiny_file, image="photo")(batch.drop_columns("score"))
    with pytest.raises(ParameterError, match="cores"):
        BatchScorer(tiny_file, cores=0)


def test_a_replaced_detector_is_loaded_again(tiny_file: Path, paths: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "detector.safetensors"
    path.write_bytes(tiny_file.read_bytes())
    scorer = BatchScorer(path)
    before = scorer(encoded(paths))
    other = new_detector(head="logit").fit(one_camera(40))
    other.save(path)
    results = scorer(encoded(paths))
    assert results["score"].to_pylist() == [each.score for each in other.predict(paths)]
    assert before["score"][0] != results["score"][0]


def test_record_batches_of_spark_have_one_schema(tiny: Detector, paths: list[Path]) -> None:
    """As `mapInArrow` calls it: with an iterator, for an iterator."""
    scorer = pickle.loads(pickle.dumps(BatchScorer(tiny)))
    rows = [{"image": path.read_bytes(), "name": path.name} for path in paths]
    batch = pyarrow.RecordBatch.from_pylist([*rows, {"image": b"no image", "name": "bad"}])
    first, second = scorer.map_arrow(iter([batch[:4], batch[4:]]))
    assert first.schema == second.schema == scorer.schema_after(batch.schema)
    table = pyarrow.Table.from_batches([first, second])
    assert_same(table[:-1], tiny, paths)
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
        in_memory = data.map_batches(BatchScorer(tiny), batch_format="pyarrow", batch_size=None).take_all()
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
