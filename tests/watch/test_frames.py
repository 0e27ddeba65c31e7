"""Frames of real videos and of streams that ffmpeg sends: each once, through breaks, damage and kills."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from discopatch import Prediction
from discopatch.calibration import p_values
from discopatch.errors import ParameterError, RunError
from discopatch.history import History
from discopatch.images import Item
from discopatch.monitor import Monitor
from discopatch.results import PredictedImage
from discopatch.watch import frames
from discopatch.watch.frames import Frames, KeptFrames, shown

from .samples import PATIENCE, ReadScores, Watched, kept, until
from .streams import Camera, ffmpeg, free_port, make_video, needs_ffmpeg, sending

pytestmark = needs_ffmpeg


class ReadPixels(ReadScores):
    """The score is 0, or of frames with one of these numbers 99."""

    def __init__(self, *flagged: int) -> None:
        super().__init__()
        self.flagged, self.names, self.resume = flagged, list[str](), threading.Event()
        self.resume.set()

    def predict_item(self, item: Item) -> PredictedImage:
        assert isinstance(item.content, np.ndarray)
        self.resume.wait(PATIENCE)
        self.names.append(item.name)
        score = 99.0 if len(self.names) - 1 in self.flagged else 0.0
        p_value = float(p_values([score], self.calibration_scores_)[0])
        return PredictedImage(Prediction(item.name, score, p_value, p_value <= 0.01), None, None)


class WatchedFrames(Watched):
    """A stream, a history and the reported events."""

    predictor: ReadPixels

    def __init__(self, root: Path, place: object, predictor: ReadPixels | None = None, **options: Any) -> None:
        super().__init__(root, predictor or ReadPixels())
        self.place, self.options = str(place), options

    def source(self) -> Frames:
        return Frames(self.place, **self.options)


def images(history: History) -> int:
    return history.counts("camera").images


def clip_names(*tenths: int) -> list[str]:
    return [f"clip.mp4 00:00:{each // 10:02d}.{each % 10}00" for each in tenths]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten seconds with ten frames each."""
    return make_video(tmp_path_factory.mktemp("video") / "clip.mp4")


def test_frames_of_a_file_are_named_by_their_time_and_end_the_run(tmp_path: Path, clip: Path) -> None:
    watched = WatchedFrames(tmp_path, clip)
    names = clip_names(*range(0, 100, 10))
    assert watched.run(once=False) == names
    assert watched.run(once=False) == names, "nothing twice"
    assert watched.run(once=True) == names
    assert watched.predictor.names == names
    assert watched.events() == []


def test_frames_are_the_pixels_that_ffmpeg_writes(tmp_path: Path, clip: Path) -> None:
    turned = tmp_path / "turned.mp4"
    assert ffmpeg("-i", clip, "-c", "copy", "-metadata:s:v", "rotate=90", turned).wait() == 0
    for path in (clip, turned):
        assert ffmpeg("-i", path, "-vf", r"select=not(mod(n\,20))", "-vsync", "0", tmp_path / "%d.png").wait() == 0
        source = Frames(str(path), every=2)
        found = [arrival.item.content for _ in source.watch(threading.Event()) for arrival in source.complete()]
        assert len(found) == 5
        for number, pixels in enumerate(found, 1):
            np.testing.assert_array_equal(pixels, np.asarray(Image.open(tmp_path / f"{number}.png")))


@pytest.mark.parametrize("suffix", ["ts", "mkv", "h264"])
def test_other_containers_and_a_stream_without_times_have_the_same_frames(tmp_path: Path, suffix: str) -> None:
    rate = 25 if suffix == "h264" else 10  # it has none in the file: 25 is what players take
    path = make_video(tmp_path / f"clip.{suffix}", "-bf", 2, rate=rate)
    assert len(WatchedFrames(tmp_path, path).run(once=False)) == 10


def test_a_killed_watch_of_a_file_continues_with_the_frames_of_one_that_was_not(tmp_path: Path, clip: Path) -> None:
    (tmp_path / "other").mkdir()
    whole = WatchedFrames(tmp_path / "other", clip, every=0.3, group=1)
    expected = whole.run()
    assert expected == clip_names(*range(0, 100, 3))
    watched = WatchedFrames(tmp_path, clip, every=0.3, group=1)
    for kill in (3, 2, 2):
        if (pid := os.fork()) == 0:
            with History(watched.database) as history:
                watcher, real, count = watched.watcher(history), history.transaction, [0]

                @contextmanager
                def transaction() -> Iterator[History]:
                    count[0] += 1  # noqa: B023
                    with real() as change:  # noqa: B023
                        yield change
                        if count[0] == kill:  # noqa: B023
                            os.kill(os.getpid(), signal.SIGKILL)

                history.transaction = transaction  # type: ignore[method-assign]
                watcher.run()
            os._exit(0)
        os.waitpid(pid, 0)
    assert watched.run(once=False) == expected
    with History(watched.database) as history, History(whole.database) as other:
        assert history.state("camera") == other.state("camera"), "the same frames counted"


def test_a_replaced_file_is_watched_from_its_beginning(tmp_path: Path) -> None:
    watched = WatchedFrames(tmp_path, make_video(tmp_path / "clip.mp4", seconds=2))
    assert watched.run(once=False) == clip_names(0, 10)
    make_video(tmp_path / "clip.mp4", seconds=3)
    assert watched.run(once=False) == clip_names(0, 10, 0, 10, 20)


def test_a_slow_detector_gets_every_frame_of_a_file(tmp_path: Path, clip: Path) -> None:
    watched = WatchedFrames(tmp_path, clip, every=0.1)
    watched.predictor.resume.clear()
    with watched.running() as history:
        source_is_full = threading.Event()
        source_is_full.wait(0.5)
        watched.predictor.resume.set()
        until(lambda: images(history) == 100)
    assert watched.predictor.names == clip_names(*range(100))


def test_a_damaged_file_gives_its_frames_and_then_an_error(tmp_path: Path, clip: Path) -> None:
    cut = tmp_path / "clip.mp4"
    assert ffmpeg("-i", clip, "-c", "copy", "-movflags", "+faststart", tmp_path / "fast.mp4").wait() == 0
    content = (tmp_path / "fast.mp4").read_bytes()
    cut.write_bytes(content[: len(content) * 6 // 10])
    watched = WatchedFrames(tmp_path, cut)
    for _ in range(2):
        with pytest.raises(RunError, match=r"clip\.mp4 ends after .* of 10"):
            watched.run(once=False)
    names = kept(History(watched.database))
    assert 3 <= len(names) < 8
    assert names == clip_names(*range(0, 10 * len(names), 10))
    cut.write_bytes(content[:3000])
    with pytest.raises(RunError, match=r"clip\.mp4"):
        WatchedFrames(tmp_path, cut).run(once=False)


def test_damage_inside_a_stream_is_counted_and_its_frames_are_not_scored(tmp_path: Path) -> None:
    path = make_video(tmp_path / "clip.ts")
    content = bytearray(path.read_bytes())
    for place in np.random.default_rng(0).integers(len(content) // 4, len(content), 600):
        content[place] ^= 255
    path.write_bytes(content)
    watched = WatchedFrames(tmp_path, path, every=0.1)
    names = watched.run(once=False)
    assert 40 < len(names) < 100
    assert ", 0 damaged" not in watched.reported[-1][1]
    assert "damaged" in watched.reported[-1][1]


@pytest.mark.parametrize("content", [b"", b"no video at all" * 99])
def test_what_is_no_video_is_one_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "clip.mp4").write_bytes(content)
    with pytest.raises(RunError, match=r"clip\.mp4 cannot be read .*: give a whole video"):
        WatchedFrames(tmp_path, tmp_path / "clip.mp4").run(once=False)


def test_sound_alone_is_one_error(tmp_path: Path) -> None:
    assert ffmpeg("-f", "lavfi", "-i", "sine", "-t", 1, tmp_path / "tone.wav").wait() == 0
    with pytest.raises(RunError, match="no video"):
        WatchedFrames(tmp_path, tmp_path / "tone.wav").run(once=False)


def test_wrong_places_are_errors_at_once(tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere.mp4", "ftp://user:secret@host/clip.mp4", "file:///etc/passwd", "concat://a|b"):
        with pytest.raises(ParameterError) as error:
            Frames(str(place))
        assert "secret" not in str(error.value)
    with pytest.raises(RunError, match=r"null cannot be read|no frames"):
        WatchedFrames(tmp_path, "/dev/null").run(once=True)


def test_a_stream_that_is_cut_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "FIRST_PAUSE", 0.05)
    port = free_port()
    watched = WatchedFrames(tmp_path, f"tcp://127.0.0.1:{port}", every=0.2, timeout=5)
    with watched.running() as history:
        until(lambda: watched.events() == ["away"])
        for start in range(3):
            before = images(history)
            with sending(f"tcp://127.0.0.1:{port}?listen=1", "-f", "mpegts"):
                until(lambda before=before: images(history) >= before + 4)  # type: ignore[misc]
            until(lambda start=start: watched.events() == ["away", "away-ended"] * (start + 1) + ["away"])  # type: ignore[misc]
        names = kept(history)
    assert len(set(names)) == len(names) >= 12
    assert "3 interrupted" in watched.reported[-1][1]
    assert all(name.startswith("camera 20") and name.endswith("Z") for name in names)


def test_a_silent_camera_is_opened_again_and_a_stop_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "FIRST_PAUSE", 0.05)
    with Camera(tmp_path) as camera:
        watched = WatchedFrames(tmp_path, f"rtsp://127.0.0.1:{camera.port}/live", every=0.2, timeout=1)
        with watched.running() as history:
            until(lambda: images(history) >= 3)
            camera.is_silent = True
            until(lambda: watched.events() == ["away"])
            camera.is_silent = False
            until(lambda: watched.events() == ["away", "away-ended"])
        assert not [each for each in camera.requests if each.startswith("PAUSE")], "a stream is not sought"
        camera.is_silent = True
        stalled = WatchedFrames(tmp_path, f"rtsp://127.0.0.1:{camera.port}/live", timeout=600)
        with stalled.running():
            until(lambda: len([each for each in camera.requests if each.startswith("PLAY")]) >= 3)


def test_frames_for_which_the_detector_is_too_slow_are_dropped_and_counted(tmp_path: Path) -> None:
    port = free_port(socket.SOCK_DGRAM)
    watched = WatchedFrames(tmp_path, f"udp://127.0.0.1:{port}", every=0.1)
    with sending(f"udp://127.0.0.1:{port}?pkt_size=1316", "-f", "mpegts"), watched.running() as history:
        until(lambda: images(history) >= 1)
        source = watched.predictor
        source.resume.clear()
        threading.Event().wait(2)
        source.resume.set()
        before = images(history)
        until(lambda: images(history) >= before + frames.QUEUE)
    assert "dropped" in watched.reported[-1][1]


def test_a_password_is_refused_or_used_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Camera(tmp_path, login="user:sec ret") as camera:
        address = f"127.0.0.1:{camera.port}/live?channel=2&password=hidden"
        for login in ("", "user:wrong@"):
            with pytest.raises(RunError, match=r"401.*: check the address, user and password") as error:
                WatchedFrames(tmp_path, f"rtsp://{login}{address}").run(once=False)
            assert "wrong" not in str(error.value)
            assert "hidden" not in str(error.value)
        monkeypatch.setenv("DISCOPATCH_CAMERA_PASSWORD", "sec ret")
        watched = WatchedFrames(tmp_path, f"rtsp://user@{address}")
        assert len(watched.run(once=True)) == 1
        assert "live?channel=2" in camera.requests[-1], "the camera gets the whole address"
    content = watched.database.read_bytes() + repr(watched.reported).encode()
    assert f"rtsp://127.0.0.1:{camera.port}/live".encode() in content
    for secret in (b"sec ret", b"hidden", b"user@", b"sec%20ret"):
        assert secret not in content


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("rtsp://host/live", "rtsp://host/live"),
        ("rtsp://user:secret@host:554/live/1", "rtsp://host:554/live/1"),
        ("http://host/video?user=me&password=secret", "http://host/video"),
        ("rtsp://host:554/user=admin_password=secret_channel=1.sdp", "rtsp://host:554/"),
        ("rtsp://user:sec/ret@host/live", "rtsp://..."),
        ("rtsp://user:sec?secret@host/live", "rtsp://..."),
        ("udp://@239.0.0.1:1234", "udp://239.0.0.1:1234"),
    ],
)
def test_addresses_are_shown_without_user_and_password(address: str, expected: str) -> None:
    assert shown(address) == expected


def test_of_the_frames_of_a_group_one_counts_and_all_are_stored(tmp_path: Path, clip: Path) -> None:
    for group, counted in ((0, 20), (2, 5), (60, 1)):
        place = tmp_path / str(group)
        place.mkdir()
        watched = WatchedFrames(place, clip, every=0.5, group=group)
        assert len(watched.run(once=False)) == 20
        with History(watched.database) as history:
            state = history.state("camera")
        assert state is not None
        assert Monitor.from_bytes(state, watched.predictor).status.counted == counted  # type: ignore[arg-type]


def test_the_last_frames_are_kept_for_an_alarm_and_their_number_is_bounded(
    tmp_path: Path, clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "KEPT_EVENTS", 2)
    (tmp_path / "kept" / "mine").mkdir(parents=True)
    predictor, delivered = ReadPixels(3, 12, 15), list[str]()
    watched = WatchedFrames(tmp_path, clip, predictor, every=0.5)

    class Queue:
        wake = threading.Event()
        add, start, queued = delivered.append, staticmethod(lambda: None), staticmethod(lambda: 0)
        stop = staticmethod(lambda *arguments, **options: None)

    watched.run(Queue(), once=False, frames=KeptFrames(tmp_path / "kept"), on="flagged")  # type: ignore[arg-type]
    folders = sorted(path for path in (tmp_path / "kept").iterdir() if path.name != "mine")
    assert [folder.name[:8] for folder in folders] == ["flagged-"] * 2
    assert (tmp_path / "kept" / "mine").exists()
    assert len(delivered) == 3
    assert str(folders[-1]) in delivered[-1]
    names = [path.name for path in sorted(folders[0].iterdir())]
    assert len(names) == frames.KEPT_FRAMES
    assert names[-1] == "10-clip.mp4-00-00-06.000.jpg"
    with Image.open(folders[0] / names[-1]) as image:
        assert image.size == (160, 120)
