"""`discopatch score --weights`: names and scores on stdout, refusals on stderr, mistakes in one line."""

import csv
import io
import json
import os
import subprocess
import sys
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from discopatch import DiscriminatorEncoder, Scorer
from discopatch.heads import LogitHead
from discopatch.images.samples import crops, sample_photos
from discopatch.model import Weights
from tests.samples import save_images, tiny_weights

from .conftest import Run, assert_error, assert_usage_error

COMMAND = Path(sys.executable).with_name("discopatch")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    tiny_weights().save(path)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of six small photos."""
    save_images(tmp_path / "photos", crops(sample_photos(["cat", "temple"]), 3, size=80, seed=0))
    return tmp_path / "photos"


@pytest.fixture
def score(run: Run, weights: Path) -> Run:
    return partial(run, "score", "--weights", weights, "--patches", 4)


def add_broken_files(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "a-broken.png").write_bytes(b"no image at all")
    (folder / "empty.png").write_bytes(b"")
    return folder


def expected(folder: Path, weights: Path, **options: Any) -> dict[str, float]:
    encoder = DiscriminatorEncoder(Weights.load(weights), **{"patches": 4, **options})
    return {each.name: each.score for each in Scorer(encoder, LogitHead()).predict(folder) if each.score is not None}


def scores_in(printed: str) -> dict[str, float]:
    return {row["name"]: float(row["score"]) for row in csv.DictReader(io.StringIO(printed)) if row["score"]}


def test_text_is_a_line_an_image_with_a_tab_between(score: Run, photos: Path, weights: Path) -> None:
    status, out, err = score(photos)
    assert (status, err) == (0, "")
    lines = [line.split("\t") for line in out.splitlines()]
    wanted = expected(photos, weights)
    assert [name for name, _ in lines] == list(wanted)
    assert [float(number) for _, number in lines] == pytest.approx(list(wanted.values()), abs=1e-6)


def test_csv_has_every_digit(score: Run, photos: Path, weights: Path) -> None:
    out = score(photos, "--csv").out
    assert scores_in(out) == expected(photos, weights)
    assert [list(row.values())[-1] for row in csv.DictReader(io.StringIO(out))] == [""] * 6


def test_json_has_every_digit(score: Run, photos: Path, weights: Path) -> None:
    records = json.loads(score(photos, "--json").out)
    assert {record["name"]: record["score"] for record in records} == expected(photos, weights)
    assert all(record.keys() == {"name", "score"} for record in records)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (("--sampling", "grid", "--batch-size", 2, "--workers", 1), {"sampling": "grid"}),
        (("--seed", 5), {"seed": 5}),
        (("--patches", 9), {"patches": 9}),
        (("--patches", "dense"), {"patches": "dense"}),
    ],
)
def test_options_reach_the_encoder(
    score: Run, photos: Path, weights: Path, options: tuple[object, ...], settings: dict[str, Any]
) -> None:
    found = scores_in(score(photos, "--csv", *options).out)
    assert found == expected(photos, weights, **settings)
    assert found != expected(photos, weights)


def test_64_random_patches_are_the_default(run: Run, photos: Path, weights: Path) -> None:
    finished = run("score", photos / "cat-0.png", "--weights", weights, "--csv")
    assert scores_in(finished.out) == expected(photos / "cat-0.png", weights, patches=64)


def test_the_sigmoid_head_is_a_probability(score: Run, photos: Path) -> None:
    records = json.loads(score(photos, "--json", "--head", "sigmoid").out)
    assert len(records) == 6
    assert all(0 <= record["score"] <= 1 for record in records)


def test_text_marks_refused_files_in_their_place(score: Run, photos: Path, weights: Path) -> None:
    wanted = expected(photos, weights)
    add_broken_files(photos)
    lines = [line.split("\t") for line in score(photos).out.splitlines()]
    assert [line[0] for line in lines] == [str(path) for path in sorted(photos.iterdir())]
    refused = {Path(line[0]).name: line[2] for line in lines if line[1] == "refused"}
    assert {name: reason.partition(":")[0] for name, reason in refused.items()} == {
        "a-broken.png": "not_an_image",
        "empty.png": "empty",
    }
    assert [line[0] for line in lines if line[1] != "refused"] == list(wanted)


@pytest.mark.skipif(sys.platform == "win32", reason="such names are not possible there")
def test_names_are_escaped_for_a_terminal_and_exact_for_programs(score: Run, photos: Path) -> None:
    hostile = {"red\x1b[31m.png", "two\nlines.png", "return\r.png", "tab\t.png", "left\u202egnp.exe.png", "=1+1.png"}
    for name in hostile:
        (photos / name).write_bytes(b"")
    text = score(photos)
    for stream in (text.out, text.err):
        assert not {"\x1b", "\r", "\u202e"} & set(stream)
    assert len(text.out.splitlines()) == 12
    assert {line.count("\t") for line in text.out.splitlines() if "refused" in line} == {2}
    assert "red\\x1b[31m.png" in text.out
    assert "return\\r.png" in text.err
    names = {row["name"] for row in csv.DictReader(io.StringIO(score(photos, "--csv").out, newline=""))}
    assert names == {record["name"] for record in json.loads(score(photos, "--json").out)}
    assert {str(photos / name) for name in hostile} <= names


def test_an_error_about_a_hostile_name_stays_one_line(score: Run, tmp_path: Path) -> None:
    finished = score(tmp_path / "no\nwhere\x1b[2J")
    assert_error(finished, "no\\nwhere\\x1b[2J")
    assert len(finished.err.splitlines()) == 1


def test_refused_files_are_reported_at_the_end_with_count_reason_and_names(score: Run, photos: Path) -> None:
    add_broken_files(photos)
    status, out, err = score(photos)
    assert status == 0
    assert len(out.splitlines()) == 8
    assert "2 of 8" in err
    assert f"({photos / 'a-broken.png'})" in err
    assert f"({photos / 'empty.png'})" in err
    assert len(err.splitlines()) == 1, "one line, however narrow the terminal"


def test_only_the_first_names_of_many_are_reported(score: Run, photos: Path) -> None:
    for number in range(9):
        (photos / f"empty-{number}.png").write_bytes(b"")
    err = score(photos).err
    assert "9 of 15" in err
    assert "empty-0.png" in err
    assert "empty-8.png" not in err


def test_a_name_in_brackets_is_reported_as_it_is(score: Run, photos: Path) -> None:
    (photos / "scan[final].png").write_bytes(b"")
    (photos / "old[").mkdir()
    (photos / "old[" / "red].png").write_bytes(b"")
    finished = score(photos)
    assert finished.status == 0
    assert "scan[final].png" in finished.err
    assert "old[/red].png" in finished.err


@pytest.mark.parametrize("kind", ["--csv", "--json"])
def test_refused_files_stay_in_their_place_with_the_error(score: Run, photos: Path, weights: Path, kind: str) -> None:
    wanted = expected(photos, weights)
    add_broken_files(photos)
    out = score(photos, kind).out
    records: list[dict[str, Any]]
    records = json.loads(out) if kind == "--json" else list(csv.DictReader(io.StringIO(out)))
    assert [record["name"] for record in records] == [str(path) for path in sorted(photos.iterdir())]
    errors = {Path(record["name"]).name: record["error"] for record in records if record.get("error")}
    assert {name: error.partition(":")[0] for name, error in errors.items()} == {
        "a-broken.png": "not_an_image",
        "empty.png": "empty",
    }
    assert {record["name"]: float(record["score"]) for record in records if record.get("score")} == wanted
    assert all(bool(record.get("score")) != bool(record.get("error")) for record in records)


def test_several_sources_are_scored_one_after_the_other(score: Run, photos: Path) -> None:
    status, out, err = score(photos / "temple-0.png", photos / "nowhere.png", photos / "cat-*.png")
    assert status == 0
    names = [Path(line.split("\t")[0]).name for line in out.splitlines()]
    assert names == ["temple-0.png", "nowhere.png", "cat-0.png", "cat-1.png", "cat-2.png"]
    assert "1 of 5" in err


def test_nothing_left_is_an_error(score: Run, tmp_path: Path) -> None:
    assert_error(score(add_broken_files(tmp_path / "broken")), "2 of 2", "empty.png")


def test_nothing_left_is_still_valid_json(score: Run, tmp_path: Path) -> None:
    finished = score(add_broken_files(tmp_path / "broken"), "--json")
    assert_error(finished, "2 of 2")
    assert [record.keys() for record in json.loads(finished.out)] == [{"name", "error"}] * 2


def test_a_path_without_images_is_an_error(score: Run, tmp_path: Path) -> None:
    finished = score(tmp_path / "nowhere")
    assert_error(finished, "nowhere")
    assert finished.out == ""


def test_missing_weights_are_an_error(run: Run, photos: Path, tmp_path: Path) -> None:
    assert_error(run("score", photos, "--weights", tmp_path / "lost.safetensors"), "lost.safetensors")


def test_broken_weights_are_an_error(run: Run, photos: Path, weights: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(weights.read_bytes()[:-10])
    assert_error(run("score", photos, "--weights", broken), "broken.safetensors")


@pytest.mark.parametrize(
    ("option", "choices"), [(("--head", "tail"), ("logit", "sigmoid")), (("--sampling", "spiral"), ("random", "grid"))]
)
def test_a_wrong_choice_names_the_choices(
    score: Run, photos: Path, option: tuple[str, str], choices: tuple[str, ...]
) -> None:
    assert_error(score(photos, *option), option[1], *choices)


def test_wrong_patches_are_a_usage_error(score: Run, photos: Path) -> None:
    assert_usage_error(score(photos, "--patches", "many"), "--patches", "many")


def test_csv_and_json_at_once_are_refused(score: Run, photos: Path) -> None:
    assert_usage_error(score(photos, "--csv", "--json"), "--csv", "--json")


def test_a_reader_that_goes_away_is_no_error(photos: Path, weights: Path) -> None:
    """As `discopatch score ... | head -1` does, here before the first line."""
    process = subprocess.Popen(
        [COMMAND, "score", photos, "--weights", weights, "--patches", "4"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are always valid text")
@pytest.mark.parametrize(
    ("kind", "printed"), [((), b"/caf\\xe9.png\t"), (("--csv",), b"/caf\xe9.png,"), (("--json",), b"/caf\\udce9.png")]
)
def test_a_name_that_is_no_valid_text_is_legible_in_text_and_exact_elsewhere(
    photos: Path, weights: Path, kind: tuple[str, ...], printed: bytes
) -> None:
    os.rename(photos / "cat-0.png", os.fsencode(photos) + b"/caf\xe9.png")  # noqa: PTH104 - bytes are no Path
    done = subprocess.run(
        [COMMAND, "score", photos, "--weights", weights, "--patches", "4", *kind],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        check=True,
    )
    assert os.fsencode(photos) + printed in done.stdout


@pytest.mark.parametrize("kind", [(), ("--csv",)])
def test_a_name_beyond_the_encoding_of_the_output_is_escaped(
    photos: Path, weights: Path, kind: tuple[str, ...]
) -> None:
    (photos / "cat-0.png").rename(photos / "\u732b.png")
    done = subprocess.run(
        [COMMAND, "score", photos / "\u732b.png", "--weights", weights, "--patches", "4", *kind],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert b"\\u732b.png" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_scores_go_into_the_file_while_the_bar_is_on_the_terminal(weights: Path, photos: Path) -> None:
    terminal, end = os.openpty()
    done = subprocess.run(
        [COMMAND, "score", photos, "--weights", weights, "--patches", "4", "--csv"],
        stdout=subprocess.PIPE,
        stderr=end,
        text=True,
        check=True,
    )
    os.close(end)
    bar = os.read(terminal, 100_000).decode()
    os.close(terminal)
    assert "0/6" in bar
    assert "photos" not in bar
    assert len(list(csv.DictReader(io.StringIO(done.stdout)))) == 6


@pytest.mark.parametrize("kind", ["folder", "shard"])
def test_the_bar_knows_the_total_of_a_folder_but_not_of_a_shard(
    score: Run, photos: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    source = photos
    if kind == "shard":
        source = photos.with_suffix(".tar")
        with tarfile.open(source, "w") as archive:
            archive.add(photos, arcname=".")
    monkeypatch.setattr(Console, "is_terminal", True)
    status, out, err = score(source)
    assert status == 0
    assert len(out.splitlines()) == 6
    assert ("6/6" in err) == (kind == "folder")
