"""From the hub to its cache on this machine: known files alone, of known sizes, of one commit."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import discopatch
from discopatch.errors import FULL, HubError
from discopatch.export.metadata import MAX_GRAPH_BYTES, MAX_METADATA_BYTES, METADATA_FILE
from discopatch.hub.address import HubAddress
from discopatch.hub.layout import DETECTOR_FILE, LAYOUTS, NOTHING, Located, check_inside, wanted_files
from discopatch.utils import require

COMMIT = re.compile(r"[0-9a-f]{40}")
MAIN = "main"
SECONDS = 20  # for the list of files
MAX_DETECTOR_BYTES = 2**28  # as `discopatch.model.weights` has it, which needs torch
LOG_IN = "check the name; of a private or gated one, log in with `hf auth login` or set HF_TOKEN"
BUSY = 429
BROKEN = 500  # and above: the hub's own trouble


class Unreachable(Exception):  # noqa: N818 - it is no error where the cache has the files
    """The hub does not answer, or must not be asked."""


def download(address: HubAddress) -> Located:
    """The detector of a repository, of one commit, from the hub's cache where it is there.

    Where the hub cannot be reached, as with HF_HUB_OFFLINE=1, what an earlier download left in the cache is taken.
    """
    require("huggingface_hub", "hub")
    try:
        commit, sizes = list_files(address)
    except Unreachable as reason:
        return from_cache(address, str(reason))
    names = wanted_files(files_within(address.folder, sizes))
    if not names:
        raise HubError(f"{address} {NOTHING}: nothing was downloaded; {elsewhere(sizes)}")
    for name in names:
        check_size(address, name, sizes[address.within(name)])
    try:
        paths = {name: fetch(address, name) for name in names}
    except Unreachable as reason:
        return from_cache(address, str(reason))
    for name, path in paths.items():
        if commit_of(path) != commit:
            raise HubError(f"{address} has changed while it was downloaded: try again")
        if path.stat().st_size != sizes[address.within(name)]:
            raise HubError(f"{path} is not of the size that the hub told: remove it, and try again")
    return located(address, paths)


def list_files(address: HubAddress) -> tuple[str, dict[str, int | None]]:
    """The commit that the revision is now, and the size of each file in it."""
    from huggingface_hub import HfApi

    with hub_errors(address):
        api = HfApi(library_name="discopatch", library_version=discopatch.__version__)
        found: Any = api.model_info(address.repository, revision=address.revision, timeout=SECONDS, files_metadata=True)
    if not COMMIT.fullmatch(str(found.sha)):
        raise HubError(f"{address}: the hub names no commit: try again later")
    return found.sha, {each.rfilename: each.size for each in found.siblings or ()}


def files_within(folder: str, sizes: Mapping[str, object]) -> list[str]:
    """The names of files that lie in the folder itself."""
    return [name.rpartition("/")[2] for name in sizes if name.rpartition("/")[0] == folder]


def elsewhere(sizes: Mapping[str, object]) -> str:
    """The remedy where a folder has no detector: the folders that have one."""
    folders = {name.rpartition("/")[0] for name in sizes}
    there = [folder for folder in sorted(folders) if wanted_files(files_within(folder, sizes))]
    return f"name one of its folders: {', '.join(there[:5])}" if there else "give a repository that `save` wrote"


def check_size(address: HubAddress, name: str, size: int | None) -> None:
    """HubError where a file is larger than any that is read, or of unknown size."""
    limits = {DETECTOR_FILE: MAX_DETECTOR_BYTES, METADATA_FILE: MAX_METADATA_BYTES}
    limit = limits.get(name, MAX_GRAPH_BYTES)
    if size is None or size > limit:
        told = "of unknown size" if size is None else f"of {size:,} bytes"
        raise HubError(
            f"{address}: {name} is {told}, and {limit:,} bytes are read at most: nothing was downloaded; "
            "give a repository that `save` wrote"
        )


def fetch(address: HubAddress, name: str, *, cached: bool = False) -> Path:
    """The path of a file in the hub's cache, where it is put unless only what is `cached` already may be taken.

    By the revision as it was given, so that the cache knows later, without the hub, which commit that was.
    """
    from huggingface_hub import hf_hub_download

    with hub_errors(address):
        path = Path(
            hf_hub_download(
                address.repository,
                address.within(name),
                revision=address.revision or MAIN,
                library_name="discopatch",
                library_version=discopatch.__version__,
                local_files_only=cached,
            )
        )
    snapshots = next((parent for parent in path.parents if parent.name == "snapshots"), None)
    if snapshots is None:
        raise HubError(f"{path} lies in no cache of the hub: update huggingface_hub")
    check_inside(path, snapshots.parent)  # links to its files lie beside them, in `blobs`
    return path


def from_cache(address: HubAddress, reason: str) -> Located:
    """The files of an earlier download; HubError with the reason where there was none."""
    for wanted in LAYOUTS:
        with suppress(Unreachable):
            return located(address, {name: fetch(address, name, cached=True) for name in wanted})
    raise HubError(
        f"{address} cannot be downloaded ({reason}), and no earlier download of it is in the cache: connect, and load "
        "it once (without HF_HUB_OFFLINE), or give the path of a copy"
    )


def located(address: HubAddress, paths: Mapping[str, Path]) -> Located:
    """The detector's file or the export's folder, with the commit in the address."""
    first = next(iter(paths.values()))
    pinned = HubAddress(address.owner, address.name, commit_of(first), address.folder)
    return Located(paths.get(DETECTOR_FILE, first.parent), address.title, str(pinned))


def commit_of(path: Path) -> str:
    """Which commit a file in the hub's cache is of: the folder below `snapshots`."""
    parts = path.parts
    return parts[len(parts) - parts[::-1].index("snapshots")]


@contextmanager
def hub_errors(address: HubAddress) -> Iterator[None]:
    """Makes HubError of what the hub refuses, and Unreachable of what it cannot be asked.

    Texts of other libraries' errors are left out: they may hold proxies with passwords.
    """
    from huggingface_hub import errors

    try:
        yield
    except errors.RevisionNotFoundError:
        raise HubError(f"{address}: there is no such revision: give a branch, a tag or a commit") from None
    except errors.RepositoryNotFoundError:
        raise HubError(f"{address} is not there, or not for you: {LOG_IN}") from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status == BUSY or status >= BROKEN:
            raise Unreachable(f"the hub answers {status}") from None
        raise HubError(f"{address}: the hub answers {status}: {LOG_IN}") from None
    except errors.HFValidationError:
        raise HubError(f"{address} is no repository of the hub: check the name") from None
    except Exception as error:  # no connection, offline mode, not in the cache: each version has errors of its own
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        raise Unreachable(f"the hub cannot be reached, {type(error).__name__}") from None
