"""Frames of a video file, a camera or a stream over the network, which a thread reads with PyAV."""

import os
import queue
import re
import shutil
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from io import BytesIO
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
from PIL import Image

from discopatch.errors import ParameterError, RunError
from discopatch.images import Item
from discopatch.utils import output_errors, require, staged_folder
from discopatch.watch.arrivals import PAUSE, Arrival, Source, stamp_of

if TYPE_CHECKING:
    import av

SCHEMES = ("rtsp", "rtsps", "rtmp", "rtmps", "http", "https", "tcp", "udp")
PASSWORD = "DISCOPATCH_CAMERA_PASSWORD"  # environment variable, for an address with a user and no password
EVERY = 1.0  # seconds between frames
GROUP = 60.0  # seconds of which one frame counts as evidence
QUEUE = 4  # frames that wait for the detector
TIMEOUT = 10.0  # seconds without a frame, after which a stream is opened again
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds before a stream is opened again; each pause is twice the one before
NO_CLOCK = ("mpjpeg",)  # formats whose times are made up from a frame rate
KEPT_FRAMES, KEPT_EVENTS = 10, 100  # before an event, and the newest events of each kind
KEPT_SIDE, KEPT_QUALITY = 1280, 85  # of the JPEG files
ROUNDING = 1e-3  # seconds
EVENT_FOLDER = re.compile(r"(alarm|flagged)-\d{8}T\d{6}\.\d{6}Z")


class Frames(Source):
    """One frame in `every` seconds of a video file, a device or an address.

    A file is read to its end, no faster than its frames are scored, and later continued behind the last stored frame.
    A stream goes on: frames for which the detector is too slow are dropped and counted, and it is opened again when it
    breaks off or nothing arrives for `timeout` seconds. Of the frames within `group` seconds the first is evidence.
    """

    def __init__(self, place: str, *, every: float = EVERY, group: float = GROUP, timeout: float = TIMEOUT) -> None:
        require("av", extra="video")
        self._every, self._group, self._timeout = every, group, timeout
        self._format: str | None = None
        self._options: dict[str, str] = {}
        if "://" in place:
            self.name, self._address, self.is_live = shown(place), with_password(place), True
            if (scheme := place.partition("://")[0].lower()) not in SCHEMES:
                raise ParameterError(f"{self.name} cannot be watched: give an address of {', '.join(SCHEMES)}")
            if scheme in ("rtsp", "rtsps"):
                self._options = {"rtsp_flags": "prefer_tcp"}
        else:
            path = Path(os.path.abspath(place))  # noqa: PTH100 - a link may lead elsewhere later
            if not path.is_file() and not path.is_char_device():
                raise ParameterError(f"{place} is no folder, video file, device or address: check it")
            self.name, self._address, self.is_live = str(path), f"file:{path}", path.is_char_device()
            if self.is_live:
                self._address, self._format = str(path), "v4l2"
        self._identity = "live" if self.is_live else stamp_of(path.stat())
        self._last = self._group_start = -inf  # seconds: the last frame that was taken, and the first of its group
        self._taken, self.lost = 0, {"dropped": 0, "damaged": 0, "interrupted": 0}
        self._queue: queue.Queue[Arrival] = queue.Queue(QUEUE)
        self._arrived = threading.Event()
        self._error: Exception | None = None

    @property
    def waiting(self) -> list[str]:  # type: ignore[override]
        return [arrival.item.name for arrival in list(self._queue.queue)]

    def resume(self, marks: Mapping[str, str]) -> None:
        identity, _, seconds = marks.get(self.name, "").partition("; ")
        if identity == self._identity:
            last, self._group_start = map(float, seconds.split())
            self._last = -inf if self.is_live else last

    def complete(self) -> list[Arrival]:
        found: list[Arrival] = []
        with suppress(queue.Empty):  # the reader may drop one at the same time
            while len(found) < QUEUE:
                found.append(self._queue.get_nowait())
        return found

    def watch(self, stopped: threading.Event, *, once: bool = False) -> Iterator[None]:
        """Yields after each frame, and at least every `PAUSE` seconds; with `once` a stream ends after one frame."""
        reader = threading.Thread(target=self._run, args=(stopped, once), name="discopatch-frames", daemon=True)
        reader.start()
        while not stopped.is_set() and (reader.is_alive() or not self._queue.empty()):
            self._arrived.wait(PAUSE)
            self._arrived.clear()
            yield
        reader.join(PAUSE)  # it may be in a read that only its timeout ends
        if self._error is not None:
            raise self._error

    def _run(self, stopped: threading.Event, once: bool) -> None:
        try:
            self._read_again(stopped, once)
        except Exception as error:  # raised again by `watch`
            self._error = error
        self._arrived.set()

    def _read_again(self, stopped: threading.Event, once: bool) -> None:
        """Reads a file to its end, and a stream again and again."""
        import av

        never_heals = (
            *(av.ProtocolNotFoundError, av.DemuxerNotFoundError, av.DecoderNotFoundError, av.PermissionError),
            *(av.FileNotFoundError, av.HTTPUnauthorizedError, av.HTTPForbiddenError),
        )
        failures = -1
        while not stopped.is_set():
            before, reason = self._taken, "it ended"
            try:
                self._read(stopped, once)
                if not self.is_live or (once and self._taken):
                    return
            except (av.FFmpegError, TimeoutError) as error:
                is_silent = isinstance(error, av.ExitError | TimeoutError)
                reason = f"no frame in {self._timeout:g} s" if is_silent else str(error.strerror)  # without the address
                if not self.is_live or once or (not self._taken and isinstance(error, never_heals)):
                    remedy = "check the address, user and password" if self.is_live else "give a whole video file"
                    raise RunError(f"{self.name} cannot be read ({reason}): {remedy}") from None
            if stopped.is_set():
                return
            self.lost["interrupted"] += self._taken > before
            failures = 0 if self._taken > before else failures + 1
            self.away = f"{self.name} sends no frames ({reason})"
            stopped.wait(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures, 9)))

    def _read(self, stopped: threading.Event, once: bool) -> None:
        import av

        with av.open(self._address, format=self._format, options=self._options, timeout=self._timeout) as container:
            if not container.streams.video:  # a camera that has sent frames may have it again later
                raise TimeoutError if self._taken else RunError(f"{self.name} has no video: give another source")
            video = container.streams.video[0]
            base = float(video.time_base or 0)
            start, rate, made_up = (video.start_time or 0) * base, float(video.average_rate or 25), NO_CLOCK
            if not self.is_live and self._last > 0 and video.start_time is not None:
                with suppress(av.FFmpegError):  # where it cannot be sought, it is read from the beginning
                    container.seek(int((self._last + start) / base), stream=video)
            number, whole, end, seen = 0, 0, 0.0, time.monotonic()
            for packet in container.demux():
                if stopped.is_set():
                    return
                if self.is_live and time.monotonic() - seen > self._timeout:  # such as sound alone
                    raise TimeoutError
                if packet.stream.index != video.index:
                    continue
                end = max(end, ((packet.pts or 0) + (packet.duration or 0)) * base - start)
                try:
                    frames = packet.decode()
                except av.InvalidDataError:
                    self.lost["damaged"] += whole > 0 or not self.is_live  # a stream begins between two key frames
                    continue
                for frame in frames:
                    assert isinstance(frame, av.VideoFrame)
                    number, seen, seconds = number + 1, time.monotonic(), frame.time
                    if self.is_live and (seconds is None or container.format.name in made_up):
                        seconds = seen
                    seconds = number / rate if seconds is None else seconds - start
                    if frame.is_corrupt:
                        self.lost["damaged"] += whole > 0 or not self.is_live
                        continue
                    whole += 1
                    if self._is_due(seconds):
                        self._take(frame, seconds, stopped)
                        if once and self.is_live:
                            return
            length = (video.duration or 0) * base
            if not self.is_live and (not whole or end < length - 1):
                where = f"ends after {end:.1f} s of {length:.1f} s" if whole else "has no frame that can be decoded"
                raise RunError(f"{self.name} {where}: copy it again; the frames before are stored")

    def _is_due(self, seconds: float) -> bool:
        """Whether the frame is to be taken, also when the time has jumped back, but for frames that are stored."""
        ahead = seconds - self._last
        return ahead >= self._every - ROUNDING or (ahead < 0 and self._taken > 0)

    def _take(self, frame: "av.VideoFrame", seconds: float, stopped: threading.Event) -> None:
        """Puts the frame into the queue; where that is full, the oldest of a stream is dropped."""
        self._last, self._taken, self.away = seconds, self._taken + 1, None
        if self.is_live:
            now = datetime.now(UTC)
            seconds, name = now.timestamp(), f"camera {now:%Y-%m-%dT%H:%M:%S.%f}Z"
        else:
            minutes, milliseconds = divmod(round(1000 * seconds), 60_000)
            moment = f"{minutes // 60:02d}:{minutes % 60:02d}:{milliseconds / 1000:06.3f}"
            name = f"{Path(self.name).name} {moment}"
        if not 0 <= seconds - self._group_start < self._group - ROUNDING:
            self._group_start = seconds
        stamp = f"{self._identity}; {seconds:.6f} {self._group_start:.6f}"
        item = Item(name, np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90))
        arrival = Arrival(self.name, stamp, item, f"{self.name} {self._group_start:.6f}")
        while not stopped.is_set():
            with suppress(queue.Full):
                self._queue.put(arrival, timeout=0 if self.is_live else PAUSE)
                break
            if self.is_live:
                with suppress(queue.Empty):
                    self._queue.get_nowait()
                    self.lost["dropped"] += 1
        self._arrived.set()


class KeptFrames:
    """The last frames as small JPEG files in memory; `write` puts them into a new folder, and removes the oldest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: deque[tuple[str, bytes]] = deque(maxlen=KEPT_FRAMES)

    def add(self, item: Item) -> None:
        assert isinstance(item.content, np.ndarray)
        image, buffer = Image.fromarray(item.content), BytesIO()
        image.thumbnail((KEPT_SIDE, KEPT_SIDE))
        image.save(buffer, "JPEG", quality=KEPT_QUALITY)
        self._last.append((re.sub(r"[^\w.-]", "-", item.name), buffer.getvalue()))

    def write(self, event: str, seconds: float) -> Path:
        """The new folder; OutputError if it cannot be written."""
        folder = self._folder / f"{event}-{datetime.fromtimestamp(seconds, UTC):%Y%m%dT%H%M%S.%fZ}"
        with output_errors(folder), staged_folder(folder) as staged:
            for number, (name, content) in enumerate(self._last, 1):
                (staged / f"{number:02d}-{name}.jpg").write_bytes(content)
        written = sorted(path for path in self._folder.iterdir() if EVENT_FOLDER.fullmatch(path.name))
        for old in [path for path in written if path.name.startswith(event)][:-KEPT_EVENTS]:
            shutil.rmtree(old, ignore_errors=True)
        return folder


def shown(address: str) -> str:
    """The address without user and password, also where a camera has them in its path or query."""
    scheme, _, rest = address.partition("://")
    host, *more = re.split("([/?#])", rest, maxsplit=1)
    if "@" in "".join(more):  # perhaps of a password that is not quoted
        return f"{scheme}://..."
    path = re.split("[?#;]", "".join(more))[0]
    return f"{scheme}://{host.rpartition('@')[2]}{re.split('[^/]*=', path)[0]}"


def with_password(address: str) -> str:
    """The address with the password of the environment, if it has a user alone."""
    scheme, _, rest = address.partition("://")
    user, at, place = rest.partition("@")
    password = os.environ.get(PASSWORD)
    if not password or not at or not user or re.search("[:/?#]", user):
        return address
    return f"{scheme}://{user}:{quote(password, safe='')}@{place}"
