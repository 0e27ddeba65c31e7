"""Photos against images that are not photos, in tar shards."""

from pathlib import Path

from discopatch.bench.dataset import describe_folder, list_files
from discopatch.bench.preprocessing import Storage
from discopatch.bench.suites.base import Group, OtherSet, Suite, remedy
from discopatch.errors import NoImagesError

LAYOUT = "natural/train-*.tar, natural/test.tar and ood/NAME.tar"
TRAIN = "natural/train-*.tar"
TEST = "natural/test.tar"
STORED = Storage(92)  # how the photos to fit on were brought to the size of the transform
GROUPS: dict[str, Group] = {
    "textures": "near",
    "cartoons": "near",
    "sketches": "far",
    "receipts": "far",
    "chest-xray": "far",
    "brain-mri": "far",
    "steel": "far",
    "photos-227px": "control",
}
# Square sizes that a set was resized to, one after the other, before it was stored as it is.
SIZES: dict[str, tuple[int, ...]] = {
    "sketches": (227,),
    "cartoons": (227,),
    "photos-227px": (227,),
    "steel": (200, 416),
}


def natural_suite(root: Path) -> Suite:
    """Photos of natural/train-*.tar to fit on, those of natural/test.tar to test with, a shard for each other set."""
    wanted = [TEST, *(f"ood/{name}.tar" for name in GROUPS)]
    missing = [path for path in wanted if not (root / path).is_file()]
    if not train_shards(root):
        missing.insert(0, TRAIN)
    if missing:
        folders = "; ".join(describe_folder(folder) for folder in (root, root / "natural", root / "ood"))
        raise NoImagesError(f"no {', '.join(missing)} in {folders}. The layout is {LAYOUT}; {remedy(root)}")
    fit = [file for shard in train_shards(root) for file in list_files(shard)]
    others = [
        OtherSet(name, group, list_files(root / f"ood/{name}.tar"), SIZES.get(name, ()))
        for name, group in GROUPS.items()
    ]
    return Suite("natural", tuple(sorted(fit)), list_files(root / TEST), tuple(others), stored=STORED)


def train_shards(root: Path) -> list[Path]:
    return sorted(root.glob(TRAIN))
