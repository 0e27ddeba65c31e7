"""Scores in parts: the same bytes however they came about, and nothing that does not belong together."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from discopatch import Detector, ParameterError, ScoresError
from discopatch.batch import Run, read_scores, score_to
from discopatch.images import Processes
from tests.export.samples import tiny_detector
from tests.samples import new_detector, one_camera

from .samples import contents, image_folder, part_files, shard_folder, tar_shard


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 images, of which one is broken and one is a text."""
    folder = image_folder(tmp_path_factory.mktemp("images") / "in", 21)
    whole = (folder / "003.png").read_bytes()
    (folder / "003-cut.png").write_bytes(whole[: len(whole) // 2])
    (folder / "010-text.png").write_text("no image")
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one undisturbed run writes, with features."""
    out = tmp_path_factory.mktemp("expected") / "scores"
    score_to(tiny_detector(), folder, out, per_part=5, features=True, workers=1)
    return contents(out)


@pytest.fixture(scope="module")
def components() -> Detector:
    """With a head of named components."""
    return new_detector().fit(one_camera(40), workers=1)


class StoppedError(Exception):
    """In place of Ctrl-C."""


def stop_after(parts: int) -> "object":
    def progress(run: Run) -> None:
        if run.parts == parts:
            raise StoppedError

    return progress


def test_the_rows_are_those_of_predict(components: Detector, folder: Path, tmp_path: Path) -> None:
    run = score_to(components, folder, tmp_path / "scores", per_part=7)
    predictions = components.predict(folder)
    table = read_scores(tmp_path / "scores").to_table()
    names = components.component_names
    assert table.column_names == ["name", "score", "p_value", "is_ood", "error", *(f"z_{name}" for name in names)]
    assert table["name"].to_pylist() == list(predictions.names)
    assert table["error"].to_pylist() == list(predictions.errors)
    assert table["score"].to_pylist() == [each.score for each in predictions]
    assert table["p_value"].to_pylist() == [each.p_value for each in predictions]
    assert table["is_ood"].to_pylist() == [each.is_ood for each in predictions]
    for place, name in enumerate(names):
        z = [each.components[place].z if each.components else None for each in predictions]
        assert table[f"z_{name}"].to_pylist() == z
    assert (run.parts, run.left, run.counts.images) == (4, 0, 23)
    assert run.counts.flagged == predictions.is_ood.sum()
    assert {reason.value: count for reason, count in run.counts.refusals.refused.items()} == {
        "truncated": 1,
        "not_an_image": 1,
    }


def test_a_plain_reader_finds_the_scores_alone(folder: Path, tmp_path: Path) -> None:
    import pandas

    score_to(tiny_detector(), folder, tmp_path / "scores", per_part=5)
    found = pandas.read_parquet(tmp_path / "scores")
    assert list(found["name"]) == list(tiny_detector().predict(folder).names)


@pytest.mark.parametrize("workers", [1, 3, Processes(2)])
def test_the_number_of_workers_does_not_show(
    workers: int | Processes, folder: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    score_to(tiny_detector(), folder, tmp_path / "scores", per_part=5, features=True, workers=workers)
    assert contents(tmp_path / "scores") == expected


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_the_batch_size_does_not_show(
    batch_size: int, folder: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    tiny_detector().save(tmp_path / "detector")
    detector = Detector.load(tmp_path / "detector", device="cpu", batch_size=batch_size)
    score_to(detector, folder, tmp_path / "scores", per_part=5, features=True)
    assert contents(tmp_path / "scores") == expected


@pytest.mark.parametrize("stops", [[1], [0, 2, 3]])
def test_a_run_that_is_stopped_goes_on(
    stops: list[int], folder: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "scores"
    for parts in stops:
        with pytest.raises(StoppedError):
            score_to(tiny_detector(), folder, out, per_part=5, features=True, progress=stop_after(parts))  # type: ignore[arg-type]
    before = len(part_files(out))
    assert before == sum(stops) < 5 or before == 5
    run = score_to(tiny_detector(), folder, out, features=True, workers=2)
    assert (run.before, run.before + run.parts) == (before, 5)
    assert contents(out) == expected


def test_ranks_share_a_folder_in_any_order(folder: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    runs = [
        score_to(tiny_detector(), folder, tmp_path / "scores", per_part=5, features=True, rank=rank, world=3)
        for rank in (2, 0, 1)
    ]
    assert [run.parts for run in runs] == [1, 2, 2]
    assert contents(tmp_path / "scores") == expected


def test_another_layout_of_ranks_goes_on(folder: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "scores"
    score_to(tiny_detector(), folder, out, per_part=5, features=True, rank=1, world=2)
    assert score_to(tiny_detector(), folder, out, features=True, rank=0, world=1).parts == 3
    assert contents(out) == expected


def test_a_part_that_another_process_writes_meanwhile_is_left_to_it(folder: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "scores", tmp_path / "other"
    score_to(tiny_detector(), folder, other, per_part=5)

    def bring(run: Run) -> None:
        if run.parts == 1:
            shutil.copy(part_files(other)[3], out)

    run = score_to(tiny_detector(), folder, out, per_part=5, workers=1, progress=bring)
    assert (run.parts, run.elsewhere, run.left) == (4, 1, 0)
    assert contents(out) == contents(other)


def test_a_part_that_was_removed_is_made_again(folder: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "scores"
    score_to(tiny_detector(), folder, out, per_part=5, features=True)
    part_files(out)[2].unlink()
    assert score_to(tiny_detector(), folder, out, features=True).parts == 1
    assert contents(out) == expected


def test_one_part_for_each_shard_and_for_the_loose_images_between(tmp_path: Path) -> None:
    source = shard_folder(tmp_path / "in", [3, 9, 2])
    image_folder(source, 5, first="00-")
    score_to(tiny_detector(), source, tmp_path / "scores", per_part=4)
    import pyarrow.parquet

    rows = [pyarrow.parquet.read_metadata(path).num_rows for path in part_files(tmp_path / "scores")]
    assert rows == [4, 1, 3, 9, 2]
    names = read_scores(tmp_path / "scores").to_table(columns=["name"])["name"].to_pylist()
    assert names == list(tiny_detector().predict(source).names)


def test_progress_tells_what_is_left(tmp_path: Path) -> None:
    source = shard_folder(tmp_path / "in", [4, 4, 4])
    left: list[int | None] = []
    score_to(tiny_detector(), source, tmp_path / "scores", progress=lambda run: left.append(run.images_left))
    assert left[0] is None  # nobody knows what a shard holds
    assert left[-1] == 0
    known = [each for each in left if each is not None]
    assert known == sorted(known, reverse=True)
    assert max(known) == 8


def other_detector() -> Detector:
    return Detector(tiny_detector().weights_, head="combined", false_alarm_rate=0.1, device="cpu", seed=1).fit(
        one_camera(60), workers=1
    )


def test_another_detector_is_refused_and_changes_nothing(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores"
    score_to(tiny_detector(), folder, out, per_part=5, rank=0, world=2)
    before = contents(out)
    with pytest.raises(ScoresError, match="head"):
        score_to(other_detector(), folder, out)
    with pytest.raises(ScoresError, match="false-alarm rate"):
        score_to(tiny_detector().with_rate(0.2), folder, out)
    assert contents(out) == before


def test_other_settings_are_refused(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores"
    score_to(tiny_detector(), folder, out, per_part=5, rank=0, world=2)
    with pytest.raises(ScoresError, match="no features"):
        score_to(tiny_detector(), folder, out, features=True)
    with pytest.raises(ScoresError, match="--per-part 5"):
        score_to(tiny_detector(), folder, out, per_part=6)
    tiny_detector().save(tmp_path / "detector")
    limited = Detector.load(tmp_path / "detector", device="cpu", max_pixels=10**6)
    with pytest.raises(ScoresError, match="--max-pixels"):
        score_to(limited, folder, out)


def test_a_saved_detector_is_the_same_one(folder: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "scores"
    score_to(tiny_detector(), folder, out, per_part=5, features=True, rank=0, world=2)
    tiny_detector().save(tmp_path / "detector")
    score_to(Detector.load(tmp_path / "detector", device="cpu"), folder, out, features=True)
    assert contents(out) == expected


def test_the_manifest_has_digests_and_no_path(folder: Path, tmp_path: Path) -> None:
    score_to(tiny_detector(), folder, tmp_path / "scores", per_part=5)
    text = (tmp_path / "scores" / "_manifest.json").read_text()
    manifest = json.loads(text)
    assert (manifest["kind"], manifest["format"], manifest["per_part"]) == ("scores", 1, 5)
    assert manifest["detector"]["transform"] == tiny_detector().settings()["transform_digest"]
    assert len(manifest["source"]) == 64
    assert str(folder) not in text


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"kind": "scores", "format": 2}', '{"kind": "scores", "format": 1}']
)
def test_a_manifest_that_is_none_is_refused(content: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "scores").mkdir()
    (tmp_path / "scores" / "_manifest.json").write_text(content)
    with pytest.raises(ScoresError, match="_manifest"):
        score_to(tiny_detector(), folder, tmp_path / "scores")


def test_a_source_that_has_grown_keeps_what_was_planned(tmp_path: Path) -> None:
    source, out = image_folder(tmp_path / "in", 7, first="b"), tmp_path / "scores"
    shard_folder(source, [3])
    score_to(tiny_detector(), source, out, per_part=5, rank=0, world=2)
    before = contents(out)
    image_folder(source, 3, first="a", seed=5)
    tar_shard(source / "z.tar", one_camera(2, seed=6))
    score_to(tiny_detector(), source, out)
    assert {name: content for name, content in contents(out).items() if name in before} == before
    names = read_scores(out).to_table(columns=["name"])["name"].to_pylist()
    assert sorted(names) == sorted(tiny_detector().predict(source).names)
    assert [Path(name).name for name in names[-5:]] == [
        "a000.png",
        "a001.png",
        "a002.png",
        *[Path(n).name for n in names[-2:]],
    ]
    again = contents(out)
    assert score_to(tiny_detector(), source, out).parts == 0
    assert contents(out) == again


def test_a_source_may_grow_while_it_is_read(tmp_path: Path) -> None:
    source, out = image_folder(tmp_path / "in", 8), tmp_path / "scores"

    def grow(run: Run) -> None:
        if run.parts == 1:
            image_folder(source, 2, first="later", seed=3)

    assert score_to(tiny_detector(), source, out, per_part=3, workers=1, progress=grow).counts.images == 8
    assert score_to(tiny_detector(), source, out).counts.images == 2
    assert read_scores(out).count_rows() == 10


def test_a_shard_that_changed_after_it_was_scored_is_refused_by_name(tmp_path: Path) -> None:
    source, out = shard_folder(tmp_path / "in", [2, 3]), tmp_path / "scores"
    score_to(tiny_detector(), source, out)
    before = contents(out)
    tar_shard(source / "01.tar", one_camera(4, seed=9))
    with pytest.raises(ScoresError, match=r"01\.tar was changed"):
        score_to(tiny_detector(), source, out)
    assert contents(out) == before
    part_files(out)[1].unlink()
    assert score_to(tiny_detector(), source, out).counts.images == 4
    assert read_scores(out).count_rows() == 6


def test_a_shard_that_changed_before_it_was_scored_is_taken_as_it_is(tmp_path: Path) -> None:
    source, out = shard_folder(tmp_path / "in", [2, 3]), tmp_path / "scores"
    score_to(tiny_detector(), source, out, rank=0, world=2)
    tar_shard(source / "01.tar", one_camera(4, seed=9))
    assert score_to(tiny_detector(), source, out).counts.images == 4
    assert read_scores(out).count_rows() == 6


def test_a_shard_that_changes_while_it_is_scored_is_not_written(tmp_path: Path) -> None:
    source, out = shard_folder(tmp_path / "in", [2, 3]), tmp_path / "scores"

    def change(run: Run) -> None:
        if run.parts == 1:
            os.utime(source / "01.tar", (1e9, 1e9))

    with pytest.raises(ScoresError, match=r"01\.tar was changed while"):
        score_to(tiny_detector(), source, out, workers=1, progress=change)
    assert len(part_files(out)) == 1
    score_to(tiny_detector(), source, out)
    assert read_scores(out).count_rows() == 5


def test_images_that_are_gone_before_they_were_scored_are_refused_or_counted(tmp_path: Path) -> None:
    source, out = image_folder(tmp_path / "in", 6), tmp_path / "scores"
    score_to(tiny_detector(), source, out, per_part=3, rank=0, world=2)
    (source / "000.png").unlink()  # it has a score
    (source / "004.png").unlink()
    with pytest.raises(ScoresError, match=r"004\.png.*--allow-missing"):
        score_to(tiny_detector(), source, out)
    run = score_to(tiny_detector(), source, out, allow_missing=True)
    assert {reason.value: count for reason, count in run.counts.refusals.refused.items()} == {"missing": 1}
    assert read_scores(out).count_rows() == 6


def test_another_source_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "scores"
    score_to(tiny_detector(), image_folder(tmp_path / "monday", 3), out)
    with pytest.raises(ScoresError, match="another source"):
        score_to(tiny_detector(), image_folder(tmp_path / "tuesday", 3), out)


def test_what_has_no_place_of_its_own_is_refused(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "in", 3)
    with pytest.raises(ParameterError, match="in memory"):
        score_to(tiny_detector(), [np.zeros((64, 64, 3), np.uint8)], tmp_path / "scores")
    with pytest.raises(ParameterError, match="twice"):
        score_to(tiny_detector(), [folder, folder / "001.png"], tmp_path / "scores")
    for inside in (folder, folder / "scores"):
        with pytest.raises(ParameterError, match="among the images"):
            score_to(tiny_detector(), folder, inside)


def test_a_list_of_paths_is_a_source(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "in", 4)
    paths = (str(path) for path in sorted(folder.iterdir()))
    assert score_to(tiny_detector(), paths, tmp_path / "scores").counts.images == 4


def test_names_that_are_no_text_are_legible_and_found_again(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "in", 2)
    shutil.copy(folder / "000.png", os.fsdecode(os.fsencode(folder) + b"/caf\xe9.png"))
    (folder / "b[0].png").write_bytes((folder / "001.png").read_bytes())
    out = tmp_path / "scores"
    score_to(tiny_detector(), folder, out, per_part=1, rank=0, world=2)
    score_to(tiny_detector(), folder, out)
    names = [Path(name).name for name in read_scores(out).to_table()["name"].to_pylist()]
    assert names == ["000.png", "001.png", "b[0].png", "caf\\xe9.png"]


def test_a_file_that_is_no_part_is_told(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores"
    score_to(tiny_detector(), folder, out, per_part=5)
    shutil.copy(part_files(out)[0], out / "part-000009-0123456789abcdef.parquet")
    with pytest.raises(ScoresError, match="part-000009"):
        score_to(tiny_detector(), folder, out)


def test_scores_that_are_incomplete_are_read_only_where_that_is_allowed(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores"
    score_to(tiny_detector(), folder, out, per_part=5, rank=0, world=2)
    with pytest.raises(ScoresError, match="3 of 5 parts"):
        read_scores(out)
    assert read_scores(out, allow_incomplete=True).count_rows() == 13


def test_a_folder_without_scores_is_told(tmp_path: Path) -> None:
    with pytest.raises(ScoresError, match="no scores"):
        read_scores(tmp_path)
