"""The images of the measurements: solar cells and photos, with what is not a photo."""

import hashlib
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from discopatch.images import ImageRefused, Limits, Picture, Pixels, Transform
from discopatch.images.decode import decode
from discopatch.images.item import IMAGE_SUFFIXES
from discopatch.images.open import DEFAULT_WORKERS

T = TypeVar("T")

OOD_SETS = ("textures", "sketches", "cartoons", "chest-xray", "brain-mri", "steel", "receipts")
PHOTOS_AT_227 = "photos-227px"  # photos that went the way of the sketches: a control, nothing strange in them


class Encoded(NamedTuple):
    """An image file."""

    name: str
    data: bytes


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Pictures that have gone through the transform."""

    names: tuple[str, ...]
    pixels: Pixels  # (N, size, size, 3)

    def __len__(self) -> int:
        return len(self.names)

    def of(self, which: slice | NDArray[np.intp]) -> "ImageSet":
        """Some of them."""
        return ImageSet(tuple(np.array(self.names)[which].tolist()), self.pixels[which])

    @property
    def pictures(self) -> list[Picture]:
        """One by one."""
        return [Picture(name, pixels) for name, pixels in zip(self.names, self.pixels, strict=True)]

    @cached_property
    def digest(self) -> str:
        """16 hex digits that stand for all names and pixels."""
        total = hashlib.sha256()
        for name, pixels in zip(self.names, self.pixels, strict=True):
            total.update(name.encode() + b"\0")
            total.update(np.ascontiguousarray(pixels).tobytes())
        return total.hexdigest()[:16]


def read(files: Sequence[Encoded | Path], transform: Transform, *, workers: int = DEFAULT_WORKERS) -> ImageSet:
    """Decoded and transformed; in a measurement a bad file is an error, not a gap."""

    def one(file: Encoded | Path) -> Pixels:
        name, data = (file.name, file.read_bytes()) if isinstance(file, Path) else file
        try:
            return transform(decode(data, Limits()))
        except ImageRefused as refused:
            raise ValueError(f"{name} cannot be read ({refused.detail}): copy it again") from refused

    with ThreadPoolExecutor(workers) as pool:
        return ImageSet(tuple(file.name for file in files), np.stack(list(pool.map(one, files))))


def solar_folder(given: Path | None = None) -> Path:
    """Where the solar cells lie: the folder given, or that of the installed package, which is not imported."""
    if given is None:
        package = find_spec("elpv_dataset")
        given = Path(package.origin).parent / "data" if package and package.origin else None
    if given is None or not (given / "labels.csv").is_file():
        place = "not installed" if given is None else f"no labels.csv in {given}"
        raise FileNotFoundError(
            f"solar cells: {place}; pip install 'discopatch[solar]', or --solar FOLDER with labels.csv and images/"
        )
    return given


def normal_cells(folder: Path) -> list[Path]:
    """The cells of which the experts were sure that they have no defect, by name."""
    rows = [line.split() for line in (folder / "labels.csv").read_text().splitlines() if line.strip()]
    return sorted(folder / image for image, probability, _ in rows if float(probability) == 0)


def in_random_order(files: Sequence[T], *, seed: int, count: int | None = None) -> list[T]:
    """The order from which all parts are cut; the first so many, or all."""
    return [files[place] for place in np.random.default_rng(seed).permutation(len(files))[:count]]


def shard_files(*shards: Path) -> list[Encoded]:
    """All images of these tar shards, by name."""
    found = []
    for shard in shards:
        with tarfile.open(shard) as archive:
            for member in archive:
                stream = archive.extractfile(member) if Path(member.name).suffix.lower() in IMAGE_SUFFIXES else None
                if stream is not None:
                    found.append(Encoded(member.name, stream.read()))
    if not found:
        raise FileNotFoundError(f"no images in {', '.join(map(str, shards)) or 'no shards at all'}: check the folder")
    return sorted(found)


def natural_train(folder: Path) -> list[Encoded]:
    """The photos to fit on."""
    shards = sorted(folder.glob("train-*.tar"))
    if not shards:
        raise FileNotFoundError(f"no train-*.tar in {folder}: give --natural FOLDER with train-*.tar and test.tar")
    return shard_files(*shards)
