"""The images of every peer, and the weights of ResNet-50 as torchvision and timm name them.

python studies/peers/prepare.py --data ROOT --out SUITES      # a minute, after `discopatch data fetch resnet50`

ROOT/tiles, ROOT/kolektor and ROOT/castings are checkouts of abin24/Magnetic-tile-defect-datasets,
stoy95536/KolektorSDD_Yolov8_Datasets and nathanlfischer/casting-defect, ROOT/natural/test.tar and
ROOT/ood/chest-xray.tar shards of the benchmark; solar cells come from elpv-dataset. A set that is not there is left
out. Written are

SUITES/NAME/fit/*.png          normal images to fit on
SUITES/NAME/held_out/*.png     normal images to choose a threshold by: the same for every peer
SUITES/NAME/normal/*.png       normal images to test
SUITES/NAME/defects/*.png      defects to test, with masks/*.png of the same names where there are any; or
SUITES/NAME/corrupted/KIND-SEVERITY/*.png   normal images of the same names, corrupted
SUITES/NAME/suite.json         seed, sources, and a digest of each file
SUITES/resnet50.safetensors    the weights, and reference features, which `peer.load_resnet50` checks

Of exact copies the first is kept. No image is in two parts.
"""

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from safetensors.torch import save_file

from discopatch.bench.networks.fetch import backbone_path, load_backbone
from discopatch.bench.suites import labelled_cells, solar_folder
from discopatch.corruptions import CORRUPTIONS, corrupt
from discopatch.images import NamedImage, Pixels, Transform, list_source, read_images
from discopatch.utils import file_digest

SEED = 0
SEVERITIES = 1, 3
FITTED, HELD_OUT, TESTED = 81, 39, 100  # 39 is what our detector holds out of 120 for a rate of 5 %
CORRUPTED = {"photos": (81, 39, 60, 10), "x-rays": (41, 19, 40, 10)}  # to fit, held out, to test, and to corrupt


def draw(source: object, count: int, seen: set[bytes], **options: Any) -> list[NamedImage]:
    """Random images that are not exact copies of one before; fewer where there are no more."""
    items, found = [*list_source(source).items()], list[NamedImage]()
    order = np.random.default_rng(SEED).permutation(len(items))
    for image in read_images([items[number] for number in order], **options):
        assert isinstance(image, NamedImage), image
        if (digest := sha256(image.pixels.tobytes()).digest()) not in seen:
            seen.add(digest)
            found.append(image)
        if len(found) == count:
            break
    return found


def listed(root: Path, name: str) -> tuple[list[Path], list[Path]]:
    """The files of normal images and of defects, sorted."""
    if name == "solar":
        cells = labelled_cells(solar_folder())
        return [each.path for each in cells[0.0]], [each.path for each in cells[1.0]]
    if name == "castings":
        return sorted(root.glob("data/*/ok_front/*")), sorted(root.glob("data/*/def_front/*"))
    if name == "tiles":
        free = sorted(root.glob("MT_Free/Imgs/*.jpg"))
        return free, sorted({*root.glob("MT_*/Imgs/*.jpg")} - {*free})
    files = sorted(root.glob("Datasets/images/*/*.jpg"))
    defect = [label_of(file).stat().st_size > 0 for file in files]
    normal, wrong = ([file for file, yes in zip(files, defect, strict=True) if yes is kind] for kind in (False, True))
    return normal, wrong


def label_of(file: Path) -> Path:
    """The file of KolektorSDD with a polygon for each crack, its corners in shares of the sides."""
    return file.parents[2] / "labels" / file.parent.name / f"{file.stem}.txt"


def write(folder: Path, images: Iterable[tuple[str, Pixels]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, pixels in images:
        Image.fromarray(pixels).save(folder / f"{name}.png", compress_level=1)


def named(images: list[NamedImage]) -> list[tuple[str, Pixels]]:
    return [(f"{number:03}-{Path(each.name).stem}", each.pixels) for number, each in enumerate(images)]


def write_normal(folder: Path, images: list[NamedImage], counts: Iterable[int]) -> None:
    ends = np.cumsum([0, *counts])
    for part, (start, end) in zip(("fit", "held_out", "normal"), pairwise(ends), strict=True):
        write(folder / part, named(images[start:end]))


def defect_suite(folder: Path, normal: Sequence[Path], defects: Sequence[Path]) -> None:
    seen, counts = set[bytes](), (FITTED, HELD_OUT, TESTED)
    write_normal(folder, draw(normal, sum(counts), seen), counts)
    chosen = draw(defects, TESTED, seen)
    write(folder / "defects", named(chosen))
    for (name, pixels), each in zip(named(chosen), chosen, strict=True):
        mask = mask_of(folder.name, Path(each.name), (pixels.shape[1], pixels.shape[0]))
        if mask is not None and mask.getbbox():
            write(folder / "masks", [(name, np.asarray(mask))])


def mask_of(suite: str, file: Path, size: tuple[int, int]) -> Image.Image | None:
    """255 at the pixels of the defect: a file beside the image of a tile, and polygons of KolektorSDD."""
    if suite == "tiles":
        return Image.open(file.with_suffix(".png")).convert("L").point(lambda value: 255 * (value > 127))
    if suite != "kolektor":
        return None
    mask = Image.new("L", size)
    for line in label_of(file).read_text().splitlines():
        corners = np.array(line.split()[1:], float).reshape(-1, 2) * size
        ImageDraw.Draw(mask).polygon([*map(tuple, corners.round())], fill=255)
    return mask


def corrupted_suite(folder: Path, shard: Path) -> None:
    """Squares of 256 pixels, so that corrupted and other images are alike in everything else."""
    *counts, corrupted = CORRUPTED[folder.name]
    images = draw(str(shard), sum(counts), set(), transform=Transform(size=256))
    write_normal(folder, images, counts)
    tested = named(images[sum(counts[:2]) :][:corrupted])
    for kind, severity in product(CORRUPTIONS, SEVERITIES):
        new = [
            (name, corrupt(pixels, kind, severity, seed=SEED + number)) for number, (name, pixels) in enumerate(tested)
        ]
        write(folder / "corrupted" / f"{kind}-{severity}", new)


def convert_resnet50(path: Path) -> None:
    """Writes the weights under the names of torchvision, for networks whose strides are set as in `load_resnet50`.

    Our convolutions have BatchNorm folded in: its bias goes to a BatchNorm that changes nothing else. Input is RGB.
    """
    network: Any = load_backbone("resnet50").network
    own = network.state_dict()
    names = {"stem": ("conv1", "bn1")}
    for stage, depth in enumerate((3, 4, 6, 3)):
        for block in range(depth):
            for number, part in enumerate(("reduce", "middle", "expand"), start=1):
                place = f"layer{stage + 1}.{block}."
                names[f"stages.{stage}.{block}.{part}"] = f"{place}conv{number}", f"{place}bn{number}"
        names[f"stages.{stage}.0.shortcut"] = f"layer{stage + 1}.0.downsample.0", f"layer{stage + 1}.0.downsample.1"
    found = {"fc.weight": own["head.weight"], "fc.bias": own["head.bias"]}
    for ours, (convolution, norm) in names.items():
        weight, bias = own[f"{ours}.weight"], own[f"{ours}.bias"]
        found[f"{convolution}.weight"] = weight.flip(1) if ours == "stem" else weight
        found |= {f"{norm}.weight": torch.ones_like(bias), f"{norm}.bias": bias}
        found |= {
            f"{norm}.running_mean": torch.zeros_like(bias),
            f"{norm}.running_var": torch.full_like(bias, 1 - 1e-5),
        }
    pixels = torch.randint(0, 256, (2, 96, 128, 3), generator=torch.Generator().manual_seed(SEED), dtype=torch.uint8)
    with torch.no_grad():
        x = network.normalise(pixels)
        found["reference.input"] = x.flip(1)
        for number, part in enumerate(network.parts, start=1):
            found[f"reference.layer{number}"] = x = part(x)
    save_file({name: value.contiguous() for name, value in found.items()}, path)


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    convert_resnet50(options.out / "resnet50.safetensors")
    for name in ("castings", "kolektor", "tiles", "solar", *CORRUPTED):
        folder = options.out / name
        root = options.data / {"photos": "natural/test.tar", "x-rays": "ood/chest-xray.tar"}.get(name, name)
        if (folder / "suite.json").exists() or not (root.exists() or name == "solar"):
            continue
        if name in CORRUPTED:
            corrupted_suite(folder, root)
        else:
            defect_suite(folder, *listed(root, name))
        digests = {str(each.relative_to(folder)): file_digest(each)[:16] for each in sorted(folder.rglob("*.png"))}
        whole = sha256(json.dumps(digests).encode()).hexdigest()
        weights = file_digest(backbone_path("resnet50"))
        suite = {"name": name, "seed": SEED, "digest": whole, "weights_digest": weights, "files": digests}
        (folder / "suite.json").write_text(json.dumps(suite, indent=1))
        print(
            name, {part.name: len(list(part.rglob("*.png"))) for part in folder.iterdir() if part.is_dir()}, flush=True
        )


if __name__ == "__main__":
    main()
