"""`discopatch score --out` and `discopatch rescore` as they are typed."""

import json
import os
import shutil
from datetime import datetime
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from discopatch import Detector
from discopatch.batch import Run as BatchRun
from discopatch.batch import read_scores
from discopatch.batch.claims import Claims
from discopatch.batch.output import OutputFolder, part_schema
from tests.batch.samples import image_folder, part_files, shard_folder
from tests.images.test_tar import write_shard

from .conftest import Finished, Run, assert_error


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("material")
    image_folder(shard_folder(root / "in", [3, 2]), 4)
    (root / "broken").mkdir()
    for number in range(2):
        (root / "broken" / f"{number}.png").write_text("no image")
    return root


@pytest.fixture
def score(run: Run, material: Path, detector_file: Path, tmp_path: Path) -> Run:
    def command(*arguments: object, source: str | Path = "in", out: str = "scores") -> Finished:
        given = ("score", material / source, "--detector", detector_file, "--device", "cpu")
        return run(*given, "--out", tmp_path / out, *arguments)

    return command


def test_scores_are_written_and_summed_up(score: Run, detector: Detector, material: Path, tmp_path: Path) -> None:
    finished = score()
    assert (finished.status, finished.out) == (0, "")
    predictions = detector.predict(material / "in")
    flagged = predictions.is_ood.sum()
    first, second = finished.err.splitlines()
    assert first == f"{tmp_path}/scores: 3 of 3 parts, 9 images, {flagged} flagged"
    assert second.startswith("scored now: 3 parts, 9 images in ")
    assert read_scores(tmp_path / "scores").to_table()["score"].to_pylist() == list(predictions.scores)
    again = score()
    assert again.err.splitlines() == [first]


def test_parts_of_another_process_are_watched_and_taken_when_it_has_ended(
    score: Run, detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score()
    (_, part, _) = parts = part_files(tmp_path / "scores")
    before = [path.read_bytes() for path in parts]
    part.unlink()
    claims = Claims(OutputFolder.open(tmp_path / "scores"), part_schema(detector.component_names))
    claims.take(part.name)
    watch = BatchRun.watch

    def watch_once(run: BatchRun) -> None:
        watch(run, 0)
        claims.release(part.name)

    monkeypatch.setattr(BatchRun, "watch", watch_once)
    finished = score()
    assert finished.status == 0
    assert finished.err.startswith("1 part claimed by other processes")
    assert "scored now: 1 part, " in finished.err
    assert [path.read_bytes() for path in part_files(tmp_path / "scores")] == before


def test_columns_of_tables_are_kept(score: Run, material: Path, tmp_path: Path) -> None:
    rows = [{"id": number, "image": (material / "in" / "000.png").read_bytes(), "label": "a"} for number in range(3)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert score("--keep", "id,label", source=tmp_path / "a.parquet").status == 0
    found = read_scores(tmp_path / "scores").to_table().select(["id", "label"])
    assert found.to_pydict() == {"id": [0, 1, 2], "label": ["a"] * 3}
    assert_error(score("--keep", "kind", source=tmp_path / "a.parquet", out="b"), "kind", "id, image, label")
    assert_error(score("--keep", "id", out="b"), "no columns")


def test_progress_is_appended_to_a_file(
    score: Run, material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("discopatch.batch.run.MINUTE", 0.01)
    source, file = tmp_path / "in", tmp_path / "progress.jsonl"
    shutil.copytree(material / "in", source)
    (source / "bad.png").write_text("no image")
    for part in range(2):
        assert score("--progress", file, source=source).status == 0
        lines = list(map(json.loads, file.read_text().splitlines()))
        assert [line["event"] for line in lines].count("end") == part + 1
        if part == 0:
            first, *between, last = lines
            assert (first["event"], first["images"], first["parts_left"]) == ("start", 0, 4)
            assert first["seconds_left"] is None
            assert {line["event"] for line in between} == {"running"}
            assert (last["images"], last["refused"], last["parts"], last["parts_left"]) == (10, 1, 4, 0)
            assert last["seconds_left"] == 0
            assert 10 / last["images_per_second"] == pytest.approx(last["seconds"], abs=0.06)  # rounded to 0.1
            assert datetime.fromisoformat(last["time"]).tzinfo is not None
    assert lines[-1]["images"] == 0
    assert_error(score("--progress", tmp_path, source=source, out="b"), str(tmp_path))


def test_refused_images_are_summed_up_and_fail_only_where_none_is_left(
    score: Run, material: Path, tmp_path: Path
) -> None:
    assert_error(score(source="broken"), "nothing left to work with", "2 not an image")
    assert read_scores(tmp_path / "scores").count_rows() == 2
    (material / "broken" / "2.png").write_bytes((material / "in" / "000.png").read_bytes())
    finished = score(source="broken")
    (material / "broken" / "2.png").unlink()
    assert finished.status == 0
    assert "2 of 3 images refused: 2 not an image" in finished.err


def test_damaged_shards_have_a_status_and_are_retried(score: Run, tmp_path: Path) -> None:
    shard = shard_folder(tmp_path / "cut", [4]) / "00.tar"
    whole = shard.read_bytes()
    os.truncate(shard, len(whole) // 2)
    for _ in range(2):
        finished = score(source=tmp_path / "cut")
        assert finished.status == 5
        assert "1 shard not read to the end" in finished.err
        assert str(shard) in finished.err
        assert "refused" not in finished.err
    shard.write_bytes(whole)
    assert_error(score(source=tmp_path / "cut"), "--retry")
    finished = score("--retry", source=tmp_path / "cut")
    assert finished.status == 0
    assert "1 of 1 parts, 4 images" in finished.err


def test_what_is_passed_over_is_said_and_fails_only_with_strict(
    score: Run, run: Run, detector_file: Path, tmp_path: Path
) -> None:
    source = image_folder(tmp_path / "odd", 2)
    (source / "000.png").rename(source / "000.jpg_large")
    (source / "labels.json").write_text("{}")
    assert score("--strict", source=source).status == 0
    for number in range(7):
        (source / f"film-{number}.mp4").write_bytes(b"no image")
    for given, status in (((), 0), (("--strict",), 6)):
        printed = run("score", source, "--detector", detector_file, "--device", "cpu", *given)
        for finished in (printed, score(*given, source=source)):
            assert finished.status == status
            assert f"7 files passed over, not images: {source}/film-0.mp4" in finished.err
            assert "film-4.mp4, ..." in finished.err
        assert len(printed.out.splitlines()) == 2


def test_samples_with_several_images_are_noticed(score: Run, run: Run, detector_file: Path, tmp_path: Path) -> None:
    image = (image_folder(tmp_path / "one", 1) / "000.png").read_bytes()
    shard = write_shard(tmp_path / "s.tar", {"0.png": image, "0.seg.png": image, "0.cls": b"1"})
    finished = score(source=shard)
    assert "samples have several images, such as 0.png and 0.seg.png" in finished.err
    finished = score("--member", "png", source=shard, out="one")
    assert "1 image" in finished.err
    assert "several images" not in finished.err
    printed = run("score", shard, "--detector", detector_file, "--device", "cpu", "--member", "seg.png")
    assert (printed.status, len(printed.out.splitlines())) == (0, 1)


def test_a_gate_decides_about_all_parts(score: Run, run: Run, material: Path, detector_file: Path) -> None:
    for gate in ("folder", "any"):
        printed = run("score", material / "in", "--detector", detector_file, "--device", "cpu", "--fail-on", gate)
        written = score("--fail-on", gate)
        assert written.status == printed.status
        assert written.err.splitlines()[-1] == printed.err.splitlines()[-1]
    assert score("--fail-on", "folder", source="broken", out="broken").status == 4


def test_rescoring_at_another_rate(
    score: Run, run: Run, detector: Detector, detector_file: Path, material: Path, tmp_path: Path
) -> None:
    score()
    given = ("rescore", tmp_path / "scores", "--detector", detector_file, "--false-alarm-rate", 0.4)
    finished = run(*given, "--out", tmp_path / "new")
    assert finished.status == 0
    expected = detector.with_rate(0.4).predict(material / "in")
    assert finished.err.startswith(f"{tmp_path}/new: 3 of 3 parts, 9 images, {expected.is_ood.sum()} flagged")
    assert read_scores(tmp_path / "new").to_table()["is_ood"].to_pylist() == list(expected.is_ood)
    assert_error(run("rescore", tmp_path / "nothing", *given[2:], "--out", tmp_path / "other"), "no scores")
