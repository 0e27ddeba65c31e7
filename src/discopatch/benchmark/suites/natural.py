"""Photos against what is no photo, in tar shards."""

from pathlib import Path

from discopatch.benchmark.storage import Storage
from discopatch.benchmark.suites.places import images_at, inside, remedy
from discopatch.benchmark.suites.suite import Group, OtherSet, Suite

LAYOUT = "natural/train-*.tar, natural/test.tar and ood/NAME.tar"
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
# Square sizes that a set was brought to, one after the other, before it was stored as it is.
SIZES: dict[str, tuple[int, ...]] = {
    "sketches": (227,),
    "cartoons": (227,),
    "photos-227px": (227,),
    "steel": (200, 416),
}


def natural_suite(root: Path) -> Suite:
    """Photos of natural/train-*.tar to fit on, those of natural/test.tar to test with, a shard for each other set."""
    check_shards(root)
    fit = [file for shard in train_shards(root) for file in images_at(shard)]
    others = [OtherSet(name, GROUPS[name], images_at(ood_shard(root, name)), SIZES.get(name, ())) for name in GROUPS]
    return Suite("natural", tuple(sorted(fit)), images_at(held_out_shard(root)), tuple(others), stored=STORED)


def train_shards(root: Path) -> list[Path]:
    """By name."""
    return sorted((root / "natural").glob("train-*.tar"))


def held_out_shard(root: Path) -> Path:
    """The photos to test with."""
    return root / "natural" / "test.tar"


def ood_shard(root: Path, name: str) -> Path:
    """One of the other sets."""
    return root / "ood" / f"{name}.tar"


def check_shards(root: Path) -> None:
    """All are there; those that are not are named together."""
    wanted = [held_out_shard(root), *(ood_shard(root, name) for name in GROUPS)]
    missing = [path.relative_to(root).as_posix() for path in wanted if not path.is_file()]
    if not train_shards(root):
        missing.insert(0, "natural/train-*.tar")
    if missing:
        places = f"{root}, {inside(root)}; its natural/, {inside(root / 'natural')}; its ood/, {inside(root / 'ood')}"
        raise FileNotFoundError(f"no {', '.join(missing)} in {places}. The layout is {LAYOUT}; {remedy(root)}")
