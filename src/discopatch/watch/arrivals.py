"""Which image files of a folder are complete and new, found by listing it again and again.

Listing works on every file system, network shares too. What a listing tells for nothing, names and inode numbers, is
all that is asked about files that are known; a folder that has not changed is not listed at all, but for now and then.
"""

import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, Self

from discopatch.images.formats import is_image_name

TEMPORARY_ENDS = ("~", ".part", ".partial", ".tmp", ".temp", ".crdownload", ".download", ".filepart", ".swp")
COARSE = 3.0  # seconds: within so many a folder may change twice and its time of change only once
RELIST = 30.0  # seconds after which a folder is listed although it seems unchanged
RECHECKED = 64  # known files a poll that are looked at again, for one may have been written anew in its place
OLD = 60.0  # seconds by which the clocks of a network share and of this machine may differ


class Stamp(NamedTuple):
    """By what one content of a file is told from another one under the same name."""

    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


class Arrival(NamedTuple):
    """A complete file."""

    path: str
    stamp: Stamp


@dataclass(slots=True)
class Known:
    """A file that was scored; a listing may give it another inode number than its status does, such as a link's."""

    stamp: Stamp
    listed: int


@dataclass(slots=True)
class Waiting:
    """A file that may still be written to; `stamp`, which it has had since then, is None before the first look."""

    stamp: Stamp | None
    since: float
    listed: int | None = None


@dataclass(slots=True)
class Listing:
    """What was found in one folder, and when."""

    identity: tuple[int, int, int] = (0, 0, 0)  # of the folder and its content: device, inode and time of change
    since: float = 0.0  # when that was first found
    at: float = 0.0  # when it was listed last
    polled: int = 0  # the number of that poll
    settled: bool = False  # listed so long after its change that another one would have another time
    place: int = 0  # up to which known files were looked at again
    inside: list[str] = field(default_factory=list)  # folders


class Arrivals:
    """The files of a folder, each handed out once it is complete, and again when another takes its place.

    A file is complete when its size and time of change have stood still for `settle` seconds, or when it came by a
    rename, long written: its content is then older than its place in the folder. Hidden files and those with a name
    such as `a.jpg.part` are never taken, nor is what is no regular file. `known` are those that were scored before.
    """

    def __init__(
        self,
        folder: Path,
        *,
        pattern: str = "*",
        recursive: bool = False,
        settle: float = 1.0,
        known: Mapping[str, Stamp] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self._pattern, self._recursive, self._settle = folder, pattern, recursive, settle
        self._clock = clock
        self._known = {path: Known(stamp, stamp.inode) for path, stamp in (known or {}).items()}
        self._waiting: dict[str, Waiting] = {}
        self._ready: deque[Arrival] = deque()
        self._taken: set[str] = set()  # ready ones, and those handed out
        self._listings: dict[str, Listing] = {}
        self._polls = 0
        self.away: str | None = None  # why the folder cannot be listed now
        self.gone: list[str] = []  # files that went before they were complete; whoever tells of them empties it
        self.closed: dict[str, str] = {}  # folders inside that cannot be listed, and why

    @property
    def waiting(self) -> int:
        """Files that are there and not handed out yet."""
        return len(self._waiting) + len(self._ready)

    @property
    def ready(self) -> int:
        return len(self._ready)

    def poll(self) -> None:
        """Looks for files that came, changed or are complete now."""
        now = self._clock()
        self._polls += 1
        try:
            self._list_all(now)
        except OSError as error:
            self.away = error.strerror or str(error)
            return
        self.away = None
        complete = [arrival for arrival in map(self._judge, list(self._waiting)) if arrival is not None]
        complete.sort(key=lambda arrival: (arrival.stamp.mtime_ns, arrival.path))
        self._ready.extend(complete)

    def take(self, count: int) -> list[Arrival]:
        """At most so many complete files, those of one poll by their time of change."""
        return [self._ready.popleft() for _ in range(min(count, len(self._ready)))]

    def done(self, arrival: Arrival) -> None:
        """That content of the file needs no other look."""
        self._taken.discard(arrival.path)
        self._known.pop(arrival.path, None)  # so that the newest stand last
        self._known[arrival.path] = Known(arrival.stamp, arrival.stamp.inode)

    def put_back(self, arrival: Arrival) -> None:
        """Whatever is at that path then has to stand still again before it is handed out."""
        self._taken.discard(arrival.path)
        self._waiting[arrival.path] = Waiting(arrival.stamp, self._clock())

    def drop(self, arrival: Arrival) -> None:
        """The file is gone; should it come back, it is new."""
        self._taken.discard(arrival.path)

    def unfinished(self) -> list[str]:
        """Files that were still being written when they were looked at last."""
        return sorted(self._waiting)

    def forget(self, keep: int) -> list[str]:
        """Forgets files that are gone from the folder, all but the newest `keep`, and says which.

        Some are kept, for a network share may be away and leave an empty folder, and come back.
        """
        if len(self._known) <= keep:
            return []
        there: set[str] = set()
        for folder in list(self._listings):
            with suppress(OSError):
                there.update(entry.path for entry in entries(folder))
        gone = [path for path in self._known if path not in there]
        forgotten = gone[: max(0, len(gone) - keep)]
        for path in forgotten:
            del self._known[path]
        return forgotten

    def _list_all(self, now: float) -> None:
        """Lists the folder and those inside it, each where that may find something new."""
        before, self._listings = self._listings, {}
        remaining = [str(self.folder)]
        while remaining:
            folder = remaining.pop()
            listing = before.get(folder, Listing())
            try:
                self._list(folder, listing, now)
            except OSError as error:
                if folder == str(self.folder):
                    raise
                if not isinstance(error, FileNotFoundError):
                    self.closed.setdefault(folder, error.strerror or str(error))
                continue
            self.closed.pop(folder, None)
            self._listings[folder] = listing
            remaining += listing.inside

    def _list(self, folder: str, listing: Listing, now: float) -> None:
        status = os.stat(folder)  # noqa: PTH116 - so are those of files, of which there are many
        identity = (status.st_dev, status.st_ino, status.st_mtime_ns)
        if listing.identity != identity:
            listing.identity, listing.since, listing.settled = identity, now, False
        if listing.settled and now - listing.at < RELIST:
            return
        self._read(folder, listing, now)
        listing.at, listing.polled, listing.settled = now, self._polls, now - listing.since >= COARSE

    def _read(self, folder: str, listing: Listing, now: float) -> None:
        inside, place = [], 0
        again = range(listing.place, listing.place + RECHECKED * (self._polls - listing.polled))
        for entry in entries(folder):
            if entry.is_dir(follow_symlinks=False):
                if self._recursive and not entry.name.startswith("."):
                    inside.append(entry.path)
            elif self._is_wanted(entry.name) and entry.path not in self._taken and entry.path not in self._waiting:
                known = self._known.get(entry.path)
                if known is None or known.listed != entry.inode() or place in again:
                    self._waiting[entry.path] = Waiting(None, now, entry.inode())
                place += known is not None
        listing.inside, listing.place = inside, again.stop if again.stop < place else 0

    def _is_wanted(self, name: str) -> bool:
        return (
            not name.startswith(".")
            and not name.lower().endswith(TEMPORARY_ENDS)
            and is_image_name(name)
            and fnmatchcase(name, self._pattern)
        )

    def _judge(self, path: str) -> Arrival | None:
        """The waiting file where it is complete now."""
        waiting, now = self._waiting[path], self._clock()
        known = self._known.get(path)
        try:
            status = os.stat(path)  # noqa: PTH116
        except FileNotFoundError:
            del self._waiting[path]
            if known is None or waiting.stamp is not None:
                self.gone.append(path)
            return None
        except OSError:
            return None
        stamp = Stamp.of(status)
        if not stat.S_ISREG(status.st_mode):
            del self._waiting[path]
            return None
        if known is not None and known.stamp == stamp:
            known.listed = stamp.inode if waiting.listed is None else waiting.listed
            del self._waiting[path]
            return None
        stood_still = waiting.stamp == stamp and now - waiting.since >= self._settle
        if not stood_still and not (waiting.stamp is None and was_renamed(status, self._settle)):
            if waiting.stamp != stamp:
                self._waiting[path] = Waiting(stamp, self._clock(), waiting.listed)
            return None
        del self._waiting[path]
        self._taken.add(path)
        return Arrival(path, stamp)


def was_renamed(status: os.stat_result, settle: float) -> bool:
    """Whether the file got its name long after its content.

    A rename is a change of the file's entry, not of its content: both times are of the same clock, that of the file
    system. Compared with this machine's clock the content has to be older still.
    """
    content = status.st_mtime
    changed = status.st_ctime if os.name == "posix" else content  # elsewhere it is the time when the file was made
    return changed - content > settle or time.time() - content > settle + OLD


def entries(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        yield from found
