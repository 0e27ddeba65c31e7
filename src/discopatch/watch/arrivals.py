"""Sources of images that arrive; a folder, by notifications of `watchfiles` and by listing."""

import os
import stat
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from discopatch.errors import RunError
from discopatch.images import Item
from discopatch.images.decode import is_image_name
from discopatch.results import PredictedImage
from discopatch.utils import require

SETTLE = 1.0  # seconds for which size and time of change of a complete file are stable
RELIST = 30.0  # seconds between listings, for notifications that were lost
PAUSE = 0.25  # seconds of the longest wait for notifications
SETTLING_LOOKS = 3  # with `once`, at files that are still being written


class Arrival(NamedTuple):
    """An image that is to be scored; once it is stored, `stamp` is the mark of `path`."""

    path: str
    stamp: str  # of a file its size, time of change and inode
    item: Item
    group: str | None = None  # of images of which the monitor counts the first; None: by the name


class Source(ABC):
    """A place at which images arrive: `Watcher` scores what is `complete` after each step of `watch`."""

    name: str  # as it is reported, without a password
    away: str | None = None  # why no image can arrive now, as a sentence
    waiting: Collection[str]  # images that are not scored yet
    lost: dict[str, int]  # counts of what is not scored, by kind

    @abstractmethod
    def watch(self, stopped: threading.Event, *, once: bool = False) -> Iterator[None]:
        """Yields whenever images may have arrived, until `stopped` is set; with `once` until those there are scored."""

    @abstractmethod
    def complete(self) -> list[Arrival]:
        """The images that can be scored now, in their order."""

    @abstractmethod
    def resume(self, marks: Mapping[str, str]) -> None:
        """Takes the stamps by path of what was stored before."""

    def is_final(self, arrival: Arrival, found: PredictedImage) -> bool:
        """Whether the prediction is about the image that arrived; otherwise it is `put_back`."""
        return True

    def put_back(self, arrival: Arrival) -> None: ...  # noqa: B027 - only files change

    def done(self, arrival: Arrival) -> None: ...  # noqa: B027

    def forget(self, keep: int) -> list[str]:
        """Forgets the marks of files that are gone, but for `keep`; returns their paths."""
        return []


class Arrivals(Source):
    """The files of a folder, each returned when it is complete, and again when its content changes.

    A file is complete when size and time of change are stable for `settle` seconds, or when it was renamed into the
    folder. Hidden files, and names such as `a.jpg.part`, are ignored. With `poll` the folder is polled every so many
    seconds, for network shares without notifications.
    """

    def __init__(
        self,
        folder: Path,
        *,
        recursive: bool = False,
        poll: float | None = None,
        settle: float = SETTLE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = Path(os.path.abspath(folder))  # noqa: PTH100 - a link may lead elsewhere later
        self.name = str(self.folder)
        self._recursive, self._poll, self._settle, self._clock = recursive, poll, settle, clock
        self._known: dict[str, str] = {}
        self.lost = {}
        self.waiting: dict[str, tuple[str, float]] = {}  # with the stamp, and since when it is that
        self._listed_at = -RELIST

    def resume(self, marks: Mapping[str, str]) -> None:
        self._known = dict(marks)

    def watch(self, stopped: threading.Event, *, once: bool = False) -> Iterator[None]:
        """Yields after each notification, and at least every `PAUSE` seconds.

        With `once` it looks a few times, so that files have time to settle.
        """
        for look in range(1 + SETTLING_LOOKS if once else 0):
            stopped.wait((self._settle + 0.05) * (look > 0))
            self.look()
            if self.away:
                raise RunError(f"{self.away}: check the folder")
            yield
            if stopped.is_set() or not self.waiting:
                return
        if once:
            return
        require("watchfiles", extra="watch")
        import watchfiles

        while not stopped.is_set():
            self._listed_at = -RELIST
            try:
                place = self.folder.stat().st_ino
                for changes in watchfiles.watch(
                    self.folder,
                    watch_filter=None,
                    debounce=int(1000 * PAUSE),
                    stop_event=stopped,
                    rust_timeout=int(1000 * PAUSE),
                    yield_on_timeout=True,
                    raise_interrupt=False,
                    force_polling=self._poll is not None,
                    poll_delay_ms=int(1000 * (self._poll or PAUSE)),
                    recursive=self._recursive,
                    ignore_permission_denied=True,
                ):
                    self.add(path for _, path in changes)
                    has_folder = self._recursive and any(Path(path).is_dir() for _, path in changes)
                    if has_folder or self._clock() - self._listed_at >= RELIST:  # files may precede notifications
                        self.look(again=self._listed_at < 0)
                    yield
                    if self.away or self.folder.stat().st_ino != place:
                        break
            except OSError as error:
                self._note_away(error)
                yield
                stopped.wait(PAUSE)

    def look(self, *, again: bool = True) -> None:
        """Lists the folder and adds its files; unless `again`, those that are known are not checked for changes."""
        self._listed_at = self._clock()
        errors: list[OSError] = []
        for place, folders, names in os.walk(self.folder, onerror=errors.append):
            folders[:] = [name for name in folders if self._recursive and not name.startswith(".")]
            paths = (os.path.join(place, name) for name in names)  # noqa: PTH118 - many files
            self.add(path for path in paths if again or path not in self._known)
        self._note_away(next((error for error in errors if str(error.filename) == self.name), None))

    def _note_away(self, error: OSError | None) -> None:
        self.away = None if error is None else f"{self.name} cannot be listed ({error})"

    def add(self, paths: Iterable[str]) -> None:
        """Adds files that are new or may have changed."""
        for path in paths:
            name = os.path.basename(path)  # noqa: PTH119
            if is_image_name(name) and not name.startswith("."):
                self.waiting.setdefault(path, ("", self._clock()))

    def complete(self) -> list[Arrival]:
        """The complete files, by their time of change. A file waits until it is `done`, also during its scoring."""
        found = []
        for path, (before, since) in list(self.waiting.items()):
            status = None
            with suppress(OSError):  # the next listing finds it again, if it is there
                status = os.stat(path)  # noqa: PTH116
            if status is None or not stat.S_ISREG(status.st_mode) or self._known.get(path) == stamp_of(status):
                del self.waiting[path]
                continue
            stamp = stamp_of(status)
            stable = before == stamp and self._clock() - since >= self._settle
            # A rename changes the entry of a file and not its content; on Windows st_ctime is the time of creation.
            renamed = not before and status.st_ctime - status.st_mtime > self._settle
            if stable or renamed:
                item = Item(os.path.relpath(path, self.folder), Path(path))
                found.append((status.st_mtime_ns, Arrival(path, stamp, item)))
            if before != stamp:
                self.waiting[path] = (stamp, self._clock())
        return [arrival for _, arrival in sorted(found, key=lambda each: (each[0], each[1].path))]

    def is_final(self, arrival: Arrival, found: PredictedImage) -> bool:
        """Whether the file was not replaced meanwhile."""
        try:
            return stamp_of(os.stat(arrival.path)) == arrival.stamp  # noqa: PTH116
        except OSError:  # it is gone, after it was read or before
            return found.refusal is None

    def done(self, arrival: Arrival) -> None:
        """Marks this content of the file as scored."""
        self.waiting.pop(arrival.path, None)
        self._known[arrival.path] = arrival.stamp

    def put_back(self, arrival: Arrival) -> None:
        """Returns the file again once it is stable."""
        self.waiting[arrival.path] = (arrival.stamp, self._clock())

    def forget(self, keep: int) -> list[str]:
        """Forgets files that are gone, but for `keep`, since a share may be away for a while; returns their paths."""
        gone = [path for path in self._known if not os.path.exists(path)]  # noqa: PTH110
        forgotten = gone[: max(0, len(gone) - keep)]
        for path in forgotten:
            del self._known[path]
        return forgotten


def stamp_of(status: os.stat_result) -> str:
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"
