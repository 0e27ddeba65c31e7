"""Detectors in pipelines of Ray Data and Daft."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from discopatch import Detector
from discopatch.batch import BatchScorer
from tests.batch.clusters import local_ray

pytestmark = pytest.mark.slow


def rows_of(paths: list[Path]) -> list[dict[str, Any]]:
    """One image of them is none."""
    rows = [{"name": path.name, "image": path.read_bytes()} for path in paths]
    return [*rows, {"name": "bad", "image": b"no image"}]


def expected_rows(detector: Detector, paths: list[Path]) -> list[dict[str, Any]]:
    table = pyarrow.Table.from_pylist(rows_of(paths))
    found = detector.map_batches()(table)
    expected = detector.predict(paths)
    assert found["score"].to_pylist() == [*expected.scores.tolist(), None]
    assert found["error"].null_count == len(paths)
    return sorted(found.to_pylist(), key=lambda row: row["name"])


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with local_ray(cores=2) as started:
        yield started


def test_ray_data_scores_with_a_pool_of_actors(
    ray: Any, detector: Detector, detector_path: Path, paths: list[Path], tmp_path: Path
) -> None:
    data = ray.data.from_items(rows_of(paths), override_num_blocks=3)
    scored = data.map_batches(
        BatchScorer,
        fn_constructor_args=(str(detector_path),),
        batch_format="pyarrow",
        batch_size=4,
        compute=ray.data.ActorPoolStrategy(size=2),
        num_cpus=1,
    )
    scored.write_parquet(str(tmp_path / "scores"))
    found = parquet.read_table(tmp_path / "scores").to_pylist()
    assert sorted(found, key=lambda row: row["name"]) == expected_rows(detector, paths)


def test_ray_data_takes_a_detector_in_memory(ray: Any, detector: Detector, paths: list[Path]) -> None:
    data = ray.data.from_items(rows_of(paths), override_num_blocks=2)
    found = data.map_batches(detector.map_batches(), batch_size=None).take_all()
    scores = {row["name"]: row["score"] for row in found if row["error"] is None}
    assert scores == {row["name"]: row["score"] for row in expected_rows(detector, paths) if row["error"] is None}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Daft leaves a pipe of its own open
def test_daft_scores_with_a_class(
    detector: Detector, detector_path: Path, paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DO_NOT_TRACK", "SCARF_NO_ANALYTICS"):
        monkeypatch.setenv(name, "true")
    import daft

    scorer = BatchScorer(detector_path)
    results = daft.DataType.from_arrow_type(pyarrow.struct(scorer.schema_after()))

    @daft.cls(max_concurrency=1)
    class Scores:
        def __init__(self, path: str) -> None:
            self.scorer = BatchScorer(path)

        @daft.method.batch(return_dtype=results, unnest=True, batch_size=4)  # type: ignore[untyped-decorator]
        def score(self, image: daft.Series) -> Any:
            table = self.scorer(pyarrow.table({"image": image.to_arrow()}))
            return table.to_struct_array().combine_chunks()

    frame = daft.from_pylist(rows_of(paths))
    found = frame.select(frame["name"], Scores(str(detector_path)).score(frame["image"])).to_pylist()
    assert sorted(found, key=lambda row: row["name"]) == expected_rows(detector, paths)
