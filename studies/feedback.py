"""What people say about images after a fit: accepted alarms, updates, known misses; and what is promised then.

python studies/feedback.py promises       # confidence, selections, accepted alarms, updates and examples: draws
python studies/feedback.py defects        # known misses of whole detectors, by the number of examples

Both join docs/results/feedback.json. Images are the solar cells of elpv-dataset, of which statistics are computed once;
a draw fits, calibrates and tests a head without places on other cells. TILES of `defects` has the folders MT_Free,
MT_Blowhole, ... of https://github.com/abin24/Magnetic-tile-defect-datasets.
"""

import json
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.progress import track

from discopatch import Detector
from discopatch.calibration import p_values, select, sure_level, threshold
from discopatch.encoders import Features
from discopatch.errors import NormalImagesWarning
from discopatch.heads import ComponentsHead
from discopatch.heads.modes import Accepted, Mode
from discopatch.metrics import auroc
from discopatch.utils import write_json

RESULTS = Path("docs/results/feedback.json")
RATE, CONFIDENCE, FDR = 0.05, 0.95, 0.1
EXAMPLES = (0, 1, 5, 20)
Row = dict[str, Any]
Index = NDArray[np.intp]

app = typer.Typer(help=__doc__, add_completion=False)


def cells(count: int) -> dict[str, list[NDArray[np.uint8]]]:
    """Cells without a defect of two kinds, and defective ones of the first, in a random order."""
    images, defects, kinds = import_module("elpv_dataset.utils").load_dataset()
    order = np.random.default_rng(0).permutation(len(images))

    def those(kind: str, defect: float) -> list[NDArray[np.uint8]]:
        chosen = [at for at in order if kinds[at] == kind and defects[at] == defect][:count]
        return [np.repeat(images[at][..., None], 3, 2) for at in chosen]

    return {"normal": those("poly", 0), "other": those("mono", 0), "defect": those("poly", 1)}


class Draw:
    """A head that was fitted on some cells, calibrated on others, and tests the rest."""

    def __init__(self, pools: dict[str, Features], number: int, *, fitted: int = 120, examples: int = 0) -> None:
        self.pools, self.rng = pools, np.random.default_rng([7, number])
        self.order = {kind: self.rng.permutation(len(each.logits)) for kind, each in pools.items()}
        fit, self.held_out, self.new = np.split(self.order["normal"], [fitted, fitted + 99])
        shown, self.defects = np.split(self.order["defect"], [examples])
        defects = pools["defect"].statistics[shown] if examples else None
        head = ComponentsHead(defects=defects).fit(pools["normal"].select(fit))
        self.head: ComponentsHead = head
        self.known = self.scores("normal", self.held_out)

    def scores(self, kind: str, chosen: Index) -> NDArray[np.float64]:
        return self.head.score(self.pools[kind].select(chosen))

    def flagged(self, kind: str, chosen: Index) -> float:
        return float((self.scores(kind, chosen) > threshold(self.known, RATE)).mean())

    def accept(self, kind: str, chosen: Index, *, update: bool = False) -> None:
        """The chosen images become normal, each by itself or all as an update."""
        parts = [chosen] if update else chosen[:, None]
        modes = [
            Mode.of(
                Accepted("cell", "0" * 16, "", len(part)), self.pools[kind].select(part), [np.empty((0, 0), np.float32)]
            )
            for part in parts
        ]
        self.head = self.head.accept(modes)


def accepted_alarms(draw: Draw) -> Row:
    """False alarms of new cells, before and after all false alarms among other new cells are accepted."""
    seen, new = np.array_split(draw.new, 2)
    alarms = seen[draw.scores("normal", seen) > threshold(draw.known, RATE)]
    before = draw.flagged("normal", new), draw.flagged("defect", draw.defects)
    draw.accept("normal", alarms)
    after = draw.flagged("normal", new), draw.flagged("defect", draw.defects)
    names = "false alarms before", "found before", "false alarms", "found"
    return {**dict(zip(names, before + after, strict=True)), "accepted": len(alarms)}


def accepted_kind(draw: Draw, count: int) -> Row:
    """Cells of another kind, of which some are accepted."""
    shown, new = np.split(draw.order["other"], [count])
    draw.accept("other", shown)
    kinds = {"false alarms": ("normal", draw.new), "other kind": ("other", new), "found": ("defect", draw.defects)}
    return {"accepted": count, **{name: draw.flagged(*each) for name, each in kinds.items()}}


def updated(draw: Draw) -> Row:
    """An update by cells of another kind, on which it is calibrated."""
    remembered, held_out, new = np.split(draw.order["other"], [60, 60 + 59])
    before = draw.flagged("other", new)
    draw.accept("other", remembered, update=True)
    draw.known = draw.scores("other", held_out)
    return {"false alarms before": before, "false alarms": draw.flagged("other", new)}


def examples(draw: Draw, count: int) -> Row:
    """Cells of which some defects are shown; all are tested on the same."""
    tested = draw.defects[-200:]
    usual, found = draw.scores("normal", draw.new), draw.scores("defect", tested)
    shares = {"false alarms": draw.flagged("normal", draw.new), "found": draw.flagged("defect", tested)}
    return {"examples": count, **shares, "AUROC": auroc(usual, found)}


def selected(rng: np.random.Generator, calibration: int, defects: int) -> Row:
    """A list of 200 images with some that are 4 standard deviations off."""
    scores = np.concatenate([rng.normal(size=200 - defects), rng.normal(4, 1, size=defects)])
    found = select(p_values(scores, rng.normal(size=calibration)), FDR)
    normal = int((found < 200 - defects).sum())
    shares = {"normal among selected": normal / max(len(found), 1), "found": (len(found) - normal) / max(defects, 1)}
    return {"calibration images": calibration, "defects": defects, **shares}


def sure(rng: np.random.Generator, images: int, confidence: float) -> Row:
    """Whether the rate of one detector, known exactly for uniform scores, is above the rate."""
    level = sure_level(images, RATE, confidence) if confidence else RATE
    rate = 1 - threshold(rng.uniform(size=images), level)
    return {"calibration images": images, "confidence": confidence, "above the rate": rate > RATE, "mean rate": rate}


def summary(rows: list[Row]) -> Row:
    """The means of draws, with standard errors of what is measured."""
    found: Row = {"draws": len(rows)}
    for name in rows[0]:
        values = np.array([row[name] for row in rows], np.float64)
        found[name] = float(values.mean())
        if np.ptp(values):
            found[f"{name}, error"] = float(values.std(ddof=1) / np.sqrt(len(values)))
    return found


def tile_numbers(paths: Sequence[Path]) -> Index:
    """The tile of each image: numbers in names that follow closely are of one tile under several lights."""
    numbers = np.array([int(path.stem.rpartition("_")[2]) for path in paths])
    order = np.argsort(numbers)
    found = np.empty(len(paths), np.intp)
    found[order] = np.cumsum(np.diff(numbers[order], prepend=numbers[order][0]) > 100)
    return found


def in_tiles(paths: Sequence[Path], rng: np.random.Generator) -> list[tuple[int, str]]:
    """The images and their tiles, tile by tile in a random order."""
    tiles = tile_numbers(paths)
    rank = rng.permutation(tiles.max() + 1)
    return sorted((int(rank[tile]), str(path)) for tile, path in zip(tiles, paths, strict=True))


def apart(images: list[tuple[int, str]], count: int) -> tuple[list[str], list[str]]:
    """The first images, and those of other tiles."""
    first = images[:count]
    known = {tile for tile, _ in first}
    return [path for _, path in first], [path for tile, path in images if tile not in known]


def save(tables: dict[str, Any], out: Path) -> None:
    write_json(out, {**(json.loads(out.read_text()) if out.exists() else {}), **tables})
    print(json.dumps(tables, indent=1))


@app.command()
def promises(out: Path = RESULTS, draws: int = 40, images: int = 500, weights: str = "natural-v3") -> None:
    """Draws of every promise."""
    detector = Detector(weights, device="cpu")
    pools = {
        kind: detector.extract_features(each).without_places()
        for kind, each in track(cells(images).items(), "features")
    }
    rng, tables = np.random.default_rng(0), dict[str, Any]()
    tables["confidence"] = [
        summary([sure(rng, count, confidence) for _ in range(4000)])
        for count in (99, 299, 999)
        for confidence in (0.0, CONFIDENCE)
    ]
    tables["selection"] = [
        summary([selected(rng, count, wrong) for _ in range(2000)]) for count in (99, 999) for wrong in (0, 10, 40)
    ]

    def over(job: Callable[[Draw], Row], shown: int = 0) -> Row:
        return summary([job(Draw(pools, number, examples=shown)) for number in track(range(draws), str(job))])

    tables["accepted alarms"] = [over(accepted_alarms)]
    tables["accepted kind"] = [over(partial(accepted_kind, count=count)) for count in EXAMPLES]
    tables["update"] = [over(updated)]
    tables["examples"] = [over(partial(examples, count=count), count) for count in EXAMPLES]
    save({"weights": weights, "rate": RATE, **tables}, out)


@app.command()
def defects(
    tiles: Annotated[Path, typer.Option(help="Folder with MT_Free, MT_Blowhole, ...")],
    out: Path = RESULTS,
    draws: int = 3,
    shown: str = "MT_Crack",
) -> None:
    """Whole detectors of tiles, to which defects of one kind are shown, before and after."""
    found: dict[int, list[Row]] = {count: [] for count in EXAMPLES}
    paths = {each.name: sorted(each.glob("Imgs/*.jpg")) for each in sorted(tiles.iterdir()) if each.is_dir()}
    for draw in range(draws):
        rng = np.random.default_rng([9, draw])
        order = {kind: in_tiles(own, rng) for kind, own in paths.items()}
        (fitted, normal), (given, _) = (apart(order[kind], count) for kind, count in (("MT_Free", 300), (shown, 20)))
        groups = [tile for tile, _ in order["MT_Free"][: len(fitted)]]
        wrong = {kind: apart(own, 20)[1][:40] for kind, own in order.items() if kind != "MT_Free"}
        for count in EXAMPLES:
            detector = Detector(false_alarm_rate=RATE, reason_images=0, detection_images=0, resolution=256)
            with warnings.catch_warnings(action="ignore", category=NormalImagesWarning):
                detector.fit(fitted, groups=groups, examples=given[:count] or None)
            usual = detector.predict(normal[:200])
            row: Row = {"examples": count, "false alarms": float(usual.is_ood.mean())}
            for kind, images in wrong.items():
                flagged = detector.predict(images)
                row |= {kind: float(flagged.is_ood.mean()), f"AUROC {kind}": auroc(usual.scores, flagged.scores)}
            found[count].append(row)
            print(row, flush=True)
    save({"tiles": {"shown": shown, "rows": [summary(rows) for rows in found.values()]}}, out)


if __name__ == "__main__":
    app()
