"""Does the heatmap point at what was changed, and does it stay cold otherwise? The figures of docs/explanations.md.

python studies/localisation.py --solar --photos natural/train-0002.tar --place-counts --skip 200 --page PAGE
python studies/localisation.py --solar --photos natural/train-0002.tar --speaking 20 --page docs/explanations.md

Detectors with each head are fitted on some normal images. Others, new to them, are changed in one place, in a known way
and at a known size (`discopatch.corruptions.places`). Counted is how often the hottest point of the heatmap lies in the
changed place, and the AUROC of the heatmap's pixels, those of the place against all others. On the new images as they
are it is counted how many regions are hot, and of how many images a component significant. Solar cells come from the
installed elpv-dataset, or from a folder: those of which none is in a test of the benchmark. Where place does not count,
the heatmap of components is that of the combined head; with --place-counts it always does. With --speaking heads are
fitted again and again on features of some images, and of others it is counted how often a component significant.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from PIL import Image

from common import write_between
from discopatch import Detector
from discopatch.bench.suites.solar import solar_suite
from discopatch.corruptions.places import PLACE_CHANGES, SIZES, Mask, PlaceChange, change_place
from discopatch.explain.anomaly_map import GRID, heat_of_places
from discopatch.heads import ComponentsHead, trials
from discopatch.images import NamedImage, Pixels, Transform, read_images
from discopatch.metrics import auroc
from discopatch.pretrained import DEFAULT_WEIGHTS, load_pretrained

HEADS = ("combined", "components")
RATE = 0.05
FITTED, POOL = (21, 60, 150), 300  # images, and those that they are drawn from
TESTED = 450  # solar cells that the benchmark tests with: these are left out

AnomalyMap = NDArray[np.float32]


@dataclass(frozen=True)
class Found:
    """What the heatmaps of some changed images tell, of one kind and size or of several."""

    hit: float  # the share whose hottest point is in the changed place
    chance: float  # the share of pixels that were changed
    pixel_auroc: float


@dataclass(frozen=True)
class Quiet:
    """What is said of new normal images."""

    hot: float  # share of regions
    speaking: float  # share of images


def main(
    photos: Annotated[Path | None, typer.Option(help="Photos: a folder or a tar shard.")] = None,
    solar: Annotated[bool, typer.Option(help="Solar cells, too.")] = False,
    solar_data: Annotated[Path | None, typer.Option(help="With labels.csv and images/. Default: installed.")] = None,
    weights: Annotated[str, typer.Option(help="Pretrained weights by name.")] = DEFAULT_WEIGHTS,
    given: Annotated[int, typer.Option(help="Normal images to fit on.")] = 120,
    changed: Annotated[int, typer.Option(help="Images that are changed in each way and at each size.")] = 8,
    new: Annotated[int, typer.Option(help="New normal images.")] = 60,
    draws: Annotated[int, typer.Option(help="Detectors of each head.")] = 1,
    skip: Annotated[int, typer.Option(help="Images at the start of each source to leave out.")] = 0,
    place_counts: Annotated[bool, typer.Option(help="Let place count, whatever is learnt at fit.")] = False,
    speaking: Annotated[int, typer.Option(help="Heads of each size, to count how often components speak alone.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    page: Annotated[Path | None, typer.Option(help="Page whose tables are written anew.")] = None,
) -> None:
    """Prints a table for each set of images."""
    if place_counts:
        trials.EARNING = -np.inf
    sources: dict[str, object] = {}
    if solar:
        sources["solar cells"] = [file.path for file in solar_suite(solar_data, {}, test=TESTED, seed=0).fit]
    if photos is not None:
        sources["photos"] = photos
    for name, source in sources.items():
        if speaking:
            text = speaking_table(read_pixels(source, most=POOL), weights, draws=speaking, device=device)
            print(name, text, sep="\n")
            if page is not None:
                write_between(page, f"speaking, {name}", text)
            continue
        pixels = read_pixels(source, most=draws * (given + max(new, changed)), skip=skip)
        tables = []
        for draw, part in enumerate(np.array_split(pixels, draws)):
            fitted, others = list(part[:given]), part[given:]
            made = change_places(others, changed, seed=draw)
            for head in HEADS:
                detector = Detector(weights, head=head, false_alarm_rate=RATE, device=device, seed=draw)
                detector.fit(fitted, workers=1)
                counts = "place" in detector.component_names
                print(f"{name}, draw {draw}, {head}: place {'counts' if counts else 'does not count'}")
                tables.append((head, measure(detector, made), quiet(detector, others[:new])))
        text = f"{localisation_table(tables)}\n\n{quiet_table(tables)}"
        print(name, text, sep="\n")
        if page is not None:
            write_between(page, f"localisation, {name}", text)


def read_pixels(source: object, *, most: int, skip: int = 0) -> Pixels:
    """The first images of the source, after those to leave out, in random order, through the transform."""
    stream = read_images(source, transform=Transform(size=256))
    found = np.stack([each.pixels for each in islice(stream, skip, skip + most) if isinstance(each, NamedImage)])
    return found[np.random.default_rng(0).permutation(len(found))]


def change_places(pixels: Pixels, count: int, *, seed: int) -> dict[tuple[str, float], list[PlaceChange]]:
    """So many of the images changed in each way and at each size."""
    rng = np.random.default_rng([seed, 21])
    return {
        (name, size): [
            change_place(name, pixels[i % len(pixels)], pixels[(i + 1) % len(pixels)], size=size, rng=rng)
            for i in range(count)
        ]
        for name in PLACE_CHANGES
        for size in SIZES
    }


Measured = dict[tuple[str, float], list[tuple[AnomalyMap, Mask]]]
Tables = Sequence[tuple[str, Measured, Quiet]]


def measure(detector: Detector, made: dict[tuple[str, float], list[PlaceChange]]) -> Measured:
    return {key: [(detector.explain(one.pixels).anomaly_map, one.mask) for one in each] for key, each in made.items()}


def quiet(detector: Detector, pixels: Pixels) -> Quiet:
    hot = [hot_regions(detector, image) for image in pixels]
    significant = [bool(each.significant) for each in detector.predict(list(pixels), workers=1)]
    return Quiet(float(np.mean(hot)), float(np.mean(significant)))


def hot_regions(detector: Detector, image: Pixels) -> float:
    """The share of the regions that are hot by their own score, or by the places at their middle."""
    encoder, size = detector.encoder_, len(image)
    hot = detector.regions_.excess(encoder.extract_regions(image, GRID**2)).reshape(GRID, GRID) > 0
    places = detector.head_.place_map(encoder.extract_pixels(image[None]))
    if places is not None:
        heat = heat_of_places(places)
        middles = (np.linspace(0, size - encoder.patch_size, GRID) + encoder.patch_size / 2) * len(heat) / size
        hot |= heat[np.ix_(middles.astype(int), middles.astype(int))] > 0
    return float(hot.mean())


def summary(pairs: Iterable[tuple[AnomalyMap, Mask]]) -> Found:
    """The AUROC is that of all pixels of all images together."""
    maps, masks = zip(*((enlarge(heat, mask.shape), mask) for heat, mask in pairs), strict=True)
    hits = [heat.max() > 0 and mask.flat[heat.argmax()] for heat, mask in zip(maps, masks, strict=True)]
    values, inside = np.stack(maps), np.stack(masks)
    return Found(float(np.mean(hits)), float(inside.mean()), auroc(values[~inside], values[inside]))


def enlarge(anomaly_map: AnomalyMap, shape: tuple[int, ...]) -> AnomalyMap:
    """The map at every pixel, linear in between."""
    image = Image.fromarray(anomaly_map.astype(np.float32))
    return np.asarray(image.resize((shape[1], shape[0]), Image.Resampling.BILINEAR))


def localisation_table(tables: Tables) -> str:
    """Markdown: a row for every kind, every size, and all of them."""
    rows = [("all kinds and sizes", list(tables[0][1]))]
    rows += [(name, [(name, size) for size in SIZES]) for name in PLACE_CHANGES]
    rows += [(f"all kinds, {size:.0%} of the side", [(name, size) for name in PLACE_CHANGES]) for size in SIZES]
    heads = dict.fromkeys(head for head, _, _ in tables)
    lines = [
        "| changed | pixels changed | "
        + " | ".join(f"{head}: hottest point in it | pixel AUROC" for head in heads)
        + " |",
        "|---" * (2 + 2 * len(heads)) + "|",
    ]
    for label, keys in rows:
        found = [
            summary(pair for own, each, _ in tables if own == head for key in keys for pair in each[key])
            for head in heads
        ]
        cells = " | ".join(f"{each.hit:.0%} | {100 * each.pixel_auroc:.1f}" for each in found)
        lines.append(f"| {label} | {found[0].chance:.1%} | {cells} |")
    return "\n".join(lines)


def quiet_table(tables: Tables) -> str:
    """Markdown: a row for every head, means over the draws."""
    lines = ["| new normal images | hot regions | a component significant |", "|---|---|---|"]
    for head in dict.fromkeys(head for head, _, _ in tables):
        own = [each for name, _, each in tables if name == head]
        hot, speaking = (float(np.mean([getattr(each, what) for each in own])) for what in ("hot", "speaking"))
        lines.append(f"| {head} | {hot:.1%} | {speaking:.1%} |")
    return "\n".join(lines)


def speaking_table(pixels: Pixels, weights: str, *, draws: int, device: str) -> str:
    """Markdown: of how many new images a component significant, by the number of images fitted; without places, for time."""
    detector = Detector(weights, head="components", device=device)
    features = detector.extract_features(list(pixels), workers=1).without_places()
    layer_sizes = load_pretrained(weights).discriminator.architecture.layer_sizes
    lines = ["| fitted | new normal images of which a component significant |", "|---|---|"]
    for fitted in FITTED:
        shares = []
        for draw in range(draws):
            order = np.random.default_rng([fitted, draw]).permutation(len(pixels))
            head = ComponentsHead(layer_sizes=layer_sizes, seed=draw).fit(features.select(order[:fitted]))
            z = list(head.component_scores(features.select(order[fitted:])).values())
            shares.append((np.stack(z).max(0) > head.significance_level).mean())
        error = np.std(shares, ddof=1) / len(shares) ** 0.5 if draws > 1 else 0.0
        lines.append(f"| {fitted} | {np.mean(shares):.1%} ± {error:.1%} |")
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
