"""Atomic files and folders, file locks, optional packages, prefetching, and memory."""

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from mmap import ACCESS_READ, mmap
from pathlib import Path
from secrets import token_hex
from tempfile import gettempdir
from typing import IO, Any, TypeVar

from discopatch.errors import FULL, DiscopatchError, MissingExtraError, OutputError

T = TypeVar("T")

LOCK, PREVIOUS = "lock", "previous"  # names within a workplace
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
LOCK_PAUSE = 0.1  # seconds between two tries to lock a file
SMALLEST_SPACE = 2**16  # bytes that must be free before long work begins
_END = object()  # of items


def write_atomically(path: Path, write: Callable[[Path], object], *, replace: bool = True) -> None:
    """Calls `write` with a temporary file beside `path`, then renames it to `path`.

    When `write` fails or the program is killed, the old file at `path` is unchanged. The new file survives a power cut.
    Unless `replace`, a file that is there stays, also one that another process has just written. OutputError where it
    cannot be written.
    """
    with output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with workplace(path.parent) as folder:
            new = folder / "new"
            new.touch()
            mode = new.stat().st_mode
            write(new)
            new.chmod(mode)  # some writers make files that only their owner can read
            sync_file(new)
            try:
                if not replace:
                    path.hardlink_to(new)
            except OSError:  # the file exists, or the file system has no links
                replace = not path.exists()
            if replace:
                new.replace(path)
            sync_folder(path.parent)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, lambda partial: partial.write_bytes(f"{json.dumps(content, indent=2)}\n".encode()))


def check_output(path: Path, *, folder: bool = False) -> None:
    """Raises OutputError, before long work, where a file or a `folder` cannot be written."""
    with output_errors(path):
        if path.exists() and not (path.is_dir() if folder else path.is_file()):
            number = errno.ENOTDIR if folder else errno.EISDIR if path.is_dir() else errno.EINVAL
            raise OSError(number, os.strerror(number))
        below = path.absolute() / "anything" if folder else path.absolute()
        there = next(parent for parent in below.parents if parent.exists())
        with workplace(there) as place:
            check_space(place)


def check_space(folder: Path) -> None:
    """Raises OSError if SMALLEST_SPACE bytes cannot be written to the folder."""
    trial = folder / "trial"
    try:
        trial.write_bytes(bytes(SMALLEST_SPACE))
    finally:
        trial.unlink(missing_ok=True)


@contextmanager
def output_errors(path: Path | str, *, only_full: bool = False) -> Iterator[None]:
    """Turns errors of writing into an OutputError that names `path`; with `only_full` only those of a full disk."""
    try:
        yield
    except DiscopatchError:
        raise
    except Exception as error:
        found = re.search(r"\(os error (\d+)\)", str(error))  # of libraries that are written in Rust
        number = error.errno if isinstance(error, OSError) else int(found[1]) if found else None
        if number in FULL or (isinstance(error, OSError) and not only_full):
            reason = str(error) if number is None else os.strerror(number)
            raise OutputError(number or errno.EIO, reason, str(path)) from error
        raise


@contextmanager
def workplace(parent: Path) -> Iterator[Path]:
    """A temporary folder in `parent` for unfinished files, removed at the end.

    It is locked while it is used. After a kill, the next workplace in the same parent removes it.
    """
    remove_leftovers(parent)
    folder, lock = claim_folder(parent)
    try:
        yield folder
    finally:
        with lock, suppress(OSError):  # the next workplace removes the rest
            empty_workplace(folder, lock)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """An empty temporary folder, removed at the end or, after a kill, with the next one."""
    with workplace(Path(gettempdir())) as place:
        folder = place / "new"
        folder.mkdir()
        yield folder


def claim_folder(parent: Path) -> tuple[Path, IO[str]]:
    """A new folder, and the open file by which it is locked."""
    while True:
        folder = parent / f".discopatch-{token_hex(4)}.partial"
        folder.mkdir(mode=0o700)
        try:
            lock = (folder / LOCK).open("w")
        except FileNotFoundError:
            continue  # another process may remove it before it is locked
        except BaseException:
            folder.rmdir()
            raise
        if try_lock(lock) is not False and (folder / LOCK).exists():
            return folder, lock
        lock.close()


def try_lock(file: IO[str]) -> bool | None:
    """Whether no other process has the file locked; None where files cannot be locked.

    It is unlocked when it is closed, or when the process ends, however that happens.
    """
    busy = PermissionError if sys.platform == "win32" else BlockingIOError
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # the first byte, which need not be there
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except busy:
        return False
    except OSError:
        return None
    return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks the file, after other processes have unlocked it; does nothing where files cannot be locked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        while try_lock(file) is False:
            time.sleep(LOCK_PAUSE)
        yield


def remove_leftovers(parent: Path, *, below: bool = False) -> None:
    """Removes the user's workplaces of killed processes; those of running ones are locked.

    With `below` also those in folders below the parent.
    """
    for folder in list(parent.glob(f"{'**/' * below}.discopatch-*.partial")):
        with suppress(OSError):
            status = folder.lstat()
            is_own = sys.platform == "win32" or status.st_uid == os.getuid()
            if not stat.S_ISDIR(status.st_mode) or not is_own:
                continue
            if not (folder / LOCK).exists():
                folder.rmdir()
                continue
            with (folder / LOCK).open("r+") as lock:
                if try_lock(lock):
                    empty_workplace(folder, lock)


def empty_workplace(folder: Path, lock: IO[str]) -> None:
    """Removes a workplace, its lock last; an old folder that was not replaced is moved back first."""
    for old in folder.joinpath(PREVIOUS).glob("*"):
        if not (folder.parent / old.name).exists():
            old.rename(folder.parent / old.name)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()
    lock.close()  # Windows does not remove open files
    (folder / LOCK).unlink(missing_ok=True)
    folder.rmdir()


@contextmanager
def staged_folder(folder: Path) -> Iterator[Path]:
    """A new folder that takes the place of `folder` at the end. Nothing changes when an error is raised.

    After a kill between its two moves, the next workplace in the same parent restores the old folder.
    """
    with output_errors(folder, only_full=True):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with workplace(folder.parent) as place:
            staged = place / "new"
            staged.mkdir()
            yield staged
            for path in staged.iterdir():
                sync_file(path)
            sync_folder(staged)
            with output_errors(folder):
                if folder.exists():
                    (place / PREVIOUS).mkdir()
                    folder.rename(place / PREVIOUS / folder.name)
                staged.rename(folder)
                sync_folder(folder.parent)


def sync_file(path: Path) -> None:
    """Makes the content of a file survive a power cut."""
    with path.open("r+b") as file:  # Windows needs write access
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes a rename inside the folder survive a power cut."""
    if sys.platform != "win32":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_contains(path: Path, text: bytes) -> bool:
    """Whether a file contains the bytes; it is not read into memory."""
    if not path.stat().st_size:
        return False  # an empty file cannot be mapped
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return content.find(text) >= 0


def counted(number: int, noun: str) -> str:
    """Such as "1 image" and "1,200 images"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def escaped(text: str) -> str:
    """The text with control characters, line ends, direction marks and surrogates as escapes such as \\xe9."""
    return UNPRINTABLE.sub(lambda found: escape(found[0]), text)


def escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file's name that is no valid text
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape", "backslashreplace").decode()


def legible(text: str) -> str:
    """The text with bytes that are not Unicode written as \\xe9."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def resolved(path: Path) -> Path:
    """The absolute path without links; links in a circle stay, for which Path.resolve raises RuntimeError."""
    return Path(os.path.realpath(path))


def strip_prefix(values: Mapping[str, T], folder: str) -> dict[str, T]:
    """The entries whose name begins with `folder/`, under the rest of their name."""
    prefix = f"{folder}/"
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def require(module: str, extra: str | None = None) -> None:
    """Raises MissingExtraError, with the command to install, unless the module is installed."""
    try:
        found = sys.modules[module] if module in sys.modules else find_spec(module)
    except ModuleNotFoundError:  # of the package that the module would be in
        found = None
    if found is None:
        package = module if extra is None else f"'discopatch[{extra}]'"
        raise MissingExtraError(f"{module} is not installed: pip install {package}")


def prefetch(items: Iterable[T], steps: int) -> Iterator[T]:
    """The same items; each is returned after the `steps` items behind it have been drawn."""
    waiting: deque[T] = deque()
    for item in items:
        waiting.append(item)
        if len(waiting) > steps:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()


def read_ahead(items: Iterable[T], count: int) -> Generator[T, None, None]:
    """The same items, of which a thread draws up to `count` ahead; an error is raised in its place."""
    drawn, pool = iter(items), ThreadPoolExecutor(1, thread_name_prefix="discopatch-ahead")
    waiting = deque(pool.submit(next, drawn, _END) for _ in range(count))
    try:
        while (item := waiting.popleft().result()) is not _END:
            waiting.append(pool.submit(next, drawn, _END))
            yield item  # type: ignore[misc]  # no end
    finally:
        pool.shutdown(cancel_futures=True)
        if isinstance(items, Generator):
            items.close()


def threads_setting() -> int | None:
    """The number in OMP_NUM_THREADS, which torch follows too; None without one."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


@cache
def make_forks_safe() -> None:
    """Ends the threads of OpenMP before each fork of this process; without it 10 of 10 forked children hung."""
    if sys.platform == "linux":
        os.register_at_fork(before=end_openmp_threads)


def end_openmp_threads() -> None:
    """Ends the threads of GNU's OpenMP in the calling thread; they start again with the next computation."""
    maps = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    for path in {line.split(maxsplit=5)[-1] for line in maps if "libgomp" in line}:
        pause = getattr(ctypes.CDLL(path), "omp_pause_resource_all", None)  # since GCC 9
        if pause is not None:
            pause(2)  # omp_pause_hard


def release_memory() -> None:
    """Gives freed memory back to the system, where its C library can: arrays leave gaps of up to 32 MB."""
    with suppress(OSError, AttributeError, TypeError):  # other systems
        ctypes.CDLL(None).malloc_trim(0)
