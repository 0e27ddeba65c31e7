"""Addresses of detectors: hf://owner/name@revision/folder on the hub, hub:///path for a folder of the same layout."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote

from discopatch.errors import ParameterError

REMOTE, LOCAL = "hf", "hub"
SCHEME = re.compile(rf"({REMOTE}|{LOCAL}):/{{1,2}}")  # one slash is what `Path` leaves of two
PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")  # of the name of a repository
REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,199}")
DRIVE = re.compile(r"/[A-Za-z]:[/\\]")  # of Windows, as in hub:///C:/detectors
FORM = "hf://owner/name, hf://owner/name@revision or hf://owner/name/folder"


def is_address(place: Path | str) -> bool:
    """Whether it is an address rather than a path."""
    return SCHEME.match(str(place)) is not None


def local_folder(place: Path | str) -> Path | None:
    """The folder that a hub:// address names; None for what is none."""
    text = str(place)
    found = SCHEME.match(text)
    if found is None or found[1] != LOCAL:
        return None
    rest = text[len(f"{LOCAL}://") :] if text.startswith(f"{LOCAL}://") else text[len(f"{LOCAL}:") :]
    if not rest:
        raise ParameterError(f"{text!r} names no folder: give one such as {LOCAL}:///path/to/folder")
    return Path(rest[1:] if DRIVE.match(rest) else rest)


@dataclass(frozen=True)
class HubAddress:
    """A folder of a repository on the hub, at a branch, a tag or a commit; by default its main branch."""

    owner: str
    name: str
    revision: str | None = None
    folder: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The parts of hf://owner/name@revision/folder; a slash in the revision is written %2F."""
        found = SCHEME.match(text)
        rest = text[found.end() :] if found is not None and found[1] == REMOTE else ""
        owner, _, rest = rest.rstrip("/").partition("/")
        named, _, folder = rest.partition("/")
        name, at, quoted = named.partition("@")
        revision = unquote(quoted) if at else None
        if not PART.fullmatch(owner) or not PART.fullmatch(name):
            raise ParameterError(f"{text!r} is no repository of the hub: give {FORM}")
        if revision is not None and (not REVISION.fullmatch(revision) or ".." in revision):
            raise ParameterError(f"{text!r} names no revision: give a branch, a tag or a commit, as in {FORM}")
        if folder and not all(PART.fullmatch(part) for part in folder.split("/")):
            raise ParameterError(f"{text!r} names no folder of a repository: give {FORM}")
        return cls(owner, name, revision, folder)

    @property
    def repository(self) -> str:
        return f"{self.owner}/{self.name}"

    @property
    def title(self) -> str:
        """By what a detector from there is called."""
        return self.folder.rpartition("/")[2] or self.name

    def within(self, file: str) -> str:
        """The file of that name in the folder, as the repository names it."""
        return f"{self.folder}/{file}" if self.folder else file

    def __str__(self) -> str:
        at = "" if self.revision is None else f"@{quote(self.revision, safe='')}"
        return f"{REMOTE}://{self.repository}{at}" + (f"/{self.folder}" if self.folder else "")
