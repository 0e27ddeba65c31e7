"""Where a detector lies that was named by a path or an address: its file, or the folder of its export."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from discopatch.errors import HubError
from discopatch.export.metadata import GRAPH_FILES, METADATA_FILE
from discopatch.hub.address import HubAddress, is_address, local_folder

DETECTOR_FILE = "detector.safetensors"
CARD_FILE = "README.md"
# What makes a detector or an export, the first that is there. Files of torch.export are left out: torch may run them.
LAYOUTS = ([DETECTOR_FILE], *([METADATA_FILE, *GRAPH_FILES[format]] for format in ("onnx", "openvino")))
NOTHING = f"holds no detector ({DETECTOR_FILE}) and no export ({METADATA_FILE} with a graph)"


@dataclass(frozen=True)
class Located:
    """A detector on this machine."""

    path: Path  # its file, or the folder of an export
    name: str  # by what it is called where it is not named
    address: str | None = None  # of the hub, with the commit that was taken


def locate(place: Path | str) -> Located:
    """Where the detector of a path or an address is; one on the hub is downloaded unless it is there already.

    A path is taken as it is, but for a folder of the hub's layout, whose detector is taken. HubError where an address
    leads to none.
    """
    folder = local_folder(place)
    if folder is not None:
        return Located(find_detector(folder), folder.resolve().name)
    if is_address(place):
        from discopatch.hub.download import download

        return download(HubAddress.parse(str(place)))
    path = Path(place)
    if (path / DETECTOR_FILE).is_file() and not (path / METADATA_FILE).is_file():
        return Located(find_detector(path), path.resolve().name)
    return Located(path, path.resolve().name)


def find_detector(folder: Path) -> Path:
    """The detector's file or the export's folder, of whose files none is a link that leads out of the folder."""
    if not folder.is_dir():
        raise HubError(f"there is no folder {folder}: check the path, or save a detector there first")
    names = wanted_files([each.name for each in folder.iterdir()])
    if not names:
        raise HubError(f"{folder} {NOTHING}: give the folder that `Detector.save` wrote")
    for name in names:
        check_inside(folder / name, folder)
    return folder / DETECTOR_FILE if names == [DETECTOR_FILE] else folder


def wanted_files(names: Collection[str]) -> list[str]:
    """Those of the files in a folder that make a detector, or else an export; empty where there is neither."""
    return next((files for files in LAYOUTS if set(files) <= set(names)), [])


def check_inside(path: Path, folder: Path) -> None:
    """HubError where the file is a link that leads out of the folder."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise HubError(f"{path} is a link that leads out of its folder: put the file itself there")
