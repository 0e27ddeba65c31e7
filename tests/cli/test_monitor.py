"""`discopatch monitor`: the decision about a stream on stdout, the exit status, and a state that goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from discopatch import Detector, Monitor
from discopatch.corruptions import corrupt
from tests.samples import new_detector, one_camera, save_images, tiny_weights

from .conftest import Run, assert_error, assert_usage_error


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector with 39 calibration images, 60 normal images and 40 noisy ones."""
    folder = tmp_path_factory.mktemp("monitor")
    detector = new_detector(tiny_weights(seed=2), head="statistics", patches=5, false_alarm_rate=0.05)
    detector.fit(one_camera(120), workers=1).save(folder / "detector")
    save_images(folder / "normal", one_camera(60, seed=1))
    (folder / "noisy").mkdir()
    for place, image in enumerate(one_camera(40, seed=3)):
        noisy = corrupt(image.pixels, "gaussian_noise", 5, seed=place)
        Image.fromarray(noisy).save(folder / "noisy" / f"{image.name}.png")
    (folder / "refused").mkdir()
    (folder / "refused" / "broken.png").write_bytes(b"nothing")
    return folder


@pytest.fixture
def monitor(folder: Path, run: Run) -> Run:
    return lambda *options: run("monitor", "--detector", folder / "detector", *options)


def test_the_status_is_that_of_the_library_and_an_alarm_has_examples(monitor: Run, folder: Path) -> None:
    normal, changed = monitor(folder / "normal"), monitor(folder / "normal", folder / "noisy")
    assert (normal.status, normal.out[:9], normal.err, changed.status) == (0, "no change", "", 3)
    first, *examples = changed.out.splitlines()
    assert "the stream has changed" in first
    assert examples
    assert all("noisy" in line for line in examples)
    assert "alarm: image" in changed.err
    finished = monitor(folder / "noisy", "--json", "--rate", 0.05)
    detector = Detector.load(folder / "detector")
    watching = Monitor(detector, 0.05)
    for prediction in detector.predict(folder / "noisy"):
        watching.update(prediction)
    assert finished.status == 3
    assert json.loads(finished.out) == watching.status.as_dict()


def test_a_stream_goes_on_from_its_state(monitor: Run, folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "stream"
    assert monitor(folder / "normal", "--state", state).status == 0
    parts = monitor(folder / "noisy", "--state", state, "--json")
    whole = monitor(folder / "normal", folder / "noisy", "--json")
    assert (parts.status, parts.out) == (whole.status, whole.out)
    assert monitor(folder / "normal", "--state", state).status == 3, "an alarm stays"
    again = monitor(folder / "normal", "--state", state, "--restart", "--json")
    assert (again.status, json.loads(again.out)["images"]) == (0, 60)
    assert_error(monitor(folder / "normal", "--state", state, "--rate", 0.2), "rate", "--restart")


def test_a_second_process_cannot_continue_the_same_stream(monitor: Run, folder: Path, tmp_path: Path) -> None:
    state, pipe = tmp_path / "new" / "stream", tmp_path / "pipe"
    os.mkfifo(pipe)
    arguments = ["monitor", "--detector", str(folder / "detector"), "--state", str(state), "--predictions", str(pipe)]
    first = subprocess.Popen([sys.executable, "-m", "discopatch", *arguments], text=True, stdout=subprocess.PIPE)
    with pipe.open("w") as stream:  # once it reads
        refused = monitor(folder / "noisy", "--state", state)
        assert_error(refused, str(state))
        assert_error(monitor(folder / "noisy", "--state", state, "--restart"), str(state))
        stream.write('{"name": "a.png", "score": 1.0, "p_value": 0.5, "is_ood": false}\n')
    assert (first.communicate(timeout=300)[0][:19], first.returncode) == ("no change: 1 image;", 0)
    assert monitor(folder / "noisy", "--state", state).status == 3


@pytest.mark.parametrize("kind", ["--json", "--csv", "lines"])
def test_printed_predictions_give_the_same_decision(
    monitor: Run, run: Run, folder: Path, tmp_path: Path, kind: str
) -> None:
    sources = (folder / "normal", folder / "refused", folder / "noisy")
    printed = run("score", *sources, "--detector", folder / "detector", "--csv" if kind == "--csv" else "--json").out
    if kind == "lines":
        printed = "".join(f"{json.dumps(each)}\n" for each in json.loads(printed))
    (tmp_path / "printed").write_text(printed)
    assert monitor("--predictions", tmp_path / "printed", "--json").out == monitor(*sources, "--json").out


@pytest.mark.parametrize(
    "content",
    [
        "",
        "name,score\na.png,high\n",
        'name,score,p_value\n"a.png",1.0,7\n',
        "{\n",
        '{"name": 3, "score": 1.0}\n',
        '{"name": "a.png", "error": "empty"}\n',
        "\x00\x01" * 100,
    ],
)
def test_what_score_did_not_print_is_one_line(monitor: Run, tmp_path: Path, content: str) -> None:
    (tmp_path / "printed").write_text(content)
    finished = monitor("--predictions", tmp_path / "printed", "--state", tmp_path / "state")
    assert_error(finished, "printed" if "error" in content or not content else "")
    assert not (tmp_path / "state").exists()


def test_refused_images_damaged_states_and_wrong_options_are_errors(monitor: Run, folder: Path, tmp_path: Path) -> None:
    assert_error(monitor(folder / "refused"), "broken.png")
    assert monitor(folder / "refused", folder / "normal").status == 0
    (tmp_path / "state").write_bytes(b"something else")
    assert_error(monitor(folder / "normal", "--state", tmp_path / "state"), "state")
    assert (tmp_path / "state").read_bytes() == b"something else"
    assert monitor(folder / "normal", "--state", tmp_path / "state", "--restart").status == 0
    assert_usage_error(monitor(), "--predictions")
    assert_usage_error(monitor(folder / "normal", "--predictions", "x"), "--predictions")
    assert_error(monitor(folder / "normal", "--rate", 2), "false_alarm_rate")
