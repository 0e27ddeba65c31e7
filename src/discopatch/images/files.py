"""Bytes from files and from objects that can be read, never more than the limits allow."""

import io
import os
import stat
from inspect import iscoroutine
from pathlib import Path
from typing import IO, Any, Protocol, TypeGuard

from discopatch.errors import ImageError, ParameterError
from discopatch.images.image import Limits, RefusalReason

_CHUNK = 2**20
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
OPENED_AS_TEXT = "a file that was opened as text: open it in binary, open(path, 'rb')"


class Readable(Protocol):
    """An open file, an upload, a buffer."""

    def read(self, size: int, /) -> Any: ...


def open_regular(path: Path) -> IO[bytes]:
    """The open file; ImageError unless it is a regular one: a pipe would be waited for, a device might never end."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ImageError(RefusalReason.UNREADABLE, "not a regular file")
        file = os.fdopen(os.open(path, _OPEN_FLAGS), "rb")
    except (FileNotFoundError, NotADirectoryError):
        raise ImageError(RefusalReason.MISSING, "no such file: check the path") from None
    except OSError as error:
        raise unreadable(error) from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # replaced in the meantime
        file.close()
        raise ImageError(RefusalReason.UNREADABLE, "not a regular file")
    return file


def read_file(path: Path, limits: Limits) -> bytes:
    """The bytes of a regular file, refused unread when there are too many of them."""
    with open_regular(path) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            check_bytes(size, limits)
            data = file.read(size + 1)
        except OSError as error:
            raise unreadable(error) from error
        except MemoryError:
            raise out_of_memory(size) from None
    check_bytes(len(data), limits)
    return data


def read_start(path: Path, count: int) -> bytes:
    """The first bytes of a regular file."""
    with open_regular(path) as file:
        try:
            return file.read(count)
        except OSError as error:
            raise unreadable(error) from error


def is_readable(source: object) -> TypeGuard[Readable]:
    """Whether it is a file object, open as bytes or as text."""
    return callable(getattr(source, "read", None)) and not isinstance(source, os.PathLike)


def check_binary(source: Readable) -> None:
    """ParameterError for a file object that can never give an image."""
    if isinstance(source, io.TextIOBase):
        raise ParameterError(OPENED_AS_TEXT)


def read_object(source: Readable, limits: Limits) -> bytes:
    """What is left of a file object, at most one byte more than the limit; where it can be, it is wound back."""
    if isinstance(source, io.TextIOBase):
        raise ImageError(RefusalReason.UNSUPPORTED, OPENED_AS_TEXT)
    start = source.tell() if is_seekable(source) else None  # type: ignore[attr-defined]  # seekable files have it
    parts: list[bytes] = []
    size = 0
    try:
        while size <= limits.max_bytes:
            part = source.read(min(_CHUNK, limits.max_bytes + 1 - size))
            if iscoroutine(part):
                part.close()
                detail = "its read() is asynchronous: give the bytes, or the file inside (upload.file)"
                raise ImageError(RefusalReason.UNSUPPORTED, detail)
            if isinstance(part, str):
                raise ImageError(RefusalReason.UNSUPPORTED, OPENED_AS_TEXT)
            if not part:
                break
            parts.append(bytes(part))
            size += len(part)
        if start is not None:
            source.seek(start)  # type: ignore[attr-defined]
    except ImageError:
        raise
    except Exception as error:  # objects of any making
        raise ImageError(RefusalReason.UNREADABLE, f"reading it failed ({error}): open it again") from error
    check_bytes(size, limits)
    return b"".join(parts)


def is_seekable(source: Readable) -> bool:
    try:
        return bool(source.seekable())  # type: ignore[attr-defined]  # any error means no
    except Exception:
        return False


def unreadable(error: OSError) -> ImageError:
    """The error of a file or folder that is there but cannot be read."""
    detail = f"the system refuses to read it ({error.strerror}): check its permissions"
    return ImageError(RefusalReason.UNREADABLE, detail)


def out_of_memory(count: int) -> ImageError:
    detail = f"no memory for {count:,} bytes: use fewer workers (--workers), or shrink the image"
    return ImageError(RefusalReason.TOO_LARGE, detail)


def check_bytes(count: int, limits: Limits) -> None:
    """Refuses an encoded image that is empty or larger than `limits.max_bytes`."""
    if count == 0:
        raise ImageError(RefusalReason.EMPTY, "0 bytes")
    if count > limits.max_bytes:
        raise ImageError(
            RefusalReason.TOO_LARGE,
            f"{count:,} bytes; at most {limits.max_bytes:,}: raise max_bytes (--max-bytes)",
        )
