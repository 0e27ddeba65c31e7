"""`discopatch monitor`: the decision about a stream on stdout, the exit status, and a state that goes on."""

import json
from pathlib import Path

import pytest
from PIL import Image

from discopatch import Detector, Monitor
from discopatch.cli.monitor import reserved
from discopatch.corruptions import corrupt
from tests.samples import new_detector, one_camera, save_images, tiny_weights

from .conftest import Run, assert_error


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
    state = tmp_path / "new" / "stream"
    with reserved(state):
        assert_error(monitor(folder / "noisy", "--state", state), str(state))
        assert_error(monitor(folder / "noisy", "--state", state, "--restart"), str(state))
    assert monitor(folder / "noisy", "--state", state).status == 3


def test_refused_images_damaged_states_and_wrong_options_are_errors(monitor: Run, folder: Path, tmp_path: Path) -> None:
    assert_error(monitor(folder / "refused"), "broken.png")
    assert monitor(folder / "refused", folder / "normal").status == 0
    (tmp_path / "state").write_bytes(b"something else")
    assert_error(monitor(folder / "normal", "--state", tmp_path / "state"), "state")
    assert (tmp_path / "state").read_bytes() == b"something else"
    assert monitor(folder / "normal", "--state", tmp_path / "state", "--restart").status == 0
    assert_error(monitor(folder / "normal", "--rate", 2), "false_alarm_rate")
