"""`discopatch watch` as a process: signals, kills, a second one, and what is printed and kept."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import discopatch
from discopatch import Prediction
from discopatch.history import History
from discopatch.watch.watcher import default_database
from tests.export.samples import run_without_torch
from tests.samples import new_detector, one_camera, save_images
from tests.watch.samples import until
from tests.watch.streams import Camera, ffmpeg, make_video, needs_ffmpeg
from tests.watch.test_mqtt import Broker, needs_mosquitto

from .conftest import Run, assert_error, assert_usage_error

PATIENCE = 600.0  # seconds for something to happen
QUICK = ("--device", "cpu")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("watch") / "camera-3.safetensors"
    new_detector().fit(one_camera(40), workers=1).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def fill(folder: Path, count: int, *, seed: int = 1, old: bool = True) -> list[Path]:
    paths = save_images(folder, one_camera(count, seed=seed))
    for number, path in enumerate(paths) if old else ():
        os.utime(path, (1e9 + number, 1e9 + number))
    return paths


def start(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "discopatch", "watch", *map(str, arguments), *QUICK]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def images(database: Path) -> int:
    """How many predictions another process has stored."""
    with History(database) as history:
        return history.counts("camera-3").images


def kept(database: Path, name: str = "camera-3") -> list[Prediction]:
    with History(database) as history:
        return [entry.prediction for entry in reversed(history.recent(name, limit=10**6))]


def test_what_is_there_is_scored_as_predict_scores_it(run: Run, saved: Path, folder: Path, database: Path) -> None:
    paths = fill(folder, 6)
    (folder / "broken.png").write_bytes(paths[0].read_bytes()[:200])
    os.utime(folder / "broken.png", (1e9 + 100, 1e9 + 100))
    finished = run("watch", folder, "--detector", saved, "--database", database, "--once", *QUICK)
    assert finished.status == 0
    first, last = finished.out.splitlines()
    assert str(database) in first
    assert "7 images, " in last
    assert ", 1 refused" in last
    expected = discopatch.load(saved, device="cpu").predict([str(path) for path in paths])
    found = kept(database)
    assert [(each.name, each.score, each.p_value, each.is_ood) for each in found[:-1]] == [
        (Path(each.name).name, each.score, each.p_value, each.is_ood) for each in expected
    ]
    assert found[-1].name == "broken.png"
    assert found[-1].error is not None
    again = run("watch", folder, "--detector", saved, "--database", database, "--once", "--json", *QUICK)
    start, status = (json.loads(line) for line in again.out.splitlines())
    assert (start["event"], start["database"], status["event"]) == ("start", str(database), "status")
    assert (status["images"], status["refused"], status["alarm"]) == (0, 0, False)
    assert len(kept(database)) == 7


def test_without_a_database_it_is_in_the_folder_for_states(
    run: Run, saved: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert run("watch", folder, "--detector", saved, "--once", *QUICK).status == 0
    assert default_database(saved, str(folder)).parent == tmp_path / "state" / "discopatch"
    assert default_database(saved, str(folder)).exists()
    assert default_database(saved, str(tmp_path)) != default_database(saved, str(folder))


@pytest.mark.slow
def test_an_export_is_watched_without_torch(export_folder: Path, folder: Path, database: Path) -> None:
    fill(folder, 3)
    words = ["discopatch", "watch", folder, "--detector", export_folder, "--database", database, "--once"]
    run_without_torch(f"sys.argv = {[str(word) for word in words]!r}\nfrom discopatch.cli import main\nmain()\n")
    assert len(kept(database, export_folder.name)) == 3


@pytest.mark.slow
def test_a_signal_ends_it_with_status_0_and_all_is_kept(run: Run, saved: Path, folder: Path, database: Path) -> None:
    fill(folder, 4)
    process = start(folder, "--detector", saved, "--database", database)
    until(lambda: images(database) == 4)
    second = run("watch", folder, "--detector", saved, "--database", database, "--once", *QUICK)
    assert_error(second, "another process")
    fill(folder, 3, seed=2, old=False)
    until(lambda: images(database) == 4 + 3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")
    assert "7 images" in out.splitlines()[-1]
    assert len(kept(database)) == 7


def test_another_rate_or_detector_asks_for_a_new_stream(
    run: Run, saved: Path, folder: Path, database: Path, tmp_path: Path
) -> None:
    fill(folder, 1)
    arguments = ("watch", folder, "--detector", saved, "--database", database, "--once", *QUICK)
    assert run(*arguments, "--rate", "0.02").status == 0
    assert run(*arguments).status == 0
    assert_error(run(*arguments, "--rate", "0.1"), "0.02", "--restart")
    assert run(*arguments, "--rate", "0.1", "--restart").status == 0
    assert run(*arguments, "--rate", "0.1").status == 0
    (tmp_path / "other").mkdir()
    new_detector().fit(one_camera(40, seed=9), workers=1).save(tmp_path / "other" / "camera-3")
    other = [tmp_path / "other" / "camera-3" if each == saved else each for each in arguments]
    assert_error(run(*other), "--restart")
    assert run(*other, "--restart").status == 0


def test_wrong_places_and_options_are_one_line(run: Run, saved: Path, folder: Path, tmp_path: Path) -> None:
    arguments = ("--detector", saved, "--once")
    assert_error(run("watch", tmp_path / "nowhere", *arguments), "nowhere")
    assert_error(run("watch", folder, *arguments, "--database", folder / "h.sqlite"), "--database")
    (tmp_path / "self").symlink_to("self")
    assert_error(run("watch", folder, "--detector", tmp_path / "self", "--once"), "no detector")
    assert_error(run("watch", folder, *arguments, "--database", tmp_path / "self"), "self")
    (tmp_path / "notes.txt").write_text("important notes, and no database\n" * 9)
    assert_error(run("watch", folder, *arguments, "--database", tmp_path / "notes.txt"), "notes.txt")
    assert_error(run("watch", folder, *arguments, "--webhook", "ftp://host"), "webhook")
    assert_error(run("watch", folder, *arguments, "--rate", "1.5", "--database", tmp_path / "new.sqlite"), "rate")
    assert_usage_error(run("watch", folder, *arguments, "--poll", "0"), "--poll")
    assert_usage_error(run("watch", folder, *arguments, "--every", "2"), "--every")
    assert_usage_error(run("watch", "rtsp://user:secret@host/live", *arguments, "--recursive"), "--recursive")
    wrong = run("watch", "ftp://user:secret@host/live", *arguments)
    assert_error(wrong, "ftp://host/live", "rtsp")
    assert "secret" not in wrong.err
    assert_error(run("watch", folder, *arguments, "--mqtt", "host"), "mqtt")
    assert_error(run("watch", folder, *arguments, "--mqtt", "mqtt://user:secret@host"), "DISCOPATCH_MQTT_PASSWORD")


@needs_ffmpeg
def test_a_video_is_watched_as_its_frames_are_predicted(run: Run, saved: Path, database: Path, tmp_path: Path) -> None:
    clip, every = make_video(tmp_path / "clip.mp4", size="64x64"), r"select=not(mod(n\,10))"
    assert ffmpeg("-i", clip, "-vf", every, "-vsync", "0", tmp_path / "%02d.png").wait() == 0
    arguments = ("watch", clip, "--detector", saved, "--database", database, *QUICK)
    finished = run(*arguments, "--on", "flagged", "--keep-frames", tmp_path / "kept")
    assert finished.status == 0
    assert "10 images, " in finished.out.splitlines()[-1]
    detector = discopatch.load(saved, device="cpu")
    expected = detector.predict([str(tmp_path / f"{number:02d}.png") for number in range(1, 11)])
    found = kept(database)
    assert [each.score for each in found] == [each.score for each in expected]
    assert [each.name for each in found] == [f"clip.mp4 00:00:{number:02d}.000" for number in range(10)]
    flagged = [each for each in expected if each.is_ood]
    assert len(list((tmp_path / "kept").glob("flagged-*"))) == len(flagged) > 0
    assert run(*arguments).status == 0
    assert len(kept(database)) == 10


@needs_mosquitto
def test_messages_and_the_state_go_to_a_broker(
    run: Run, saved: Path, folder: Path, database: Path, tmp_path: Path
) -> None:
    fill(folder, 6)
    broker = Broker(tmp_path).start()
    try:
        with broker.subscriber() as received:
            address = f"mqtt://127.0.0.1:{broker.port}/line"
            arguments = ("--detector", saved, "--database", database, "--once", "--on", "flagged", *QUICK)
            assert run("watch", folder, *arguments, "--mqtt", address).status == 0
            until(lambda: ("line/camera-3/availability", "offline", False) in received)
    finally:
        broker.stop()
    names = [content["image"]["name"] for topic, content, _ in received if topic == "line/camera-3/event"]
    assert names == [each.name for each in kept(database) if each.is_ood]
    states = [content for topic, content, _ in received if topic == "line/camera-3/state"]
    assert (states[-1]["images"], states[-1]["flagged"]) == (6, len(names))


@needs_ffmpeg
@pytest.mark.slow
@pytest.mark.parametrize("state", ["running", "silent", "away"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_watch_of_a_camera_in_any_state(
    saved: Path, database: Path, tmp_path: Path, state: str, number: signal.Signals
) -> None:
    with Camera(tmp_path, login="user:secret") as camera:
        address = f"rtsp://user:secret@127.0.0.1:{camera.port}/live"
        process = start(address, "--detector", saved, "--database", database, "--every", "0.2")
        until(lambda: images(database) >= 3)
        if state == "silent":
            camera.is_silent = True
            time.sleep(1)
        elif state == "away":
            camera.is_on = False
            camera.cut()
            assert process.stdout is not None
            until(lambda: "sends no frames" in process.stdout.readline())  # type: ignore[union-attr]
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")
    assert "secret" not in out
    assert f"{images(database)} images, " in out.splitlines()[-1]


@pytest.mark.slow
def test_output_that_nobody_reads_does_not_stop_it(saved: Path, folder: Path, database: Path) -> None:
    process = start(folder, "--detector", saved, "--database", database)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    (folder / "closed").mkdir()
    fill(folder, 3)
    folder.rename(folder.with_name("elsewhere"))  # of which it tells
    time.sleep(0.5)
    folder.with_name("elsewhere").rename(folder)
    until(lambda: images(database) == 3)
    process.terminate()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(PATIENCE) in (0, 1)
