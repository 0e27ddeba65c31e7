"""A fitted detector, or an export, with its card: into a folder of the hub's layout, or to the hub itself."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import discopatch
from discopatch.errors import HubError
from discopatch.export.metadata import METADATA_FILE
from discopatch.hub.address import HubAddress, is_address, local_folder
from discopatch.hub.card import UNKNOWN, write_card
from discopatch.hub.download import Unreachable, hub_errors
from discopatch.hub.layout import CARD_FILE, DETECTOR_FILE, NOTHING, locate, wanted_files
from discopatch.utils import file_digest, require, temporary_folder, write_atomically

if TYPE_CHECKING:
    from discopatch.detector import Detector
    from discopatch.export.runtime import Runtime


def push(
    detector: "Detector | Path | str",
    address: Path | str,
    *,
    licence: str = UNKNOWN,
    title: str | None = None,
    private: bool = True,
    message: str = "Upload a detector",
) -> str:
    """Writes a fitted detector, or what lies at a path, to hf://owner/name or hub:///path, and returns the address.

    That of the hub has the commit in it. A repository that is not there yet is made, for its owner alone unless
    `private` is False. README.md is written anew, with the licence. Of a `Detector` neither the names of refused images
    nor the folders of networks from outside are written.
    """
    folder = local_folder(address)
    if folder is None and not is_address(address):
        raise HubError(f"{address} is no address: give hf://owner/name, or hub:///path for a folder")
    remote = None if folder is not None else HubAddress.parse(str(address))
    named = str(address) if remote is None else str(replace(remote, revision=None))
    if remote is not None:
        require("huggingface_hub", "hub")
    with temporary_folder() as staged:
        described = stage(detector, staged)
        held = staged / DETECTOR_FILE
        sha256 = file_digest(held if held.is_file() else staged / METADATA_FILE)
        shown = named if folder is None else f"hub:///path/to/{folder.resolve().name}"  # a path is the user's own
        card = write_card(described, shown, sha256=sha256, licence=licence, title=title)
        (staged / CARD_FILE).write_text(card, encoding="utf-8")
        if remote is not None:
            return upload(staged, remote, private=private, message=message)
        assert folder is not None
        for path in sorted(staged.iterdir(), key=lambda each: each.name == CARD_FILE):
            write_atomically(folder / path.name, partial(shutil.copyfile, path))
    return named


def stage(detector: "Detector | Path | str", folder: Path) -> "Detector | Runtime":
    """Fills an empty folder with the files of a detector or an export, and returns what they hold."""
    if not isinstance(detector, Path | str):
        save_without_names(detector, folder / DETECTOR_FILE)
        return detector
    found = locate(detector).path
    loaded = discopatch.load(found)  # or whatever lies there would be uploaded
    if found.is_dir():
        names = wanted_files([each.name for each in found.iterdir()])
        if not names:
            raise HubError(f"{found} {NOTHING}: give a file that `save` wrote, or a folder of `export`")
        for name in names:
            shutil.copyfile(found / name, folder / name)
    else:
        shutil.copyfile(found, folder / DETECTOR_FILE)
    return loaded


def save_without_names(detector: "Detector", path: Path) -> None:
    """Writes the detector's file; refused images are counted but not named, and networks have no folders."""
    from discopatch.storage import write_detector

    state, settings = detector.state_, detector.settings()
    refusals = replace(state.refusals, examples={reason: [] for reason in state.refusals.examples})
    if "networks" in settings:
        settings["networks"] = without_folders(settings["networks"])
    write_detector(path, replace(state, refusals=refusals), settings)


def without_folders(networks: dict[str, Any]) -> dict[str, Any]:
    """Digests by names such as dinov2=dinov2-small: `weights` says where they lie when the detector is loaded."""
    from discopatch.encoders.outside import NetworkName

    found = {}
    for text, digest in networks.items():
        name = NetworkName.parse(text)
        found[str(name if name.place is None else replace(name, place=Path(name.place.name)))] = digest
    if len(found) < len(networks):
        raise HubError("two networks of the detector lie in folders of one name: rename one, and fit again")
    return found


def upload(staged: Path, address: HubAddress, *, private: bool, message: str) -> str:
    """Makes the repository unless it is there, adds the files as one commit, and returns the address of that."""
    from huggingface_hub import HfApi

    api = HfApi(library_name="discopatch", library_version=discopatch.__version__)
    try:
        with hub_errors(address):
            api.create_repo(address.repository, private=private, exist_ok=True)
            done = api.upload_folder(
                repo_id=address.repository,
                folder_path=staged,
                path_in_repo=address.folder or None,
                revision=address.revision,
                commit_message=message,
            )
    except Unreachable as reason:
        raise HubError(f"{address} was not uploaded ({reason}): check the connection, and try again") from None
    return str(replace(address, revision=done.oid))
