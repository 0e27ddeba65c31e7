"""Scores in parts: the same bytes in every way they are made, and only parts that belong together."""

import gc
import glob
import os
import shutil
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pyarrow.dataset
import pyarrow.parquet
import pytest

from discopatch import Detector
from discopatch.batch import Run, open_scores, read_scores, rescore, score_to
from discopatch.batch.claims import Claims
from discopatch.batch.folder import begin_scores
from discopatch.batch.output import OutputFolder, carrier, part_schema
from discopatch.batch.plan import Part
from discopatch.batch.run import local_device
from discopatch.errors import ParameterError, RunError
from discopatch.images import Item, Processes, Workers
from discopatch.images.items import Reading
from discopatch.results import as_row, column_types
from tests.images.samples import encoded
from tests.images.test_tar import write_shard
from tests.samples import new_detector, one_camera, save_images

from .samples import contents, image_folder, part_files, score_first, shard_folder, tar_shard


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 images, of which one is truncated and one is a text."""
    folder = image_folder(tmp_path_factory.mktemp("images") / "in", 21)
    whole = (folder / "003.png").read_bytes()
    (folder / "003-cut.png").write_bytes(whole[: len(whole) // 2])
    (folder / "010-text.png").write_text("no image")
    return folder


@pytest.fixture(scope="module")
def expected(tiny: Detector, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of one undisturbed run."""
    out = tmp_path_factory.mktemp("expected") / "scores"
    score_to(tiny, folder, out, per_part=5, workers=1)
    return contents(out)


def stored_names(out: Path) -> list[str]:
    return [Path(name).name for name in read_scores(out).to_table()["name"].to_pylist()]


def test_the_rows_are_those_of_predict(tiny: Detector, folder: Path, tmp_path: Path) -> None:
    run = score_to(tiny, folder, tmp_path / "scores", per_part=7)
    predictions = tiny.predict(folder)
    table = read_scores(tmp_path / "scores").to_table()
    assert table.column_names == [*column_types(tiny.component_names), "shard", "row"]
    loose = {"shard": None, "row": None}
    assert table.to_pylist() == [as_row(each, tiny.component_names) | loose for each in predictions]
    assert (run.parts, run.left, run.images, run.total) == (4, 0, 23, 23)
    summary = open_scores(tmp_path / "scores").summary()
    assert (summary.images, summary.flagged) == (23, predictions.is_ood.sum())
    assert summary.refusals.refused == {"truncated": 1, "not_an_image": 1}


def by_pandas(path: str) -> list[str]:
    return list(pandas.read_parquet(glob.glob(path) if "*" in path else path)["name"])  # noqa: PTH207


def by_pyarrow(path: str) -> list[str]:
    names = pyarrow.dataset.dataset(glob.glob(path) if "*" in path else path)  # noqa: PTH207
    found: list[str] = names.to_table()["name"].to_pylist()
    return found


def by_daft(path: str) -> list[str]:
    found: list[str] = pytest.importorskip("daft").read_parquet(path).to_pydict()["name"]
    return found


def by_datasets(path: str) -> list[str]:
    load = pytest.importorskip("datasets").load_dataset
    found = load("parquet", data_files=path) if "*" in path else load(path)
    return list(found["train"]["name"])


def by_datasets_of_parquet(path: str) -> list[str]:
    place = {"data_files": path} if "*" in path else {"data_dir": path}
    return list(pytest.importorskip("datasets").load_dataset("parquet", **place)["train"]["name"])


def by_polars(path: str) -> list[str]:
    return list(pytest.importorskip("polars").read_parquet(path)["name"])


def by_duckdb(path: str) -> list[str]:
    found = pytest.importorskip("duckdb").sql(f"SELECT name FROM read_parquet('{path}')").fetchall()
    return [name for (name,) in found]


@pytest.mark.parametrize("pattern", ["", "*.parquet"])
@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize(
    "read", [by_pandas, by_pyarrow, by_daft, by_datasets, by_datasets_of_parquet, by_polars, by_duckdb]
)
def test_every_reader_takes_the_folder_as_it_is(
    read: Callable[[str], list[str]],
    complete: bool,
    pattern: str,
    tiny: Detector,
    expected: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rows are there once, and the files of the plan and claims of killed runs give none and stop no reader."""
    monkeypatch.setattr(pytest.importorskip("datasets").config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "scores"
    out.mkdir()
    for name, content in expected.items():
        (out / name).write_bytes(content)
    claims = Claims(OutputFolder.open(out), part_schema(tiny.component_names))
    for path in part_files(out)[:2]:
        assert claims.take(path.name)
        if not complete:
            path.unlink()
    names = read_scores(out, allow_incomplete=True).to_table()["name"].to_pylist()
    assert len(names) == (23 if complete else 13)
    assert sorted(read(str(out / pattern))) == sorted(names)


@pytest.mark.parametrize(
    ("workers", "batch_size"), [(3, 8), (1, 3), pytest.param(Processes(2), 8, marks=pytest.mark.slow)]
)
def test_workers_and_batch_size_do_not_change_the_files(
    workers: Workers, batch_size: int, tiny_file: Path, folder: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    tiny = Detector.load(tiny_file, device="cpu", batch_size=batch_size)
    score_to(tiny, folder, tmp_path / "scores", per_part=5, workers=workers)
    assert contents(tmp_path / "scores") == expected


def test_a_stopped_run_continues(tiny: Detector, folder: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "scores"
    for _ in range(3):
        score_first(1, tiny, folder, out, per_part=5)
    assert len(part_files(out)) == 3
    run = score_to(tiny, folder, out, workers=2)
    assert (run.before, run.parts) == (3, 2)
    part_files(out)[2].unlink()
    assert score_to(tiny, folder, out).parts == 1
    assert contents(out) == expected


def test_processes_of_a_launcher_have_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        devices = [local_device("auto", {name: str(rank)}) for rank in range(4)]
        assert devices == ["auto", "cuda:1", "cuda:0", "cuda:1"]
    assert local_device("cpu", {"LOCAL_RANK": "1"}) == "cpu"
    assert local_device("auto", {}) == "auto"
    with pytest.raises(ParameterError, match="LOCAL_RANK"):
        local_device("auto", {"LOCAL_RANK": "first"})


def test_a_part_that_another_process_wrote_is_not_written_again(tiny: Detector, folder: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "scores", tmp_path / "other"
    score_to(tiny, folder, other, per_part=5)

    def bring(run: Run) -> None:
        if run.parts == 1:
            shutil.copy(part_files(other)[3], out)

    run = score_to(tiny, folder, out, per_part=5, workers=1, progress=bring)
    assert (run.parts, run.elsewhere, run.left) == (4, 1, 0)
    assert contents(out) == contents(other)


def test_each_shard_is_a_part(tiny: Detector, tmp_path: Path) -> None:
    source, out = shard_folder(tmp_path / "in", [3, 9, 2]), tmp_path / "scores"
    image_folder(source, 5, first="00-")
    assert score_to(tiny, source, out, per_part=4).total is None
    assert [pyarrow.parquet.read_metadata(path).num_rows for path in part_files(out)] == [4, 1, 3, 9, 2]
    assert read_scores(out).to_table()["name"].to_pylist() == list(tiny.predict(source).names)


def test_images_of_one_name_are_told_apart_by_shard_and_row(tiny: Detector, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "scores"
    source.mkdir()
    for number in range(2):
        with tarfile.open(source / f"{number}.tar", "w") as archive:
            for path in save_images(tmp_path / str(number), one_camera(3, seed=number)):
                archive.add(path, "same.png")
    score_to(tiny, source, out)
    table = read_scores(out).to_table()
    assert len(set(table["name"].to_pylist())) == 2
    assert table["shard"].to_pylist() == [f"{source}/{number}.tar" for number in (0, 0, 0, 1, 1, 1)]
    assert table["row"].to_pylist() == [0, 1, 2, 0, 1, 2]


def test_damaged_shards_are_no_images_and_are_scored_again_on_request(tiny: Detector, tmp_path: Path) -> None:
    source, out = image_folder(shard_folder(tmp_path / "in", [4, 3]), 3), tmp_path / "scores"
    whole, good = (source / "01.tar").read_bytes(), (source / "001.png").read_bytes()
    (source / "02.parquet").write_bytes(b"PAR1 cut short")
    (source / "001.png").write_bytes(b"no image")
    os.truncate(source / "01.tar", len(whole) // 2)
    score_to(tiny, source, out)
    summary = open_scores(out).summary()
    assert list(summary.reading.damaged) == [f"{source}/01.tar", f"{source}/02.parquet"]
    assert (summary.images, summary.refusals.refused) == (8, {"not_an_image": 1})
    damaged = [row for row in read_scores(out).to_table().to_pylist() if row["shard"] and row["row"] is None]
    assert [row["name"] for row in damaged] == list(summary.reading.damaged)

    assert score_to(tiny, source, out).parts == 0
    assert (score_to(tiny, source, out, retry=True).parts, len(part_files(out))) == (3, 4)
    (source / "01.tar").write_bytes(whole)
    (source / "001.png").write_bytes(good)
    with pytest.raises(RunError, match="--retry"):
        score_to(tiny, source, out)
    assert score_to(tiny, source, out, retry=True).parts == 3
    (source / "02.parquet").unlink()
    summary = open_scores(out).summary()
    assert (len(part_files(out)), list(summary.reading.damaged)) == (4, [f"{source}/02.parquet"])
    assert (summary.images, summary.refusals.count) == (10, 0)


def test_two_processes_do_not_retry_a_part_twice(tiny: Detector, tmp_path: Path) -> None:
    """The second one begins and ends while the first one is at its first batch."""
    source, out = image_folder(tmp_path / "in", 6), tmp_path / "scores"
    for number in (1, 4):
        (source / f"{number:03d}.png").write_text("no image")
    score_to(tiny, source, out, per_part=2)
    others = list[Run]()

    def join(run: Run) -> None:
        if not others:
            others.append(run)
            others.append(score_to(tiny, source, out, retry=True))

    run = score_to(tiny, source, out, retry=True, progress=join)
    assert (run.parts, run.elsewhere, others[1].parts) == (0, 2, 2)
    assert score_to(tiny, source, out).parts == 0


def test_what_is_passed_over_is_counted_and_named(tiny: Detector, tmp_path: Path) -> None:
    source, out = image_folder(tmp_path / "in", 3), tmp_path / "scores"
    image, other = ((source / f"{number:03d}.png").read_bytes() for number in range(2))
    (source / "000.png").rename(source / "noext")
    (source / "001.png").rename(source / "x.png_large")
    (source / "Makefile").write_text("all:")
    members = {"0": image, "0.json": b"{}", "1.png_large": other, "1.bin": b"binary", "2.mp4": b"", "3.png": image}
    write_shard(source / "s.tar", members)
    pyarrow.parquet.write_table(pyarrow.table({"label": [1]}), source / "labels.parquet")
    score_to(tiny, source, out)
    assert stored_names(out) == ["002.png", "noext", "0", "1.png_large", "3.png", "x.png_large"]
    assert open_scores(out).summary().refusals.count == 0
    summary = score_to(tiny, source, out).folder.summary()
    assert summary.reading.passed_over == 4
    assert [str(Path(name).relative_to(source)) for name in summary.reading.names] == [
        *("Makefile", "labels.parquet", "s.tar/1.bin", "s.tar/2.mp4")
    ]
    rescored = rescore(out, tiny.with_rate(0.4), tmp_path / "new")
    assert rescored.summary().reading.passed_over == 3


def test_of_samples_with_several_images_one_is_chosen(tiny: Detector, tmp_path: Path) -> None:
    first, second = (encoded(each.pixels, "PNG") for each in one_camera(2))
    members = {f"{number}.{end}": first for number in range(2) for end in ("png", "seg.png")}
    shard = write_shard(tmp_path / "in" / "s.tar", members | {"2.jpeg": second})
    score_to(tiny, shard, tmp_path / "all")
    assert open_scores(tmp_path / "all").summary().reading.several == (f"{shard}/0.png", f"{shard}/0.seg.png")
    score_to(tiny, shard, tmp_path / "one", member="png,jpeg")
    assert stored_names(tmp_path / "one") == ["0.png", "1.png", "2.jpeg"]
    assert open_scores(tmp_path / "one").summary().reading == Reading()
    with pytest.raises(RunError):
        score_to(tiny, shard, tmp_path / "one")


def test_another_detector_or_setting_is_refused_and_changes_nothing(
    tiny: Detector, tiny_file: Path, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "scores"
    score_first(2, tiny, folder, out, per_part=5)
    before = contents(out)
    for difference, detector in {
        "detector": new_detector(head="logit").fit(one_camera(40), workers=1),
        "false_alarm_rate": tiny.with_rate(0.2),
        "max_pixels": Detector.load(tiny_file, device="cpu", max_pixels=10**6),
    }.items():
        with pytest.raises(RunError, match=difference):
            score_to(detector, folder, out)
    with pytest.raises(RunError, match="per_part"):
        score_to(tiny, folder, out, per_part=6)
    assert contents(out) == before
    newer, older = (f'{{"kind": "scores", "format": {number}}}'.encode() for number in (99, 3))
    for content, message in ((b"", "_manifest"), (newer, "update"), (older, "older")):
        (out / "_manifest.parquet").write_bytes(content and carrier(content, pyarrow.schema([])))
        with pytest.raises(RunError, match=message):
            score_to(tiny, folder, out)


def test_a_source_that_has_grown_keeps_its_parts(tiny: Detector, tmp_path: Path) -> None:
    source, out = image_folder(tmp_path / "in", 7, first="b"), tmp_path / "scores"
    shard_folder(source, [3])
    score_first(2, tiny, source, out, per_part=5)
    before = contents(out)
    image_folder(source, 3, first="a", seed=5)
    tar_shard(source / "z.tar", one_camera(2, seed=6))

    def grow(run: Run) -> None:
        if run.parts == 1:
            image_folder(source, 1, first="later", seed=3)

    score_to(tiny, source, out, workers=1, progress=grow)
    assert {name: content for name, content in contents(out).items() if name in before} == before
    assert stored_names(out)[-5:-2] == ["a000.png", "a001.png", "a002.png"]
    assert score_to(tiny, source, out).images == 1
    assert sorted(read_scores(out).to_table()["name"].to_pylist()) == sorted(tiny.predict(source).names)
    assert score_to(tiny, source, out).parts == 0


def test_a_changed_shard_is_scored_again_or_refused(tiny: Detector, tmp_path: Path) -> None:
    source, out = shard_folder(tmp_path / "in", [2, 3]), tmp_path / "scores"
    score_first(1, tiny, source, out)
    tar_shard(source / "01.tar", one_camera(5, seed=8))  # not scored yet

    def change(run: Run) -> None:
        if run.images:
            os.utime(source / "01.tar", (1e9, 1e9))

    with pytest.raises(RunError, match=r"01\.tar"):
        score_to(tiny, source, out, workers=1, progress=change)
    assert len(part_files(out)) == 1
    assert score_to(tiny, source, out).images == 5
    before = contents(out)
    tar_shard(source / "01.tar", one_camera(4, seed=9))
    with pytest.raises(RunError, match=r"01\.tar"):
        score_to(tiny, source, out)
    assert contents(out) == before
    part_files(out)[1].unlink()
    assert score_to(tiny, source, out).images == 4
    assert read_scores(out).count_rows() == 6


def test_missing_images_are_an_error_or_refused(tiny: Detector, tmp_path: Path) -> None:
    source, out = image_folder(tmp_path / "in", 6), tmp_path / "scores"
    score_first(1, tiny, source, out, per_part=3)
    (source / "000.png").unlink()  # scored already
    (source / "004.png").unlink()
    with pytest.raises(RunError, match=r"004\.png"):
        score_to(tiny, source, out)
    score_to(tiny, source, out, allow_missing=True)
    summary = open_scores(out).summary()
    assert summary.refusals.refused == {"missing": 1}
    assert read_scores(out).count_rows() == 6


def test_wrong_sources_and_folders_are_refused(tiny: Detector, tmp_path: Path) -> None:
    source, out = image_folder(tmp_path / "in", 3), tmp_path / "scores"
    with pytest.raises(ParameterError, match="memory"):
        score_to(tiny, [np.zeros((64, 64, 3), np.uint8)], out)
    with pytest.raises(ParameterError, match="twice"):
        score_to(tiny, [source, source / "001.png"], out)
    for inside in (source, source / "scores"):
        with pytest.raises(ParameterError, match="among"):
            score_to(tiny, source, inside)
    with pytest.raises(RunError):
        read_scores(tmp_path)
    score_first(1, tiny, (str(path) for path in sorted(source.iterdir())), out, per_part=2)
    with pytest.raises(RunError, match="1 of 2"):
        read_scores(out)
    assert read_scores(out, allow_incomplete=True).count_rows() == 2
    with pytest.raises(RunError, match=r"000\.png"):
        score_to(tiny, image_folder(tmp_path / "tuesday", 3), out)


def test_names_that_are_not_unicode_are_escaped_and_found_again(tiny: Detector, tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "in", 2)
    shutil.copy(folder / "000.png", os.fsdecode(os.fsencode(folder) + b"/caf\xe9.png"))
    (folder / "b[0].png").write_bytes((folder / "001.png").read_bytes())
    out = tmp_path / "scores"
    score_first(2, tiny, folder, out, per_part=1)
    score_to(tiny, folder, out)
    assert stored_names(out) == ["000.png", "001.png", "b[0].png", "caf\\xe9.png"]


def test_a_second_process_adds_to_the_plan_of_the_first(
    tiny: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the listing of one process and its plan, another process writes a plan of fewer images."""
    source, out = image_folder(tmp_path / "in", 3), tmp_path / "scores"
    create, first = OutputFolder.create, [True]

    def late(self: OutputFolder, name: str, content: bytes) -> bool:
        if first and "plan" in name:
            first.clear()
            score_to(tiny, [str(source / "001.png")], out)
        return create(self, name, content)

    monkeypatch.setattr(OutputFolder, "create", late)
    score_to(tiny, source, out)
    assert stored_names(out) == ["001.png", "000.png", "002.png"]


def test_stored_scores_are_decided_again_at_another_rate(tiny: Detector, tmp_path: Path) -> None:
    folder, scores = image_folder(tmp_path / "in", 8), tmp_path / "scores"
    (folder / "bad.png").write_text("no image")
    score_to(tiny, folder, scores, per_part=4)
    other, before = tiny.with_rate(0.4), contents(scores)
    rescore(scores, other, tmp_path / "new")
    score_to(other, tmp_path / "in", tmp_path / "expected", per_part=4)
    assert contents(tmp_path / "new") == contents(tmp_path / "expected")
    assert contents(scores) == before
    part_files(tmp_path / "new")[1].unlink()
    assert len(rescore(scores, other, tmp_path / "new").done()) == 3
    with pytest.raises(RunError, match="new"):
        rescore(scores, tiny.with_rate(0.3), tmp_path / "new")
    with pytest.raises(RunError, match="scores"):
        rescore(scores, other, scores)
    with pytest.raises(RunError, match="detector"):
        rescore(scores, new_detector(head="logit").fit(one_camera(40), workers=1), tmp_path / "third")
    assert contents(scores) == before


def test_the_plan_of_loose_images_takes_some_bytes_each(tiny: Detector, tmp_path: Path) -> None:
    names = [f"/images/camera-{number // 100:03d}/2026-11-01_{number:07d}.jpg" for number in range(20_000)]

    def planned() -> tuple[Part, ...]:
        return begin_scores(tmp_path / "scores", tiny, (Item(name, Path(name)) for name in names)).parts

    planned()
    tracemalloc.start()
    parts = planned()
    gc.collect()
    ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/discopatch/*")])
    tracemalloc.stop()
    assert [name for part in parts for name in part.names] == names
    assert sum(each.size for each in ours.statistics("filename")) < 10 * len(names)
