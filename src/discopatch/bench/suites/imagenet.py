"""ImageNet-1K with the sets of OpenOOD v1.5 and ImageNet-C, as they lie in OpenOOD's data folder.

Layout and list names are those of OpenOOD's configs/datasets/imagenet and scripts/download; the numbers of images are
the lines of its lists and, for whole folders, those of the sets' own publishers. https://arxiv.org/abs/2306.09301
"""

from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal

from discopatch.bench.dataset import Files, ImageFile, image_names, shuffled
from discopatch.bench.suites.base import CorruptionLevel, OtherSet, Suite, class_folders, missing_names, remedy
from discopatch.corruptions import CORRUPTIONS, EXTRA, FAMILIES, SEVERITIES
from discopatch.errors import NoImagesError, ParameterError

LISTS = "benchmark_imglist/imagenet"
IMAGES = "images_largescale"  # all but the textures, which OpenOOD shares with its small benchmarks
LAYOUT = "benchmark_imglist/imagenet/*.txt, images_largescale/SET and images_classic/texture"
FETCH = (
    "https://github.com/Jingkang50/OpenOOD: "
    "scripts/download/download.py --contents datasets --dataset_mode dataset --save_dir ROOT --datasets SET"
)
IMAGENET = "https://image-net.org/challenges/LSVRC/2012 after registration"
CANDIDATES = 20_000


@dataclass(frozen=True)
class PublishedSet:
    """A set, the list that names its images, and the folder in which OpenOOD puts it."""

    name: str
    role: Literal["fit", "test", "near", "far"]
    image_list: str
    folder: str
    listed: int  # images that the list names
    whole: int  # images in the whole folder
    alternatives: tuple[str, ...] = ()  # folders that are taken instead where they exist

    @property
    def source(self) -> str:
        """Where to get it."""
        if self.role == "fit":
            return f"{IMAGENET}, ILSVRC2012_img_train.tar: a folder for each class"
        return f"OpenOOD's download.py: {self.folder.split('/')[1]}" + f"; or {IMAGENET}" * (self.role == "test")


# The 5,000 validation images and 1,763 of OpenImage-O that lists leave out are there for choosing parameters. The own
# archive of NINCO also holds images that are no part of the set.
NINCO = (f"{IMAGES}/ninco/NINCO/NINCO_OOD_classes", f"{IMAGES}/ninco/NINCO_OOD_classes")
TEXTURES = (f"{IMAGES}/texture",)
SETS = (
    PublishedSet("train", "fit", "train_imagenet.txt", f"{IMAGES}/imagenet_1k/train", 1_281_167, 1_281_167),
    PublishedSet("validation", "test", "test_imagenet.txt", f"{IMAGES}/imagenet_1k/val", 45_000, 50_000),
    PublishedSet("ssb_hard", "near", "test_ssb_hard.txt", f"{IMAGES}/ssb_hard", 49_000, 49_000),
    PublishedSet("ninco", "near", "test_ninco.txt", f"{IMAGES}/ninco", 5_879, 5_879, NINCO),
    PublishedSet("inaturalist", "far", "test_inaturalist.txt", f"{IMAGES}/inaturalist", 10_000, 10_000),
    PublishedSet("textures", "far", "test_textures.txt", "images_classic/texture", 5_160, 5_640, TEXTURES),
    PublishedSet("openimage_o", "far", "test_openimage_o.txt", f"{IMAGES}/openimage_o", 15_869, 17_632),
)

CORRUPTED = f"{IMAGES}/imagenet_c"
CORRUPTED_LEVEL = 50_000  # images of a corruption at one severity; OpenOOD's own download is 10,000 of all together
CORRUPTED_SOURCE = "https://zenodo.org/records/2235448"
ARCHIVES = {  # of ImageNet-C, each of which holds the folders of its corruptions
    name: "extra" if name in EXTRA else family for family, names in FAMILIES.items() for name in names
}


def imagenet_suite(root: Path, *, seed: int, candidates: int = CANDIDATES, per_level: int | None = None) -> Suite:
    """`candidates` training images to fit on, drawn by the seed; all test images; five other sets; ImageNet-C.

    `root` is OpenOOD's data folder. Where one of its image lists exists, it says which images belong to a set; where
    it does not, all images of the folder do. Of each corruption and severity of ImageNet-C at most `per_level` images
    are taken, the same ones of those that are complete; None means all.
    """
    located = _locate_all(root)
    files = {each.published.name: each.files(seed, candidates) for each in located}
    others = [OtherSet(each.name, each.role, files[each.name]) for each in SETS if each.role in ("near", "far")]
    corrupted = {  # a level may have 50,000 files, which are listed only where it is used
        level: cache(partial(list_level, root / IMAGES, folder, seed=seed, count=per_level))
        for level, folder in corrupted_folders(root).items()
        if any(image_names(folder))
    }
    classes = class_folders([file.name for file in files["train"]])
    return Suite("imagenet", files["train"], files["validation"], tuple(others), corrupted, fit_classes=classes)


@dataclass(frozen=True)
class LocatedSet:
    """A published set in its folder; image names are those of the lists, relative to `base`."""

    published: PublishedSet
    base: Path
    folder: Path
    image_list: Path | None

    @property
    def expected(self) -> int:
        """The published number of images."""
        return self.published.listed if self.image_list else self.published.whole

    def names(self) -> list[str]:
        if self.image_list:
            return sorted(read_list(self.image_list))
        parent = self.folder.relative_to(self.base).as_posix()
        return sorted(f"{parent}/{name}" for name in image_names(self.folder))

    def files(self, seed: int, candidates: int) -> Files:
        """All of its files, or `candidates` of those to fit on; listed files that do not exist are an error."""
        names, name = self.names(), self.published.name
        if not names:
            raise NoImagesError(f"{name}: no images in {self.image_list or self.folder}; {remedy(self.base.parent)}")
        if self.published.role == "fit":
            names = shuffled(names, seed=seed, count=candidates)
        if self.image_list and (missing := missing_names(self.base, names)):
            raise NoImagesError(
                f"{name}: {len(missing):,} of {len(names):,} images that {self.image_list} names are missing, the "
                f"first {missing[0]}. Complete {self.folder}, or remove the list to use all images of the folder; "
                f"{remedy(self.base.parent)}"
            )
        return tuple(ImageFile(name, self.base / name) for name in names)


def list_level(base: Path, folder: Path, *, seed: int, count: int | None) -> Files:
    """The files of one corruption at one severity, named relative to `base`."""
    names = shuffled(sorted(image_names(folder)), seed=seed, count=count)
    parent = folder.relative_to(base).as_posix()
    return tuple(ImageFile(f"{parent}/{name}", folder / name) for name in sorted(names))


def _locate_all(root: Path) -> list[LocatedSet]:
    found = {published: locate_set(root, published) for published in SETS}
    missing = [f"{each.name} ({each.folder})" for each, located in found.items() if located is None]
    if missing:
        raise NoImagesError(
            f"no {', '.join(missing)} in {root}: give OpenOOD's data folder, with {LAYOUT}; {remedy(root)}"
        )
    return [located for located in found.values() if located is not None]


def locate_set(root: Path, published: PublishedSet) -> LocatedSet | None:
    """The set in the first of its folders that exists."""
    image_list = root / LISTS / published.image_list
    for folder in (*published.alternatives, published.folder):
        if (root / folder).is_dir():
            base = root / folder.partition("/")[0]
            return LocatedSet(published, base, root / folder, image_list if image_list.is_file() else None)
    return None


def corrupted_folders(root: Path) -> dict[CorruptionLevel, Path]:
    """The folder of each level that exists: CORRUPTION/SEVERITY or ARCHIVE/CORRUPTION/SEVERITY in imagenet_c."""
    found: dict[CorruptionLevel, Path] = {}
    for name in CORRUPTIONS:
        for severity in SEVERITIES:
            for parent in (root / CORRUPTED / name, root / CORRUPTED / ARCHIVES[name] / name):
                if (parent / str(severity)).is_dir():
                    found.setdefault((name, severity), parent / str(severity))
    return found


def read_list(path: Path) -> list[str]:
    """The images that one of OpenOOD's lists names; its lines are 'path label'."""
    names = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        name, _, label = line.strip().rpartition(" ")
        if not name or not label.removeprefix("-").isdecimal() or name.startswith("/") or ".." in name.split("/"):
            raise ParameterError(f"line {number} of {path} is {line!r}, not 'path label': copy the list again")
        names.append(name)
    return names
