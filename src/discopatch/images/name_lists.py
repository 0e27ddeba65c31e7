"""Lists of images: a text file with one path or URI a line, or texts in a column of a table.

A list is the user's own: what it names is read with the user's rights. Relative names begin at the folder of the list;
one in a store cannot name files of this machine.
"""

import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from discopatch.errors import ImageError, ParameterError
from discopatch.images.formats import SIGNATURE_LENGTH, identify
from discopatch.images.image import RefusalReason
from discopatch.images.items import Item, Place, open_place
from discopatch.images.store_errors import cause_of
from discopatch.images.stores import StorePath, is_uri, parse, without_options

MAX_NAME = 4096  # bytes, as long as a path can be
_MAX_LINE = 2 * MAX_NAME  # a URI has options too
_COMMENT = "#"
_BYTE_ORDER_MARK = "\ufeff"


def is_name_list(place: Place) -> bool:
    """Whether a text file is a list, and no image under a name of another kind."""
    try:
        with open_place(place) as file:
            identify(file.read(SIGNATURE_LENGTH))
    except ImageError as error:
        return error.reason is RefusalReason.NOT_AN_IMAGE
    except Exception:  # reading it will say why
        return False
    return False


def listed_names(place: Place) -> Iterator[Place | Item]:
    """What the lines of a text file name, one by one; a refusal for each that names nothing.

    Empty lines and those that begin with # are left out: a file of such a name is written as ./#1.jpg.
    """
    folder = place.parent
    try:
        with open_place(place) as file:
            for line in _lines(file):
                if isinstance(line, ImageError):
                    yield Item(str(place), line)
                elif line and not line.startswith(_COMMENT):
                    found = place_named(line, folder)
                    yield Item(without_options(line), found) if isinstance(found, ImageError) else found
    except ImageError as error:
        yield Item(str(place), error)
    except OSError as error:
        reason, detail = cause_of(error)
        yield Item(str(place), ImageError(reason, f"the list cannot be read further: {detail}"))


def place_named(name: str, folder: Place) -> Place | ImageError:
    """The file that a list in the folder names; ImageError where it may name none."""
    if "\0" in name:
        return ImageError(RefusalReason.MISSING, "a name with a zero byte: write one path or URI a line")
    if is_uri(name):
        try:
            found = parse(name)
        except ParameterError as error:
            return ImageError(RefusalReason.UNSUPPORTED, str(error))
    elif isinstance(folder, Path):
        return folder / name
    elif name.startswith("/"):
        found = Path(name)
    else:
        path = posixpath.normpath(posixpath.join(folder.path, name))
        if path.startswith(".."):
            return ImageError(RefusalReason.MISSING, "a name that leads out of the bucket: check the list")
        return StorePath(folder.store, path)
    if isinstance(folder, Path):
        return found
    if isinstance(found, Path):
        detail = "a list in a store names a file of this machine, which is not read: copy the list here"
        return ImageError(RefusalReason.UNSUPPORTED, detail)
    is_same = (found.store.scheme, found.store.host) == (folder.store.scheme, folder.store.host)
    return StorePath(folder.store, found.path) if is_same and not found.store.options else found


def _lines(file: IO[bytes]) -> Iterator[str | ImageError]:
    first = True
    while line := file.readline(_MAX_LINE + 1):
        if len(line) > _MAX_LINE and not line.endswith(b"\n"):
            while rest := file.readline(_MAX_LINE + 1):
                if rest.endswith(b"\n"):
                    break
            detail = f"a line of more than {_MAX_LINE:,} bytes: write one path or URI a line"
            yield ImageError(RefusalReason.UNSUPPORTED, detail)
            continue
        text = line.decode(errors="surrogateescape").rstrip("\r\n")
        yield text.removeprefix(_BYTE_ORDER_MARK) if first else text
        first = False
