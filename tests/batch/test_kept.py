"""Columns of Parquet tables beside the scores of their images."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from discopatch import Detector
from discopatch.batch import read_scores, rescore, score_to
from discopatch.errors import ParameterError, RunError
from tests.images.samples import encoded
from tests.samples import one_camera

from .samples import image_folder, score_first, shard_folder


def write_table(path: Path, count: int, **types: Any) -> pyarrow.Table:
    """Images with columns of several types; one image is none, and some values are null."""
    rows: list[Mapping[str, Any]] = [
        {
            "id": 10**12 + number,
            "image": encoded(image.pixels, "PNG") if number != 2 else b"no image",
            "label": None if number == 1 else f"class {number % 3}",
            "taken": datetime(2026, 11, 1 + number % 28),
            "boxes": [{"x": number, "kind": "a"}] * (number % 3),
        }
        for number, image in enumerate(one_camera(count))
    ]
    table = pyarrow.Table.from_pylist(rows)
    label = table["label"].cast(types["label"]) if "label" in types else table["label"].dictionary_encode()
    table = table.set_column(2, "label", label)
    path.parent.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(table, path, row_group_size=2)
    return table


KEEP = ("label", "id", "boxes", "taken")


@pytest.mark.parametrize("per_part", [None, 3, 4])
def test_kept_columns_have_the_values_and_types_of_the_table(
    tiny: Detector, tmp_path: Path, per_part: int | None
) -> None:
    given = pyarrow.concat_tables([write_table(tmp_path / "in" / f"{name}.parquet", 8) for name in "ab"])
    pyarrow.parquet.write_table(pyarrow.table({"other": [1]}), tmp_path / "in" / "labels.parquet")
    score_first(1, tiny, tmp_path / "in", tmp_path / "scores", per_part=per_part, keep=KEEP)
    score_to(tiny, tmp_path / "in", tmp_path / "scores", keep=KEEP)
    score_to(tiny, tmp_path / "in", tmp_path / "plain", per_part=per_part)
    found = read_scores(tmp_path / "scores").to_table()
    assert found.drop_columns(list(KEEP)) == read_scores(tmp_path / "plain").to_table()
    assert found.select(KEEP).to_pylist() == given.select(KEEP).to_pylist()
    assert found.select(KEEP).schema.types == given.select(KEEP).schema.types
    assert pyarrow.parquet.read_table(tmp_path / "scores").num_rows == 16
    rescored = rescore(tmp_path / "scores", tiny.with_rate(0.4), tmp_path / "new").dataset().to_table()
    assert rescored.select(KEEP) == found.select(KEEP)
    with pytest.raises(RunError, match="keep"):
        score_to(tiny, tmp_path / "in", tmp_path / "scores")


def test_a_damaged_table_keeps_the_values_of_the_images_that_were_read(tiny: Detector, tmp_path: Path) -> None:
    source = tmp_path / "in" / "a.parquet"
    given = write_table(source, 8)
    write_table(tmp_path / "in" / "b.parquet", 2)
    column = pyarrow.parquet.read_metadata(source).row_group(1).column(1)
    with source.open("r+b") as file:
        file.seek(column.data_page_offset)
        file.write(bytes(200))
    (tmp_path / "in" / "c.parquet").write_bytes(b"PAR1 cut short")
    score_to(tiny, tmp_path / "in", tmp_path / "scores", keep=("id",))
    rows = read_scores(tmp_path / "scores").to_table().select(["row", "id"]).to_pylist()
    ids = given["id"].to_pylist()
    assert [(row["row"], row["id"]) for row in rows] == [
        *((number, ids[number]) for number in range(2)),
        (None, None),
        *((number, ids[number]) for number in range(2)),
        (None, None),
    ]


def test_columns_that_are_not_there_are_named_before_anything_is_written(tiny: Detector, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "scores"
    write_table(source / "a.parquet", 3)
    for keep, message in ((["kind"], "no column kind.*id, image, label"), (["id", "score"], "score is a column")):
        with pytest.raises(ParameterError, match=message):
            score_to(tiny, source, out, keep=keep)
    write_table(source / "b.parquet", 3, label=pyarrow.large_string())
    with pytest.raises(ParameterError, match=r"label of .*b\.parquet is large_string"):
        score_to(tiny, source, out, keep=["id", "label"])
    for other in (shard_folder(tmp_path / "tar", [2]), image_folder(tmp_path / "loose", 2)):
        with pytest.raises(ParameterError, match="no columns to keep"):
            score_to(tiny, other, out, keep=["id"])
    assert not out.exists()
    (source / "b.parquet").unlink()
    score_to(tiny, source, out, keep=["id"])
    (out / "_manifest.parquet").unlink()  # as if the first process had been killed after the plan
    assert score_to(tiny, source, out, keep=["id"]).parts == 0
    write_table(source / "b.parquet", 3)
    assert score_to(tiny, source, out, keep=["id"]).parts == 1
