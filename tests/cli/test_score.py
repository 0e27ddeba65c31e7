"""`discopatch score`: names and scores on stdout, refusals on stderr, mistakes in one line."""

import csv
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from discopatch.cli import main
from discopatch.images import Transform
from discopatch.images.samples import crops, sample_photos
from discopatch.model import Architecture, Pair
from discopatch.model.weights import Weights
from discopatch.scoring import Score, Scorer

COMMAND = Path(sys.executable).with_name("discopatch")


@dataclass
class Printed:
    status: int
    out: str
    err: str


class Score4:
    """Runs `discopatch score` with four patches an image."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, weights: Path) -> None:
        self._capsys, self._monkeypatch, self._weights = capsys, monkeypatch, weights

    def __call__(self, *arguments: object) -> Printed:
        words = ["discopatch", "score", "--weights", self._weights, "--patches", 4, *arguments]
        self._monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        with pytest.raises(SystemExit) as end:
            main()
        assert isinstance(end.value.code, int)
        return Printed(end.value.code, *self._capsys.readouterr())


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.safetensors"
    network = Pair.from_seed(Architecture(patch_size=32, hidden=(8, 16), latent=8), 0).discriminator
    Weights(network, Transform(size=64)).save(path)
    return path


@pytest.fixture
def score(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, weights: Path) -> Score4:
    return Score4(capsys, monkeypatch, weights)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of six small photos."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for picture in crops(sample_photos(["cat", "temple"]), 3, size=80, seed=0):
        Image.fromarray(picture.pixels).save(folder / f"{picture.name}.png")
    return folder


def spoil(folder: Path) -> None:
    (folder / "a-broken.png").write_bytes(b"no image at all")
    (folder / "empty.png").write_bytes(b"")


def expected(folder: Path, weights: Path, **options: Any) -> dict[str, float]:
    results = list(Scorer(Weights.load(weights), patches=4, **options).score(folder))
    return {result.name: result.score for result in results if isinstance(result, Score)}


def test_text_is_a_line_an_image_with_a_tab_between(score: Score4, photos: Path, weights: Path) -> None:
    printed = score(photos)
    assert printed.status == 0
    assert printed.err == ""
    lines = [line.split("\t") for line in printed.out.splitlines()]
    wanted = expected(photos, weights)
    assert [name for name, _ in lines] == list(wanted)
    assert [float(number) for _, number in lines] == pytest.approx(list(wanted.values()), abs=1e-6)


def test_csv_has_every_digit(score: Score4, photos: Path, weights: Path) -> None:
    printed = score(photos, "--csv")
    rows = list(csv.DictReader(io.StringIO(printed.out)))
    assert {row["name"]: float(row["score"]) for row in rows} == expected(photos, weights)
    assert all(row["error"] == "" for row in rows)


def test_json_has_every_digit(score: Score4, photos: Path, weights: Path) -> None:
    printed = score(photos, "--json")
    records = json.loads(printed.out)
    assert {record["name"]: record["score"] for record in records} == expected(photos, weights)
    assert all("error" not in record for record in records)


def test_options_reach_the_scorer(score: Score4, photos: Path, weights: Path) -> None:
    printed = score(photos, "--csv", "--sampling", "grid", "--batch-size", 2, "--workers", 1)
    by_grid = {row["name"]: float(row["score"]) for row in csv.DictReader(io.StringIO(printed.out))}
    assert by_grid == expected(photos, weights, sampling="grid")
    printed = score(photos, "--csv", "--seed", 5)
    by_seed = {row["name"]: float(row["score"]) for row in csv.DictReader(io.StringIO(printed.out))}
    assert by_seed == expected(photos, weights, seed=5)
    assert by_grid != by_seed


def test_the_sigmoid_head_is_a_probability(score: Score4, photos: Path) -> None:
    records = json.loads(score(photos, "--json", "--head", "sigmoid").out)
    assert len(records) == 6
    assert all(0 <= record["score"] <= 1 for record in records)


def test_refused_files_are_reported_at_the_end_with_count_reason_and_names(
    score: Score4, photos: Path, weights: Path
) -> None:
    wanted = expected(photos, weights)
    spoil(photos)
    printed = score(photos)
    assert printed.status == 0
    assert [line.split("\t")[0] for line in printed.out.splitlines()] == list(wanted)
    assert "2 of 8 images refused" in printed.err
    assert f"1 not an image ({photos / 'a-broken.png'})" in printed.err
    assert f"1 empty ({photos / 'empty.png'})" in printed.err
    assert len(printed.err.splitlines()) == 1, "one line, however narrow the terminal"


def test_only_the_first_names_of_many_are_reported(score: Score4, photos: Path) -> None:
    for number in range(9):
        (photos / f"empty-{number}.png").write_bytes(b"")
    printed = score(photos)
    assert "9 empty" in printed.err
    assert "empty-0.png" in printed.err
    assert "empty-8.png" not in printed.err
    assert ", ...)" in printed.err


def test_a_name_in_brackets_is_reported_as_it_is(score: Score4, photos: Path) -> None:
    (photos / "scan[final].png").write_bytes(b"")
    (photos / "old[").mkdir()
    (photos / "old[" / "red].png").write_bytes(b"")
    printed = score(photos)
    assert printed.status == 0
    assert "scan[final].png" in printed.err
    assert "old[/red].png" in printed.err


@pytest.mark.parametrize("kind", ["--csv", "--json"])
def test_refused_files_stay_in_their_place_with_the_error(
    score: Score4, photos: Path, weights: Path, kind: str
) -> None:
    wanted = expected(photos, weights)
    spoil(photos)
    printed = score(photos, kind)
    records: list[dict[str, Any]]
    records = json.loads(printed.out) if kind == "--json" else list(csv.DictReader(io.StringIO(printed.out)))
    assert [record["name"] for record in records] == [str(path) for path in sorted(photos.iterdir())]
    errors = {Path(record["name"]).name: record["error"] for record in records if record.get("error")}
    assert errors.keys() == {"a-broken.png", "empty.png"}
    assert errors["a-broken.png"].startswith("not_an_image: ")
    assert errors["empty.png"].startswith("empty: ")
    assert {record["name"]: float(record["score"]) for record in records if record.get("score")} == wanted
    assert all(bool(record.get("score")) != bool(record.get("error")) for record in records)


def test_several_sources_are_scored_one_after_the_other(score: Score4, photos: Path) -> None:
    printed = score(photos / "temple-0.png", photos / "nowhere.png", photos / "cat-*.png")
    assert printed.status == 0
    names = [Path(line.split("\t")[0]).name for line in printed.out.splitlines()]
    assert names == ["temple-0.png", "cat-0.png", "cat-1.png", "cat-2.png"]
    assert "1 of 5 images refused: 1 missing" in printed.err


def fails(printed: Printed, *words: str) -> None:
    """Status 1, one line that says what to do, no traceback."""
    assert printed.status == 1
    assert "Traceback" not in printed.err
    last = printed.err.splitlines()[-1]
    assert last.startswith("error: ")
    for word in words:
        assert word in last


def test_nothing_left_is_an_error(score: Score4, tmp_path: Path) -> None:
    folder = tmp_path / "spoiled"
    folder.mkdir()
    spoil(folder)
    fails(score(folder), "nothing left", "2 of 2 images refused", "empty.png")


def test_nothing_left_is_still_valid_json(score: Score4, tmp_path: Path) -> None:
    folder = tmp_path / "spoiled"
    folder.mkdir()
    spoil(folder)
    printed = score(folder, "--json")
    fails(printed, "nothing left")
    assert [record.keys() for record in json.loads(printed.out)] == [{"name", "error"}] * 2


def test_a_path_without_images_is_an_error(score: Score4, tmp_path: Path) -> None:
    printed = score(tmp_path / "nowhere")
    fails(printed, "no such file or folder", "nowhere")
    assert printed.out == ""


def test_missing_weights_are_an_error(score: Score4, photos: Path, tmp_path: Path) -> None:
    fails(score(photos, "--weights", tmp_path / "lost.safetensors"), "no discriminator at", "lost.safetensors")


def test_broken_weights_are_an_error(score: Score4, photos: Path, weights: Path) -> None:
    weights.write_bytes(weights.read_bytes()[:-10])
    fails(score(photos), "cannot be read as safetensors", "copy it again")


@pytest.mark.parametrize(
    ("option", "words"),
    [(("--head", "tail"), "logit, sigmoid"), (("--sampling", "spiral"), "random, grid or dense")],
)
def test_a_wrong_choice_names_the_choices(score: Score4, photos: Path, option: tuple[str, str], words: str) -> None:
    fails(score(photos, *option), option[1], words)


def test_csv_and_json_at_once_are_refused(score: Score4, photos: Path) -> None:
    printed = score(photos, "--csv", "--json")
    assert printed.status == 2
    assert printed.out == ""
    assert "choose one of --csv and --json" in printed.err


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
def test_a_name_that_is_no_valid_text_is_printed_as_it_is(photos: Path, weights: Path) -> None:
    os.rename(photos / "cat-0.png", os.fsencode(photos) + b"/caf\xe9.png")  # noqa: PTH104 - bytes are no Path
    done = subprocess.run(
        [COMMAND, "score", photos, "--weights", weights, "--patches", "4"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        check=True,
    )
    assert os.fsencode(photos) + b"/caf\xe9.png\t" in done.stdout
    assert len(done.stdout.splitlines()) == 6


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
    assert "scoring" in bar
    assert "photos" not in bar
    assert len(list(csv.DictReader(io.StringIO(done.stdout)))) == 6
