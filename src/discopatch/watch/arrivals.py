"""Complete and new image files of a folder, by notifications of `watchfiles` and by listing."""

import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from discopatch.images.decode import is_image_name
from discopatch.utils import require

TEMPORARY_ENDS = ("~", ".part", ".partial", ".tmp", ".temp", ".crdownload", ".download", ".filepart", ".swp")
SETTLE = 1.0  # seconds for which size and time of change of a complete file are stable
RELIST = 30.0  # seconds between listings, for notifications that were lost
PAUSE = 0.25  # seconds of the longest wait for notifications
OLD = 60.0  # seconds by which the clocks of a network share and of this machine may differ


class Arrival(NamedTuple):
    """A complete file; `stamp` identifies its content by size, time of change and inode."""

    path: str
    stamp: str


class Waiting(NamedTuple):
    """A file that may still be written; it has had its stamp since then."""

    stamp: str | None  # None before the first look
    since: float


class Arrivals:
    """The files of a folder, each handed out once when it is complete, and again when its content changes.

    A file is complete when size and time of change are stable for `settle` seconds, or when it was renamed into the
    folder: then its content is older than its name. Hidden files, and names such as `a.jpg.part`, are ignored. `known`
    has the stamps of files that were scored before.
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
        self._waiting: dict[str, Waiting] = {}
        self._ready: deque[Arrival] = deque()
        self._taken: set[str] = set()  # ready or handed out
        self._listed_at = -RELIST
        self.away: str | None = None  # the reason why the folder cannot be listed

    @property
    def waiting(self) -> int:
        """The number of files that are not handed out yet."""
        return len(self._waiting) + len(self._ready)

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
                    if self._clock() - self._listed_at >= RELIST:
                        self.look(again=self._listed_at < 0)
                    yield
                    if self.away or self.folder.stat().st_ino != place:
                        break
            except OSError as error:
                self.away = error.strerror or str(error)
                yield
                stopped.wait(PAUSE)

    def look(self, *, again: bool = True) -> None:
        """Lists the folder and adds its files; unless `again`, those that are known are not checked for changes."""
        self._listed_at = self._clock()
        try:
            os.listdir(self.folder)  # noqa: PTH208 - os.walk hides errors
        except OSError as error:
            self.away = error.strerror or str(error)
            return
        self.away = None
        for place, folders, names in os.walk(self.folder):
            folders[:] = [name for name in folders if self._recursive and not name.startswith(".")]
            paths = (os.path.join(place, name) for name in names)  # noqa: PTH118 - many files
            self.add(path for path in paths if again or path not in self._known)

    def add(self, paths: Iterable[str]) -> None:
        """Adds files that are new or may have changed."""
        for path in paths:
            name = os.path.basename(path)  # noqa: PTH119
            wanted = not name.startswith(".") and not name.lower().endswith(TEMPORARY_ENDS) and is_image_name(name)
            if wanted and path not in self._taken:
                self._waiting.setdefault(path, Waiting(None, self._clock()))

    def take(self, count: int) -> list[Arrival]:
        """At most so many complete files, by their time of change."""
        complete = [(status.st_mtime_ns, path) for path in list(self._waiting) if (status := self._complete(path))]
        for _, path in sorted(complete):
            stamp = self._waiting.pop(path).stamp
            assert stamp is not None
            self._taken.add(path)
            self._ready.append(Arrival(path, stamp))
        return [self._ready.popleft() for _ in range(min(count, len(self._ready)))]

    def _complete(self, path: str) -> os.stat_result | None:
        """The status of a waiting file if it is complete now."""
        stamp, since = self._waiting[path]
        try:
            status = os.stat(path)  # noqa: PTH116
        except FileNotFoundError:
            del self._waiting[path]
            return None
        except OSError:
            return None
        now = stamp_of(status)
        if not stat.S_ISREG(status.st_mode) or self._known.get(path) == now:
            del self._waiting[path]
            return None
        if stamp != now:
            self._waiting[path] = Waiting(now, self._clock())
            return status if stamp is None and was_renamed(status, self._settle) else None
        return status if self._clock() - since >= self._settle else None

    def done(self, arrival: Arrival) -> None:
        """Marks this content of the file as scored."""
        self._taken.discard(arrival.path)
        self._known[arrival.path] = arrival.stamp

    def put_back(self, arrival: Arrival) -> None:
        """Hands the file out again once it is stable."""
        self._taken.discard(arrival.path)
        self._waiting[arrival.path] = Waiting(arrival.stamp, self._clock())

    def unfinished(self) -> list[str]:
        """Files that were still being written at the last look."""
        return sorted(self._waiting)

    def forget(self, keep: int) -> list[str]:
        """Forgets files that no longer exist, but for `keep` of them, and returns their paths.

        Some are kept, since a network share may be away for a while.
        """
        gone = [path for path in self._known if not os.path.exists(path)]  # noqa: PTH110
        forgotten = gone[: max(0, len(gone) - keep)]
        for path in forgotten:
            del self._known[path]
        return forgotten


def stamp_of(status: os.stat_result) -> str:
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"


def was_renamed(status: os.stat_result, settle: float) -> bool:
    """Whether the file got its name long after its content.

    A rename changes the entry of the file, not its content: both times are of the clock of the file system. Compared
    with the clock of this machine the content has to be older still.
    """
    content = status.st_mtime
    changed = status.st_ctime if os.name == "posix" else content  # on Windows it is the time of creation
    return changed - content > settle or time.time() - content > settle + OLD
