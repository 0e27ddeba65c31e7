"""Tar archives of images, the layout of WebDataset, read as a stream."""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from discopatch.images.decode import check_bytes, unreadable
from discopatch.images.item import IMAGE_SUFFIXES, Item
from discopatch.images.picture import ImageRefused, Limits, Reason

SHARD_SUFFIXES = (".tar", ".tar.gz", ".tgz")


@dataclass(frozen=True, slots=True)
class Shard:
    """A tar archive of images, the layout of WebDataset."""

    path: Path

    def members(self, limits: Limits) -> Iterator[Item]:
        """Images of the archive; nothing is extracted, so a member's path is only a name.

        Where the archive is cut short or damaged it is refused; the images before that place stay.
        """
        try:
            yield from self._members(limits)
        except FileNotFoundError:
            yield self._refused(ImageRefused(Reason.MISSING, "no such archive: check the path"))
        except OSError as error:
            yield self._refused(unreadable(error))
        except Exception as error:  # as many kinds as compressions and headers have ways to break
            detail = f"archive cut short or damaged ({error}): copy it again; what came before was read"
            yield self._refused(ImageRefused(Reason.TRUNCATED, detail))

    def _members(self, limits: Limits) -> Iterator[Item]:
        found = False
        with tarfile.open(self.path, "r|*", tarinfo=_Header) as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # or tarfile remembers every member
                if _is_image(member):
                    found = True
                    yield Item(f"{self.path}/{member.name}", _content(archive, member, limits))
        if not found:
            yield self._refused(ImageRefused(Reason.MISSING, "no images in the archive: add some"))

    def _refused(self, refusal: ImageRefused) -> Item:
        return Item(str(self.path), refusal)


def _is_image(member: tarfile.TarInfo) -> bool:
    path = Path(member.name)
    return member.isfile() and path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, limits: Limits) -> bytes | ImageRefused:
    try:
        check_bytes(member.size, limits)
    except ImageRefused as refused:
        return refused
    stream = archive.extractfile(member)
    return stream.read() if stream else b""


class _Header(tarfile.TarInfo):
    """Takes only the end mark for the end of an archive; tarfile itself takes a damaged header for it too."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> "_Header":
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # missing from typeshed
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"no end mark: {error}") from error
