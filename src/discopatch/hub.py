"""Detectors on the Hugging Face hub, as hf://owner/name, hf://owner/name@revision or hf://owner/name/folder.

A folder of a repository holds detector.safetensors, as `Detector.save` writes it, or the files of an export. README.md
is the model card. No other file is downloaded.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from discopatch.errors import ParameterError, StoreError
from discopatch.export.metadata import EXPORT_FILES, METADATA_FILE
from discopatch.images import DEFAULT_LIMITS, Decoder
from discopatch.images.stores import without_options
from discopatch.results import FittedDetector
from discopatch.utils import file_digest, require, resolved, temporary_folder
from discopatch.version import __version__

if TYPE_CHECKING:
    from discopatch.detector import Detector

DETECTOR_FILE, CARD_FILE = "detector.safetensors", "README.md"
PART = r"\w(?:[\w.-]*\w)?"  # of a name
ADDRESS = re.compile(  # `Path` leaves one slash of two
    rf"hf:/{{1,2}}(?P<repository>{PART}/{PART})(?:@(?P<revision>{PART}))?(?:/(?P<folder>{PART}(?:/{PART})*))?/?", re.A
)
TAGS = ["discopatch", "out-of-distribution-detection", "anomaly-detection", "conformal-prediction", "image"]


class Located(NamedTuple):
    """A detector on this machine."""

    path: Path  # its file, or the folder of an export
    name: str  # of the file or folder, or of the repository
    address: str | None = None  # on the hub, with the commit


def locate(place: Path | str) -> Located:
    """The file or folder of the detector at a path or an address of the hub, which is downloaded if necessary.

    Without a connection, or with HF_HUB_OFFLINE=1, an earlier download is used.
    """
    if not str(place).startswith("hf:/"):
        path = Path(place)
        if re.match(r"\w{2,}:/", str(place)) and not path.exists():
            address = without_options(str(place))
            raise ParameterError(f"{address}: a detector is a file, a folder or hf://owner/name: download it first")
        found = path / DETECTOR_FILE if (path / DETECTOR_FILE).is_file() else path
        return Located(found, resolved(path).name)
    repository, revision, folder = parse(place)
    require("huggingface_hub", "hub")
    from huggingface_hub import snapshot_download

    patterns = [f"{folder}{name}" for name in sorted({DETECTOR_FILE, f"{DETECTOR_FILE}.minisig", *EXPORT_FILES})]
    with hub_errors(place):
        snapshot = Path(snapshot_download(repository, revision=revision, allow_patterns=patterns))
    found = snapshot / folder
    if (found / DETECTOR_FILE).is_file():
        found = found / DETECTOR_FILE
    elif not (found / METADATA_FILE).is_file():
        raise StoreError(f"{place} has neither {DETECTOR_FILE} nor {METADATA_FILE}: check the name and the folder")
    name = (folder.rstrip("/") or repository).rpartition("/")[2]
    return Located(found, name, f"hf://{repository}@{snapshot.name}/{folder}".rstrip("/"))


def load(
    path: Path | str,
    *,
    networks: str | Sequence[str] = (),
    device: str = "auto",
    batch_size: int | None = None,
    decoder: Decoder | None = None,
    max_pixels: int = DEFAULT_LIMITS.max_pixels,
    max_bytes: int = DEFAULT_LIMITS.max_bytes,
) -> FittedDetector:
    """The detector in a file that `Detector.save` wrote, or in the folder of an export, which needs no torch.

    The path may also be an address of the Hugging Face hub, hf://owner/name.

    Parameters
    ----------
    networks
        Places of networks from outside, such as dinov2=FOLDER, if they have moved since the fit.
    device, batch_size, decoder
        As in `Detector`; exports run on a CPU with the decoder of their detector.
    max_pixels, max_bytes
        Limits of the images.
    """
    limits = {"max_pixels": max_pixels, "max_bytes": max_bytes}
    path = locate(path).path
    if not path.is_dir():
        from discopatch.detector import Detector

        return Detector.load(path, networks=networks, device=device, batch_size=batch_size, decoder=decoder, **limits)
    if networks:
        raise ParameterError(f"{path} is an export, which holds its networks: leave networks out")
    if device not in ("auto", "cpu"):
        raise ParameterError(f"{path} is an export, which runs on a CPU: leave the device out")
    from discopatch.export.runtime import Runtime

    runtime = Runtime.load(path, **limits)
    if decoder not in (None, runtime.transform_.decoder):
        raise ParameterError(
            f"{path} is an export with decoder={runtime.transform_.decoder!r}: leave the decoder out, or load the "
            f"detector with decoder={decoder!r} and export it again"
        )
    return runtime


def parse(address: Path | str) -> tuple[str, str | None, str]:
    """The repository, the revision and the folder, which ends with a slash, of an address."""
    found = ADDRESS.fullmatch(str(address))
    if found is None or ".." in str(address):
        raise ParameterError(
            f"{str(address)!r} is not an address: give hf://owner/name, hf://owner/name@revision or "
            "hf://owner/name/folder"
        )
    return found["repository"], found["revision"], f"{found['folder']}/" if found["folder"] else ""


def push(
    detector: "Detector | Path | str",
    address: str,
    *,
    licence: str = "unknown",
    title: str | None = None,
    private: bool = True,
    message: str = "Upload a detector",
) -> str:
    """Uploads a detector with a model card, and returns its address with the commit.

    A new repository is private unless `private` is False. Neither names of refused images nor the folders of networks
    from outside are uploaded.

    Parameters
    ----------
    detector
        A fitted `Detector`, the path of its file, or the folder of an export.
    address
        hf://owner/name or hf://owner/name/folder, with @revision for a branch.
    licence, title
        Of the model card.
    """
    repository, revision, folder = parse(address)
    require("huggingface_hub", "hub")
    from huggingface_hub import HfApi

    api = HfApi(library_name="discopatch", library_version=__version__)
    with temporary_folder() as staged:
        described = stage(detector, staged)
        title = title or (folder.rstrip("/") or repository).rpartition("/")[2]
        write_card(described, staged, title=title, licence=licence, address=f"hf://{repository}/{folder}".rstrip("/"))
        with hub_errors(address):
            api.create_repo(repository, private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repository,
                folder_path=staged,
                path_in_repo=folder or None,
                revision=revision,
                commit_message=message,
            )
    return f"hf://{repository}@{commit.oid}/{folder}".rstrip("/")


def stage(detector: "Detector | Path | str", folder: Path) -> FittedDetector:
    """Puts the files of the detector into an empty folder, and returns the detector."""
    from discopatch.detector import Detector
    from discopatch.encoders import parse_name
    from discopatch.storage import write_detector

    if isinstance(detector, Path | str):
        path = locate(detector).path
        if path.is_dir():
            runtime = load(path)
            for name in EXPORT_FILES & {each.name for each in path.iterdir()}:
                shutil.copyfile(path / name, folder / name)
            return runtime
        detector = Detector.load(path, device="cpu")

    state = detector.state_
    refusals = replace(state.fitted.refusals, examples={reason: [] for reason in state.fitted.refusals.examples})
    outside = tuple(map(copy, state.networks.outside))
    for network in outside:  # dinov2=small instead of dinov2=/home/me/small
        kind, place = parse_name(network.name)
        network.name = f"{kind}={place.name}"
    networks = state.networks._replace(outside=outside)
    state = replace(state, networks=networks, fitted=replace(state.fitted, refusals=refusals))
    write_detector(folder / DETECTOR_FILE, state, __version__)
    return detector


def write_card(detector: FittedDetector, folder: Path, *, title: str, licence: str, address: str) -> None:
    from huggingface_hub import ModelCard, ModelCardData

    settings, held = detector.settings(), folder / DETECTOR_FILE
    shown = ("head", "weights", "weights_digest", "patches", "transform_digest", "groups", "n_groups", "graph", "int8")
    card = ModelCard.from_template(
        ModelCardData(license=licence, library_name="discopatch", tags=TAGS),
        template_str=files(__package__).joinpath("card.md.j2").read_text(encoding="utf-8"),
        title=title,
        version=__version__,
        address=address,
        guarantee=detector.guarantee_,
        threshold=f"{detector.threshold_:.6g}",
        detection_rates=detector.detection_rates_,
        settings={name: settings[name] for name in shown if settings.get(name) is not None},
        sha256=file_digest(held if held.is_file() else folder / METADATA_FILE),
        extra={"onnx": ",runtime", "openvino": ",openvino"}.get(settings.get("graph", ""), ""),
    )
    card.save(folder / CARD_FILE)


@contextmanager
def hub_errors(address: Path | str) -> Iterator[None]:
    """Makes StoreError of the errors of the hub's client, without their texts, which may hold passwords of proxies."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{address} cannot be reached ({type(error).__name__}): check the name and the connection; for a private "
            "repository run `hf auth login` or set HF_TOKEN"
        ) from None
