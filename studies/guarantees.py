"""False alarms of small folders, bursts of frames and two cameras; folders that fail.

python studies/guarantees.py measure --data FOLDER    # docs/results/guarantees.json; half an hour on two cores
python studies/guarantees.py tables                   # its tables as Markdown, for docs/calibration.md
python studies/guarantees.py gate                     # docs/results/folder-gate.json
python studies/guarantees.py classes --castings DIR   # docs/results/classes.json; ten minutes on two cores

DIR has the folders ok and defective, of https://github.com/nathanlfischer/casting-defect.
FOLDER holds natural/train-0000.tar; the solar cells are those of the package elpv-dataset. Features are computed once,
by the released weights. Each draw then splits, fits, calibrates and tests on other images, as `Detector.fit` does
with the combined head, which many draws can afford.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray
from rich.progress import track

from discopatch.bench.tables import markdown_table
from discopatch.calibration import AUTO_RATES, Rate, alarms_allowed, p_values, threshold
from discopatch.classes import Partition, assign
from discopatch.encoders import DiscriminatorEncoder, Encoder, Features, Kind
from discopatch.errors import TooFewImagesError
from discopatch.fitting import N_PROBED, Split
from discopatch.gate import FAIL_RATE, FolderCounts, tail_probabilities
from discopatch.groups import Groups, find_groups
from discopatch.heads import CombinedHead, ComponentsHead, ProbeShifts, get_head, measure_shifts
from discopatch.images import NamedImage, Pixels, Refusal, Transform, read_images
from discopatch.metrics import auroc
from discopatch.normal_images import find_drift
from discopatch.pretrained import DEFAULT_WEIGHTS, load_pretrained
from discopatch.utils import write_json

RESULTS = Path("docs/results/guarantees.json")
SIZES = (30, 60, 120, 600)
RATES: tuple[Rate, ...] = ("auto", *AUTO_RATES)
BURST_RATE, CAMERAS_RATE = 0.1, 0.05
SCENES, FRAMES, BURST_POOL = 27, 4, 120  # scenes to fit, frames of each, and scenes in all
PROBED = 36  # images whose shifts are measured; a draw takes those of six that it fits

Row = dict[str, Any]
Scores = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Scores]
Run = Callable[..., Row]  # a job for all draws -> a row

app = typer.Typer(help=__doc__, add_completion=False)


@dataclass(frozen=True, eq=False)
class Pool:
    """Features of many images of one kind, and how known changes move those of some."""

    features: Features
    shifts: dict[int, ProbeShifts]

    def __len__(self) -> int:
        return len(self.features.logits)

    @classmethod
    def extract(cls, encoder: Encoder, pixels: Pixels) -> "Pool":
        starts = track(range(0, len(pixels), encoder.batch_size), "features")
        parts = [encoder.extract_pixels(pixels[at : at + encoder.batch_size]) for at in starts]
        chosen = np.random.default_rng(6).permutation(len(pixels))[:PROBED].tolist()
        shifts: dict[int, ProbeShifts] = {
            at: measure_shifts(encoder.extract_pixels, pixels[at : at + 1], seed=at) for at in chosen
        }
        return cls(Features.concatenate(parts), shifts)

    def shifts_of(self, images: NDArray[np.intp]) -> ProbeShifts:
        """Those of up to six of the images, as a fit measures them."""
        known = [self.shifts[image] for image in images.tolist() if image in self.shifts][:N_PROBED]
        return {name: np.concatenate([each[name] for each in known]) for name in known[0]} if known else {}


POOLS: dict[str, Pool] = {}  # in every process


def start_process(pools: dict[str, Pool]) -> None:
    import torch

    torch.set_num_threads(1)
    POOLS.update(pools)


class Outcome(NamedTuple):
    """A fit on some images and the scores of others."""

    split: Split
    drift: bool  # whether a drift of the images is reported
    known: NDArray[np.float64]  # calibration scores
    scores: NDArray[np.float64]  # of new images


def fit_and_score(
    pool: Pool, images: NDArray[np.intp], new: NDArray[np.intp], *, rate: Rate, groups: Groups | None, seed: int
) -> Outcome:
    """A fit on these images, in this order, as `Detector.fit` does it, and the scores of new ones."""
    features = pool.features.select(images)
    grouped = find_groups(groups, features.statistics, [str(image) for image in images], np.arange(len(images)))
    split = Split.make(grouped, calibration=None, rate=rate, seed=seed)
    head = CombinedHead().fit(features.select(split.fit), pool.shifts_of(images[split.fit]), groups=split.groups)
    drift = find_drift(features, get_head("combined"), grouped.alike, seed=seed)
    known, scores = (head.score(each) for each in (features.select(split.held_out), pool.features.select(new)))
    return Outcome(split, drift is not None, known, scores)


def flagged_share(calibration: NDArray[np.float64], scores: NDArray[np.float64], rate: float) -> float:
    return float((scores > threshold(calibration, rate)).mean())


def small_folder(pool: str, size: int, rate: Rate, draw: int) -> Row | None:
    """Exchangeable images."""
    order = np.random.default_rng([1, size, draw]).permutation(len(POOLS[pool]))
    try:
        found = fit_and_score(POOLS[pool], order[:size], order[size:], rate=rate, groups=None, seed=draw)
    except TooFewImagesError:
        return None
    split, drift, known, scores = found
    return {
        "share": flagged_share(known, scores, split.rate),
        "rate": split.rate,
        "fitted": len(split.fit),
        "held_out": len(known),
        "bound": alarms_allowed(len(known), split.rate) / (len(known) + 1),
        "warned": float(drift or split.grouped.caution is not None),
    }


def burst(pool: str, shuffled: bool, groups: str, draw: int) -> Row | None:
    """Scenes of several frames; each tested scene is new."""
    rng = np.random.default_rng([2, draw])
    order = rng.permutation(len(POOLS[pool]) // FRAMES)
    images = (order[:SCENES, None] * FRAMES + np.arange(FRAMES)).ravel()
    images = rng.permutation(images) if shuffled else images
    given: dict[str, Groups | None] = {"none": None, "given": (images // FRAMES).tolist(), "auto": "auto"}
    new = order[SCENES:] * FRAMES
    try:
        found = fit_and_score(POOLS[pool], images, new, rate=BURST_RATE, groups=given[groups], seed=draw)
    except TooFewImagesError:
        return None
    return {
        "share": flagged_share(found.known, found.scores, BURST_RATE),
        "warned": float(found.split.grouped.caution is not None),
        "groups_seen": len(np.unique(found.split.grouped.alike)),
    }


def two_cameras(name: str, ordered: bool, draw: int) -> Row:
    """120 images, half of each of two kinds, in a random order or one kind after the other."""
    rng, pool = np.random.default_rng([3, draw]), POOLS[name]
    first, second = np.split(np.arange(len(pool)), 2)
    first, second = rng.permutation(first), rng.permutation(second)
    images = np.concatenate([first[:60], second[:60]])
    images = images if ordered else rng.permutation(images)
    tested = min(len(first), len(second)) - 60
    new = np.concatenate([first[60 : 60 + tested], second[60 : 60 + tested]])
    _, drift, known, scores = fit_and_score(pool, images, new, rate=CAMERAS_RATE, groups=None, seed=draw)
    return {
        "share": flagged_share(known, scores, CAMERAS_RATE),
        "first": flagged_share(known, scores[:tested], CAMERAS_RATE),
        "second": flagged_share(known, scores[tested:], CAMERAS_RATE),
        "warned": float(drift),
    }


def summary(rows: Sequence[Row | None]) -> Row:
    """The mean share of flagged images over draws with its standard error, and where nine in ten draws lie."""
    found = [row for row in rows if row is not None]
    if not found:
        return {"draws": 0}
    values = np.array([row["share"] for row in found])
    low, high = np.quantile(values, [0.05, 0.95])
    means = {name: float(np.mean([row[name] for row in found])) for name in found[0] if name != "share"}
    error = values.std() / np.sqrt(max(len(values) - 1, 1))
    return {
        "draws": len(found),
        "mean": float(values.mean()),
        "error": float(error),
        "low": float(low),
        "high": float(high),
        **means,
    }


def folder_rows(pool: str, run: Run) -> list[Row]:
    rows = [
        {"images": size, "asked": rate, **run(partial(small_folder, pool, size, rate))}
        for size in SIZES
        for rate in RATES
    ]
    return [row for row in rows if row["draws"]]


def burst_rows(pool: str, run: Run) -> list[Row]:
    return [
        {"order": order, "groups": groups, **run(partial(burst, pool, order == "shuffled", groups))}
        for order in ("in order", "shuffled")
        for groups in ("none", "given", "auto")
    ]


def camera_rows(pool: str, run: Run) -> list[Row]:
    orders = (("mixed", False), ("one after the other", True))
    return [{"order": order, **run(partial(two_cameras, pool, after))} for order, after in orders]


TABLES: dict[str, tuple[Callable[[str, Run], list[Row]], str]] = {  # how it is made, and from which images
    "photos": (folder_rows, "photos"),
    "solar cells": (folder_rows, "solar cells"),
    "bursts of photos": (burst_rows, "frames of photos"),
    "bursts of solar cells": (burst_rows, "frames of solar cells"),
    "two cameras": (camera_rows, "both kinds"),
}


CALIBRATED = (9, 19, 99, 199)
FOLDERS = (1, 10, 100, 1000)
GATE_RATES = {9: 0.1, 19: 0.05}  # of false alarms; 1 % where there are enough images for it
TESTS = ("folder", "flagged alone", "Benjamini-Hochberg", "any")


def shifted(by: float, *, one_in: int = 1) -> Draw:
    """Scores of which all, or one in so many, are that many standard deviations higher."""
    return lambda rng, images: rng.normal(size=images) + by * (np.arange(images) % one_in == 0)


KINDS: Mapping[str, Draw] = {
    "normal": shifted(0),
    "one in ten far off": shifted(30, one_in=10),
    "one in ten 3 sd off": shifted(3, one_in=10),
    "all 0.5 sd off": shifted(0.5),
    "all 1 sd off": shifted(1),
    "a single one far off": shifted(30, one_in=10**9),
}


def failing(calibration: Scores, scores: Scores, rate: float) -> dict[str, bool]:
    """Which tests a folder with these scores fails."""
    n, images = len(calibration), len(scores)
    alarms = alarms_allowed(n, rate)
    p = p_values(scores, calibration)
    ranks = np.bincount(np.rint(p * (n + 1)).astype(int) - 1, minlength=n + 1)
    found, allowed = FolderCounts((ranks, alarms)), FAIL_RATE * (1 + 1e-9)
    flagged = int(ranks[:alarms].sum())
    return {
        "folder": found.p_value <= allowed,
        "flagged alone": bool(tail_probabilities(images, alarms, n)[flagged] <= allowed),
        "Benjamini-Hochberg": bool((np.sort(p) <= allowed * np.arange(1, images + 1) / images).any()),
        "any": flagged > 0,
    }


def share_failing(outcomes: Sequence[Mapping[str, bool]]) -> dict[str, float]:
    return {test: float(np.mean([each[test] for each in outcomes])) for test in TESTS}


def simulate(folders: int, seed: int) -> Iterator[dict[str, Any]]:
    """The share of folders of each kind that fail, by calibration images and size."""
    for n in CALIBRATED:
        for images in FOLDERS:
            for kind, draw in KINDS.items():
                rng = np.random.default_rng([seed, n, images])
                count = folders * (10 if kind == "normal" else 1)
                outcomes = [
                    failing(rng.normal(size=n), draw(rng, images), GATE_RATES.get(n, 0.01)) for _ in range(count)
                ]
                yield {"n": n, "images": images, "kind": kind, **share_failing(outcomes)}


@app.command()
def gate(
    out: Path = Path("docs/results/folder-gate.json"),
    folders: Annotated[
        int, typer.Option(help="Simulated folders of each kind; of normal ones ten times.", min=1)
    ] = 1000,
) -> None:
    """Simulates how often folders fail `score --fail-on folder`: normal ones, and those in which images are off."""
    shares = list(simulate(folders, 0))
    results = json.loads(out.read_text()) if out.exists() else {}
    write_json(out, {**results, "fail_rate": FAIL_RATE, "folders": folders, "shares": shares})
    rows = [
        [str(each["n"]), str(each["images"]), each["kind"], *(f"{each[test]:.1%}" for test in TESTS)] for each in shares
    ]
    print(markdown_table(["calibration images", "images", "folders", *TESTS], rows))


SCALES = {"narrow": (0.0, 0.7), "usual": (0.0, 1.0), "wide": (0.3, 1.2)}  # mean and deviation of simulated scores
FITTED, HELD_OUT, DEFECTS = 120, 39, 100  # images of each product


def simulated_classes(draw: int) -> dict[str, Row]:
    """Classes whose scores are spread differently, with one calibration of all and one of each."""
    rng, rows = np.random.default_rng([4, draw]), dict[str, Row]()
    known = {name: rng.normal(*scale, size=HELD_OUT) for name, scale in SCALES.items()}
    together = np.concatenate([*known.values()])
    for name, scale in SCALES.items():
        new = rng.normal(*scale, size=1000)
        pairs = (("without", together), ("with", known[name]))
        rows[name] = {which: flagged_share(used, new, CAMERAS_RATE) for which, used in pairs}
    return rows


def products(
    pools: Mapping[str, Features], defective: Mapping[str, Features], sizes: tuple[int, ...], draw: int
) -> dict[str, Row]:
    """One head of all products, with one calibration and with one of each class, and a head of each product."""
    rng, rows = np.random.default_rng([5, draw]), dict[str, Row]()
    chosen = {
        name: np.split(rng.permutation(len(pool.logits)), [FITTED, FITTED + HELD_OUT]) for name, pool in pools.items()
    }
    fitted, held_out = (
        Features.concatenate([pools[name].select(own[part]) for name, own in chosen.items()]) for part in (0, 1)
    )
    head = ComponentsHead(layer_sizes=sizes).fit(fitted)
    numbers = np.repeat(np.arange(len(pools)), FITTED)
    classes = Partition(tuple(pools), numbers, np.arange(len(pools)))
    half = sum(sizes[: (len(sizes) + 1) // 2])
    nearest = classes.nearest(fitted.statistics, np.arange(len(numbers)), slice(half, sum(sizes)))
    of_known, known = assign(nearest, held_out.statistics), head.score(held_out)
    for number, (name, pool) in enumerate(pools.items()):
        tested = {"normal": pool.select(chosen[name][2]), "defective": defective[name]}
        new = {kind: head.score(each) for kind, each in tested.items()}
        of_new = {kind: assign(nearest, each.statistics) for kind, each in tested.items()}
        own = ComponentsHead(layer_sizes=sizes).fit(pool.select(chosen[name][0]))
        own_known = own.score(pool.select(chosen[name][1]))
        alone = {kind: own.score(each) for kind, each in tested.items()}
        limits = np.array([threshold(known[of_known == each], CAMERAS_RATE) for each in range(len(pools))])
        found = {kind: float((new[kind] > limits[of_new[kind]]).mean()) for kind in new}
        rows[name] = {
            "assigned": float((of_new["normal"] == number).mean()),
            "without": flagged_share(known, new["normal"], CAMERAS_RATE),
            "with": found["normal"],
            "alone": flagged_share(own_known, alone["normal"], CAMERAS_RATE),
            "found without": flagged_share(known, new["defective"], CAMERAS_RATE),
            "found with": found["defective"],
            "found alone": flagged_share(own_known, alone["defective"], CAMERAS_RATE),
            "AUROC together": auroc(new["normal"], new["defective"]),
            "AUROC alone": auroc(alone["normal"], alone["defective"]),
        }
    return rows


def features_of(encoder: Encoder, images: object) -> Features:
    return Features.concatenate([each[1] for each in encoder.extract(images) if not isinstance(each, Refusal)])


@app.command()
def classes(
    castings: Annotated[Path, typer.Option(help="Folder with ok and defective.")],
    out: Path = Path("docs/results/classes.json"),
    draws: int = 20,
    simulated: int = 2000,
    weights: str = DEFAULT_WEIGHTS,
) -> None:
    """Measures false alarms for each class and detection for each product, with and without classes."""
    images, defects, kinds = import_module("elpv_dataset.utils").load_dataset()
    order = np.random.default_rng(0).permutation(len(images))

    def cells(kind: str, defect: float) -> list[NDArray[np.uint8]]:
        return [np.repeat(images[at][..., None], 3, 2) for at in order if (kinds[at], defects[at]) == (kind, defect)]

    kinds_of: tuple[Kind, ...] = ("logits", "statistics", "pooled", "tones")
    encoder = DiscriminatorEncoder(load_pretrained(weights), patches="dense", kinds=kinds_of)
    sources = {"mono": (cells("mono", 0), cells("mono", 1)), "poly": (cells("poly", 0), cells("poly", 1))}
    sources["castings"] = tuple(sorted((castings / name).iterdir()) for name in ("ok", "defective"))  # type: ignore[assignment]
    normal, defective = (
        {name: features_of(encoder, each[part][:most]) for name, each in sources.items()}
        for part, most in ((0, 260), (1, DEFECTS))
    )
    tables = {
        "simulated": [simulated_classes(draw) for draw in range(simulated)],
        "products": [products(normal, defective, encoder.layer_sizes, draw) for draw in range(draws)],
    }
    save_classes(tables, weights, out)


def save_classes(tables: Mapping[str, list[dict[str, Row]]], weights: str, out: Path) -> None:
    """The means of all draws with their standard errors."""
    results = {
        name: {
            kind: {each: summary([{"share": row[kind][each]} for row in rows]) for each in rows[0][kind]}
            for kind in rows[0]
        }
        for name, rows in tables.items()
    }
    write_json(out, {"weights": weights, "rate": CAMERAS_RATE, "fitted": FITTED, "held out": HELD_OUT, **results})
    print(json.dumps(results, indent=1))


def photos(data: Path, transform: Transform, count: int) -> Pixels:
    stream = read_images(str(data / "natural" / "train-0000.tar"), transform=transform)
    return np.stack([item.pixels for item in islice(stream, count) if isinstance(item, NamedImage)])


def solar_cells() -> tuple[list[NDArray[np.uint8]], list[NDArray[np.uint8]]]:
    """Cells without a defect in a random order: monocrystalline, and polycrystalline."""
    images, defects, kinds = import_module("elpv_dataset.utils").load_dataset()
    good = np.flatnonzero(defects == 0)
    good = good[np.random.default_rng(0).permutation(len(good))]
    mono, poly = (
        [np.repeat(images[at][..., None], 3, 2) for at in good if kinds[at] == kind] for kind in ("mono", "poly")
    )
    return mono, poly


def burst_frames(images: Sequence[NDArray[np.uint8]]) -> Iterator[NDArray[np.uint8]]:
    """Frames of one scene each: moved by up to two pixels, as bright within 1 %, with noise of 4 levels."""
    rng = np.random.default_rng(4)
    for image in images:
        height, width = image.shape[0] - 2, image.shape[1] - 2
        for _ in range(FRAMES):
            top, left = rng.integers(0, 3, 2)
            part = image[top : top + height, left : left + width].astype(np.float64)
            noisy = part * rng.normal(1, 0.01) + rng.normal(0, 4, part.shape)
            yield np.clip(np.rint(noisy), 0, 255).astype(np.uint8)


def make_pool(name: str, encoder: Encoder, data: Path, images: int) -> Pool:
    """The images of that name, through the encoder."""
    transform, half = encoder.transform, images // 2
    if name == "photos":
        return Pool.extract(encoder, photos(data, transform, images))
    if name == "frames of photos":
        return Pool.extract(
            encoder, through(transform, burst_frames(list(photos(data, transform, images + BURST_POOL)[images:])))
        )
    mono, poly = solar_cells()
    if name == "frames of solar cells":
        return Pool.extract(encoder, through(transform, burst_frames(mono[-BURST_POOL:])))
    cells = [*mono[:half], *poly[:half]]
    if name == "solar cells":
        cells = [cells[at] for at in np.random.default_rng(5).permutation(len(cells))]
    return Pool.extract(encoder, through(transform, cells))


def through(transform: Transform, images: Iterable[NDArray[np.uint8]]) -> Pixels:
    return np.stack([transform(image) for image in images])


@app.command()
def measure(
    data: Annotated[Path, typer.Option(help="Folder with natural/train-0000.tar.")],
    out: Path = RESULTS,
    only: Annotated[list[str] | None, typer.Option(help=f"Tables to measure, of {', '.join(TABLES)}.")] = None,
    draws: int = 50,
    images: Annotated[int, typer.Option(help="Photos, and solar cells.")] = 800,
    weights: str = DEFAULT_WEIGHTS,
    device: str = "auto",
    processes: int = os.cpu_count() or 1,
) -> None:
    """Measures the tables and joins them to the JSON, one after the other."""
    encoder = DiscriminatorEncoder(load_pretrained(weights), patches="dense", device=device, batch_size=16)
    results: Row = json.loads(out.read_text()) if out.exists() else {}
    by_pool: dict[str, list[str]] = {}
    for table in only or TABLES:
        by_pool.setdefault(TABLES[table][1], []).append(table)
    for name, chosen in by_pool.items():
        pools = {name: make_pool(name, encoder, data, images)}
        with ProcessPoolExecutor(processes, get_context("spawn"), start_process, (pools,)) as pool:

            def run(job: Callable[[int], Row | None]) -> Row:
                return summary(list(pool.map(job, range(draws))))

            for table in chosen:
                rows = TABLES[table][0](name, run)
                results[table] = {"weights": weights, "transform": encoder.transform.digest, "rows": rows}
                write_json(out, results)
                print(f"{table}: {len(rows)} rows", flush=True)


@app.command()
def tables(results: Path = RESULTS) -> None:
    """Prints the tables as Markdown."""
    for name, table in json.loads(results.read_text()).items():
        headings = [key for key in table["rows"][0] if key != "draws"]
        rows = [[cell(key, row.get(key, "")) for key in headings] for row in table["rows"]]
        print(f"\n{name} ({table['weights']})\n\n{markdown_table(headings, rows)}")


def cell(key: str, value: Any) -> str:
    if key in ("images", "fitted", "held_out", "groups_seen") or isinstance(value, str):
        return value if isinstance(value, str) else f"{value:.0f}"
    return f"{value:.1%}"


if __name__ == "__main__":
    app()
