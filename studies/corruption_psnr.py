"""Mean PSNR and sharpness of every corruption at every severity, of ours or of a published program.

python studies/corruption_psnr.py
python studies/corruption_psnr.py --program PATH/make_imagenet_c.py --out tests/corruptions/published/imagenet_c.json
python studies/corruption_psnr.py --program PATH/corruptions.py --only elastic_transform \
    --out tests/corruptions/published/imagecorruptions.json

The programs are ImageNet-C/create_c/make_imagenet_c.py of github.com/hendrycks/robustness, with its photographs of
frost beside it, and imagecorruptions/corruptions.py of github.com/bethgelab/imagecorruptions. They need
opencv-python-headless, Wand, ImageMagick 6 and numba; what they import and is no longer to be had is replaced here.
They are run as they are: read them before.
"""

import contextlib
import importlib
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from discopatch.corruptions import CORRUPTIONS, SEVERITIES, Variant, corrupt
from discopatch.images import Pixels, Transform
from discopatch.images.samples import PHOTOS, sample_photos
from discopatch.utils import write_json

Draw = Callable[[Pixels, str, int, int], Pixels]  # image, corruption, severity, seed

SIDE = 224
IN_COLOUR = tuple(name for name in PHOTOS if name not in ("camera", "coins"))  # saturation leaves grey as it is
# Of each photo, for a sampling error far below half a decibel; others are drawn once.
DRAWS = {"elastic_transform": 40, "frost": 120, "spatter": 30, "motion_blur": 6, "fog": 20, "snow": 3}
NOT_CORRUPTIONS = "def save_distorted"  # from here on the program reads and writes the author's own folders


def main(
    program: Annotated[Path | None, typer.Option(help="A published program; without it, ours are measured.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A JSON to write the means to.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="A corruption; repeat for several. Default: all 19.")] = None,
) -> None:
    """Prints the mean PSNR in dB over the sample photos at 224 px, by severity, and how sharp the results are."""
    images = photos()
    table: dict[str, dict[str, list[float]]] = {}
    with published(program) if program else contextlib.nullcontext(ours) as draw:
        for name in only or CORRUPTIONS:
            measured = [measure(draw, images, name, severity) for severity in SEVERITIES]
            table[name] = {
                "psnr": [round(float(each.psnr.mean()), 2) for each in measured],
                "sharpness": [round(float(each.sharpness.mean()), 3) for each in measured],
            }
            error = max(each.error for each in measured)
            print(f"{name:20s}", *(f"{each:6.2f}" for each in table[name]["psnr"]), f"  +- {error:.2f} dB", end="   ")
            print("sharpness", *(f"{each:6.2f}" for each in table[name]["sharpness"]), flush=True)
    if out:
        write_json(out, table)


@dataclass(frozen=True)
class Measured:
    """A corruption at one severity: PSNR in dB, and variance of the Laplacian as a share of the clean photo's."""

    psnr: NDArray[np.float64]  # (images, draws)
    sharpness: NDArray[np.float64]

    @property
    def error(self) -> float:
        """The standard error of the mean PSNR, from how the draws of each image differ."""
        return float(np.sqrt(self.psnr.var(axis=1).mean() / self.psnr.size))


@cache
def photos() -> list[Pixels]:
    """The sample photos in colour, cut as ImageNet-C does: the shorter side becomes 256, the middle 224 are kept."""
    resize = Transform(size=256, resample="bilinear")
    margin = (256 - SIDE) // 2
    inner = slice(margin, margin + SIDE)
    return [np.ascontiguousarray(resize(photo)[inner, inner]) for photo in sample_photos(IN_COLOUR).values()]


def measure(draw: Draw, images: list[Pixels], name: str, severity: int, *, share: float = 1) -> Measured:
    """All draws of all images, or a share of them, each with a seed of its own."""
    draws = max(1, round(share * DRAWS.get(name, 1)))
    pairs = [
        (image, draw(image, name, severity, seed + draws * place))
        for place, image in enumerate(images)
        for seed in range(draws)
    ]
    psnrs = np.array([psnr(image, corrupted) for image, corrupted in pairs])
    shape = (len(images), draws)
    clean = np.array([[laplacian(image)] for image in images])
    sharpness = np.array([laplacian(corrupted) for _, corrupted in pairs]).reshape(shape) / clean
    return Measured(psnrs.reshape(shape), sharpness)


def psnr(image: Pixels, corrupted: Pixels) -> float:
    error = np.square(image.astype(np.float64) - corrupted).mean()
    return float(10 * np.log10(255**2 / error))


def laplacian(image: Pixels) -> float:
    """The variance of the Laplacian of the grey image."""
    return float(ndimage.laplace(image @ np.array([0.299, 0.587, 0.114])).var())


def ours(image: Pixels, name: str, severity: int, seed: int, *, variant: Variant = "imagenet_c") -> Pixels:
    return corrupt(image, name, severity, seed=seed, variant=variant)


@contextlib.contextmanager
def published(program: Path) -> Iterator[Draw]:
    """The corruptions of a published program, run in its folder, where its pictures of frost are."""
    folder = Path.cwd()
    source = program.read_text().partition(NOT_CORRUPTIONS)[0]
    fill_in_for_old_packages()
    os.chdir(program.parent)
    names: dict[str, Any] = {"__name__": "published", "__file__": program.name}
    try:
        exec(compile(source, program.name, "exec"), names)
        names["gaussian"] = without_multichannel(names["gaussian"])

        def draw(image: Pixels, name: str, severity: int, seed: int) -> Pixels:
            np.random.seed(seed)  # noqa: NPY002 - the program's own generator
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return np.uint8(names[name](Image.fromarray(image), severity))  # type: ignore[return-value]

        yield draw
    finally:
        os.chdir(folder)


def fill_in_for_old_packages() -> None:
    """Stands in for what the programs import and never call here, and for names that numpy and scipy have dropped."""
    ndimage = importlib.import_module("scipy.ndimage")
    modules = {
        "torchvision": {},
        "torchvision.datasets": {},
        "torchvision.transforms": {},
        "pkg_resources": {"resource_filename": lambda _, path: path},
        "scipy.ndimage.interpolation": {"map_coordinates": ndimage.map_coordinates},
    }
    for name, members in modules.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        sys.modules[name] = module
    vars(np).update(float_=np.float64, fromstring=np.frombuffer)


def without_multichannel(gaussian: Callable[..., Any]) -> Callable[..., Any]:
    """Takes the argument that scikit-image has since renamed."""

    def call(image: Any, *args: Any, multichannel: bool = False, **options: Any) -> Any:
        return gaussian(image, *args, **({"channel_axis": -1} if multichannel else {}), **options)

    return call


if __name__ == "__main__":
    typer.run(main)
