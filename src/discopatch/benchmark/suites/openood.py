"""What OpenOOD v1.5 publishes for ImageNet-1K: which sets, where they lie below its data folder, how many images.

Layout and list names are those of OpenOOD's configs/datasets/imagenet and scripts/download; the sizes are the lines of
its lists and, for whole folders, those of the sets' own publishers. https://arxiv.org/abs/2306.09301
"""

from dataclasses import dataclass
from typing import Literal

from discopatch.images.corrupt import CORRUPTIONS, EXTRA, FAMILIES

Role = Literal["fit", "test", "near", "far"]

LISTS = "benchmark_imglist/imagenet"
IMAGES = "images_largescale"  # all but the textures, which OpenOOD shares with its small benchmarks
LAYOUT = "benchmark_imglist/imagenet/*.txt, images_largescale/SET and images_classic/texture"
FETCH = (
    "https://github.com/Jingkang50/OpenOOD: "
    "scripts/download/download.py --contents datasets --dataset_mode dataset --save_dir ROOT --datasets SET"
)
IMAGENET = "https://image-net.org/challenges/LSVRC/2012 after registration"


@dataclass(frozen=True)
class Published:
    """A set, the list that names its images, and the folder in which OpenOOD puts it."""

    name: str
    role: Role
    image_list: str
    folder: str
    listed: int  # images that the list names
    whole: int  # images in the whole folder
    where: str
    rather: tuple[str, ...] = ()  # folders that are taken instead where they are there


SETS = (
    Published(
        "train",
        "fit",
        "train_imagenet.txt",
        f"{IMAGES}/imagenet_1k/train",
        1_281_167,
        1_281_167,
        f"{IMAGENET}, ILSVRC2012_img_train.tar: a folder for each class",
    ),
    Published(
        "validation",
        "test",
        "test_imagenet.txt",  # the other 5,000 are in val_imagenet.txt, for choosing parameters
        f"{IMAGES}/imagenet_1k/val",
        45_000,
        50_000,
        f"OpenOOD's download.py: imagenet_1k; or {IMAGENET}",
    ),
    Published(
        "ssb_hard",
        "near",
        "test_ssb_hard.txt",
        f"{IMAGES}/ssb_hard",
        49_000,
        49_000,
        "OpenOOD's download.py: ssb_hard",
    ),
    Published(
        "ninco",
        "near",
        "test_ninco.txt",
        f"{IMAGES}/ninco",
        5_879,
        5_879,
        "OpenOOD's download.py: ninco",
        # The publisher's own archive also holds images that are no part of the set.
        rather=(f"{IMAGES}/ninco/NINCO/NINCO_OOD_classes", f"{IMAGES}/ninco/NINCO_OOD_classes"),
    ),
    Published(
        "inaturalist",
        "far",
        "test_inaturalist.txt",
        f"{IMAGES}/inaturalist",
        10_000,
        10_000,
        "OpenOOD's download.py: inaturalist",
    ),
    Published(
        "textures",
        "far",
        "test_textures.txt",
        "images_classic/texture",
        5_160,
        5_640,
        "OpenOOD's download.py: texture",
        rather=(f"{IMAGES}/texture",),
    ),
    Published(
        "openimage_o",
        "far",
        "test_openimage_o.txt",
        f"{IMAGES}/openimage_o",
        15_869,
        17_632,  # with the 1,763 of val_openimage_o.txt
        "OpenOOD's download.py: openimage_o",
    ),
)

CORRUPTED = f"{IMAGES}/imagenet_c"
CORRUPTED_CELL = (
    50_000  # images of one corruption at one severity; OpenOOD's own download is 10,000 of all cells together
)
CORRUPTED_WHERE = "https://zenodo.org/records/2235448"
ARCHIVES = {  # of ImageNet-C, each of which holds the folders of its corruptions; they are called as ours are
    name: "extra" if name in EXTRA else family
    for family, names in FAMILIES.items()
    for name in names
    if name in CORRUPTIONS
}
