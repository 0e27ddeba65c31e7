"""Complete and new image files of a folder, by notifications of `watchfiles` and by listing."""

import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from discopatch.images.decode import is_image_name
from discopatch.utils import require

TEMPORARY_ENDS = ("~", ".part", ".partial", ".tmp", ".temp", ".crdownload", ".download", ".filepart", ".swp")
SETTLE = 1.0  # seconds for which size and time of change of a complete file are stable
RELIST = 30.0  # seconds between listings, for notifications that were lost
PAUSE = 0.25  # seconds of the longest wait for notifications


class Arrival(NamedTuple):
    """A complete file; `stamp` identifies its content by size, time of change and inode."""

    path: str
    stamp: str


class Arrivals:
    """The files of a folder, each returned when it is complete, and again when its content changes.

    A file is complete when size and time of change are stable for `settle` seconds, or when it was renamed into the
    folder. Hidden files, and names such as `a.jpg.part`, are ignored. `known` has the stamps of files that were scored
    before.
    """

    def __init__(
        self,
        folder: Path,
        *,
        recursive: bool = False,
        settle: float = SETTLE,
        known: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self._recursive, self._settle, self._clock = folder, recursive, settle, clock
        self._known = dict(known or {})
        self.waiting: dict[str, tuple[str, float]] = {}  # files that are not scored yet: stamp, and since when
        self._listed_at = -RELIST
        self.away: str | None = None  # the reason why the folder cannot be listed

    def watch(self, stopped: threading.Event, *, poll: float | None = None) -> Iterator[None]:
        """Yields after each notification, and at least every `PAUSE` seconds, until `stopped` is set.

        With `poll` the folder is polled every so many seconds, for network shares without notifications.
        """
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
                    force_polling=poll is not None,
                    poll_delay_ms=int(1000 * (poll or PAUSE)),
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
                self.away = str(error)
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
        self.away = next((str(error) for error in errors if str(error.filename) == str(self.folder)), None)

    def add(self, paths: Iterable[str]) -> None:
        """Adds files that are new or may have changed."""
        for path in paths:
            name = os.path.basename(path)  # noqa: PTH119
            wanted = not name.startswith(".") and not name.lower().endswith(TEMPORARY_ENDS) and is_image_name(name)
            if wanted:
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
                found.append((status.st_mtime_ns, Arrival(path, stamp)))
            if before != stamp:
                self.waiting[path] = (stamp, self._clock())
        return [arrival for _, arrival in sorted(found)]

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
