"""A folder that is there with all of its files, or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from discopatch.deploy.sidecar import FILES, NAME, ExportError
from discopatch.files import sync_folder

KNOWN = {NAME, *(name for names in FILES.values() for name in names)}


@contextmanager
def whole_folder(folder: Path, *, force: bool = False) -> Iterator[Path]:
    """A new folder beside its place; it goes there at the end, unless something fails, and then nothing has changed."""
    check_place(folder, force=force)
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    beside.mkdir()
    try:
        yield beside
        make_lasting(beside)
        put(beside, folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def check_place(folder: Path, *, force: bool) -> None:
    """Whether an export may go there; with `force` in the place of another one, but of nothing else."""
    if not folder.exists():
        return
    if not force:
        raise ExportError(f"{folder} exists: choose another folder, or force its replacement")
    if not is_export(folder):
        raise ExportError(f"{folder} holds other things than an export, and is not replaced: choose another folder")


def is_export(folder: Path) -> bool:
    """Whether nothing but an export would be lost with the folder."""
    return folder.is_dir() and {path.name for path in folder.iterdir()} <= KNOWN


def put(beside: Path, folder: Path) -> None:
    """Moves the new folder to its place; the old one comes back if that fails."""
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    there = folder.exists()
    if there:
        folder.rename(old)
    try:
        beside.rename(folder)
    except BaseException:
        if there:
            old.rename(folder)
        raise
    sync_folder(folder.parent)
    if there:
        shutil.rmtree(old)


def make_lasting(folder: Path) -> None:
    """Through a power cut."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)
