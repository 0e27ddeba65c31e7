"""Small defects: what is found and where, by network, and false alarms over many draws.

python studies/defects.py quality --data ROOT --draws 3 --out quality.json                  # the same with places
python studies/defects.py false-alarms --data ROOT --photos train.tar --only photos --networks natural-v3 --draws 20
python studies/defects.py tables quality-*.json

ROOT/{tiles,kolektor,castings,solar}/{fit,normal,defect} hold images, ROOT/tiles/mask masks under the same names. A draw
splits the normal images anew; the first of `quality` is that of the folders. Images are sorted by aspect ratio, so that
many of one shape pass together. Classifiers get the same pixels and head as ours. `tables` joins runs of some sets.
"""

import json
import time
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import sha256
from itertools import chain, pairwise, product
from pathlib import Path
from types import SimpleNamespace as Options
from typing import Annotated, Any, Self

import numpy as np
import torch
import typer
from torch import Tensor

from common import print_rows
from discopatch import Detector
from discopatch.bench.networks.fetch import BACKBONES, load_backbone
from discopatch.calibration import AUTO_RATES, share_interval
from discopatch.corruptions.places import change_place
from discopatch.detection import LARGEST, SIZES
from discopatch.encoders import OutsideNetwork, resolve_device
from discopatch.errors import NormalImagesWarning
from discopatch.evaluation import Masks, Measure, auroc_measure, pixel_measures, share_above
from discopatch.explain.regions import first_touches
from discopatch.images import NamedImage, list_source, read_images
from discopatch.metrics import auroc, count_pixels, draw_resamples, middle, resample
from discopatch.utils import write_json

Row = dict[str, Any]
Result = tuple[dict[str, list[Row]], Any]  # tables, and details, of all that is done
RATE = 0.05
TESTED = "given", "held out", "normal", "defects", "AUROC", "found", "false alarms", "found at 5 % of normal", "ms"
QUALITY = "set", "network", "draw", "pixels", *TESTED
PLACES = "set", "network", "change", "images", "AUPRO", "pixel AUROC", "found", "region touches", "of found"
ALARMS = "set", "network", "mask", "promised %", "draws", "false alarms %", "standard error", "kept"
IGNORED = {"no": None, "yes": [(16, 16, 96, 64)]}  # by whether there is a mask: left, top, width, height
by_aspect: Any = partial(sorted, key=lambda each: each.pixels.shape[1] / each.pixels.shape[0])


class Classifier(OutsideNetwork):
    """A fetched classifier as the network of a detector."""

    def __init__(self, name: str) -> None:
        backbone = load_backbone(name)
        super().__init__(name, backbone.digest, side=None, any_side=True)
        self.network = backbone.network
        self.check()

    def layers(self, x: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        return self.network.layers(self.network.normalise(x.permute(0, 2, 3, 1)))

    def on_device(self, device: torch.device) -> Self:
        self.network.to(device)
        return self


def fit(options: Options, images: list[NamedImage], network: str, ignore: Any = None, **changed: Any) -> Detector:
    """A fitted detector. The order begins anywhere, as its first image chooses the resolution and never calibrates."""
    first, ordered = np.random.default_rng(changed.get("seed", 0)).integers(len(images)), by_aspect(images)
    size = int(options.resolution) if options.resolution.isdigit() else options.resolution
    same: Row = {"device": options.device, "batch_size": 32, "reason_images": 0, "detection_images": 0}
    detector = Detector(Classifier(network) if network in BACKBONES else network, resolution=size, **same, **changed)
    with warnings.catch_warnings(action="ignore", category=NormalImagesWarning):
        return detector.fit(ordered[first:] + ordered[:first], ignore=ignore)


def load(source: Path) -> Any:
    """The decoded images of a folder or shard, at most 1000, so that draws do not read them again."""
    stream = read_images(list_source(str(source)).draw(1000))
    return by_aspect(each for each in stream if isinstance(each, NamedImage))


def load_parts(folder: Path) -> list[Any]:
    """The images to fit, other normal ones, and defects; of exact copies the first."""
    seen, found = set[bytes](), list[Any]()
    for part in ("fit", "normal", "defect"):
        distinct = {sha256(each.pixels.tobytes()).digest(): each for each in reversed(load(folder / part))}
        found.append(by_aspect(image for key, image in distinct.items() if key not in seen))
        seen |= distinct.keys()
    return found


def in_points(found: Any) -> str:
    """A measure, or the share of flags that are true, such as "93.0 [91.3, 94.7]"."""
    if not isinstance(found, Measure):
        found = len(found) and Measure(float(np.mean(found)), *share_interval(int(sum(found)), len(found)))
    return f"{100 * found.value:.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]" if found else "-"


def over_draws(values: Sequence[Any]) -> str:
    return "-" if None in values else f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=len(values) > 1):.1f}"


def quality(options: Options) -> Iterator[Result]:
    """AUROC, what is found at promised rates, and the difference between one network and the next."""
    tables, details = {name: list[Row]() for name in ("quality", "draws", "differences")}, list[Any]()
    for name in options.only.split(","):
        first, other, defects = load_parts(options.data / name)
        images, found = [*first, *other], {network: list[Any]() for network in options.networks.split(",")}
        for draw, (network, results) in product(range(options.draws), found.items()):
            rng = np.random.default_rng(draw)
            order = rng.permutation(len(images)) if draw else np.arange(len(images))
            given = [images[number] for number in rng.permutation(order[: len(first)])[: options.fitted]]
            detector = fit(options, given, network, seed=draw, false_alarm_rate=RATE)
            usual = detector.score(by_aspect(images[number] for number in order[len(first) :]))
            start = time.perf_counter()  # the first pass is slower
            wrong = detector.score(defects)
            ms = 1e3 * (time.perf_counter() - start) / len(wrong)
            scored: Any = given, detector.calibration_scores_, usual, wrong
            level, cut = detector.threshold_, np.sort(usual)[-1 - int(RATE * len(usual))]
            texts = map(in_points, (auroc_measure(usual, wrong, seed=0), wrong > level, usual > level, wrong > cut))
            values = name, network, draw, str(detector.transform_.largest), *map(len, scored), *texts, ms
            tables["quality"].append(dict(zip(QUALITY, values, strict=True)))
            print(*tables["quality"][-1].values(), sep=" | ", flush=True)
            results.append((usual, wrong, detector.calibration_))
            details.append([name, network, draw, *(each.tolist() for each in scored[1:])])
            yield tables, details
        for network, results in found.items():
            areas = over_draws([auroc(*each[:2]) for each in results])
            row = {"set": name, "network": network, "given": len(given), "draws": options.draws, "AUROC": areas}
            for rate, (which, title) in product(AUTO_RATES, enumerate(("false alarms", "found"))):
                above = [share_above(each[which], each[2], rate) for each in results]
                row[f"{title} at {100 * rate:g} %"] = over_draws([each and each.share for each in above])
            tables["draws"].append(row)
        drawn = draw_resamples(len(usual), seed=0, name="normal"), draw_resamples(len(wrong), seed=0, name="defects")
        for pair in pairwise(found):  # with intervals from the same resamples
            two = [[(auroc(*each[:2]), resample(each[0], each[1], drawn)[0]) for each in found[n]] for n in pair]
            gaps = [Measure(a - b, *middle(c - d)) for (a, c), (b, d) in zip(*two, strict=True)]
            row = {"set": name, "given": len(given), "networks": " - ".join(pair), "first draw": in_points(gaps[0])}
            tables["differences"].append({**row, "AUROC": over_draws([each.value for each in gaps])})
        yield tables, details


def places(options: Options) -> Iterator[Result]:
    """Maps, and the regions of the largest peak, beside the masks of defects and of made-up changes."""
    rows: list[Row] = []
    for name in options.only.split(","):
        first, normal, defects = load_parts(options.data / name)
        rng = np.random.default_rng(0)
        given = [first[number] for number in rng.permutation(len(first))[: options.fitted]]
        chosen = by_aspect(normal[number] for number in rng.permutation(len(normal))[: options.changed])
        groups: dict[str, list[Any]] = {}
        for kind, each in product(SIZES, chosen):
            for size in (size for size in SIZES[kind] if size <= LARGEST[kind] * min(each.pixels.shape[:2])):
                new = change_place(kind, each.pixels, each.pixels, size=size, rng=rng)
                groups.setdefault(f"{kind} {size} px", []).append((NamedImage(each.name, new.pixels), new.mask))
        if (folder := options.data / name / "mask").is_dir():
            masks = {Path(each.name).stem: each.pixels.max(2) > 127 for each in load(folder)}
            groups["defects"] = [(each, mask) for each in defects if (mask := masks[Path(each.name).stem]).any()]
        for network in options.networks.split(","):
            detector = fit(options, given, network, false_alarm_rate=RATE)
            usual = read_places(detector, [(each, None) for each in normal])[0]
            found = {label: read_places(detector, pairs) for label, pairs in groups.items()}
            made = (found[label] for label in groups if label != "defects")
            found["all changes"] = [list(chain(*each)) for each in zip(*made, strict=True)]  # intervals too narrow
            for label, (counts, flagged, touched) in found.items():
                both = [touch for touch, flag in zip(touched, flagged, strict=True) if flag]
                texts = map(in_points, (*pixel_measures(usual, counts, seed=0), flagged, touched, both))
                rows.append(dict(zip(PLACES, (name, network, label, len(counts), *texts), strict=True)))
                print(*rows[-1].values(), sep=" | ", flush=True)
            yield {"places": rows}, None


def read_places(detector: Detector, pairs: Sequence[tuple[NamedImage, Any]]) -> list[list[Any]]:
    """Of each image the counts of its pixels, whether it is flagged, and whether its first region touches the mask."""
    masks, found = Masks([mask for _, mask in pairs], len(pairs), None, detector), []
    for place, (image, mask) in enumerate(pairs):
        one = detector.explain(image)
        counts = count_pixels(one.anomaly_map, masks.read(place, image.name))
        found.append((counts, bool(one.prediction.is_ood), mask is not None and first_touches(one.regions, mask)))
    return [list(each) for each in zip(*found, strict=True)]


def false_alarms(options: Options) -> Iterator[Result]:
    """The mean share of false alarms over draws at each promised rate, without and with a mask of ignored pixels."""
    shares: dict[tuple[Any, ...], list[float]] = {}
    for name in options.only.split(","):
        images = load(options.photos) if name == "photos" else by_aspect(chain(*load_parts(options.data / name)[:2]))
        for draw in range(options.first, options.first + options.draws):
            order = np.random.default_rng(draw).permutation(len(images))
            given, tested = ([images[each] for each in part] for part in np.split(order, [options.fitted or 240]))
            for network, masked in product(options.networks.split(","), IGNORED):
                detector = fit(options, given, network, seed=draw, ignore=IGNORED[masked])
                scores = detector.score(by_aspect(tested))
                for rate in AUTO_RATES:
                    if found := share_above(scores, detector.calibration_, rate):
                        shares.setdefault((name, network, masked, rate), []).append(100 * found.share)
            print(name, "draw", draw, flush=True)
            yield {"false alarms": mean_shares(shares)}, [[*key, each] for key, each in shares.items()]


def mean_shares(shares: dict[tuple[Any, ...], list[float]]) -> list[Row]:
    rows = []
    for (*key, rate), each in shares.items():
        mean, error = float(np.mean(each)), float(np.std(each, ddof=len(each) > 1)) / len(each) ** 0.5
        values = *key, 100 * rate, len(each), mean, error, mean <= 100 * rate + 2 * error
        rows.append(dict(zip(ALARMS, values, strict=True)))
    return rows


def main(
    study: Annotated[str, typer.Argument(help="quality, places, false-alarms or tables.")],
    files: Annotated[list[Path] | None, typer.Argument(help="JSON files of earlier runs, for tables.")] = None,
    data: Annotated[Path, typer.Option(help="Folder of the image sets.")] = Path(),
    photos: Annotated[Path, typer.Option(help="Normal photos, for false-alarms: a folder or a shard.")] = Path(),
    out: Annotated[Path, typer.Option(help="JSON file of the results so far.")] = Path("defects.json"),
    only: Annotated[str, typer.Option(help="Image sets, also photos.")] = "tiles,kolektor,castings,solar",
    networks: Annotated[str, typer.Option(help="Released weights and fetched classifiers.")] = "natural-v3,resnet50",
    draws: Annotated[int, typer.Option(help="Splits of the normal images.")] = 1,
    first: Annotated[int, typer.Option(help="The first split of false-alarms, to divide them among processes.")] = 0,
    fitted: Annotated[int | None, typer.Option(help="Normal images given to a fit, at most.")] = None,
    changed: Annotated[int, typer.Option(help="Normal images that are changed in each way.")] = 40,
    resolution: Annotated[str, typer.Option(help="auto, or pixels along the short side.")] = "auto",
    device: Annotated[str, typer.Option(help="auto takes a GPU where there is one.")] = "auto",
    cudnn: Annotated[bool, typer.Option(help="It is slow on images of many shapes.")] = True,
) -> None:
    options, tables = Options(**locals()), dict[str, list[Row]]()
    torch.backends.cudnn.enabled = cudnn
    if study == "tables":
        shares: dict[tuple[Any, ...], list[float]] = {}
        for found in (json.loads(file.read_text()) for file in files or ()):
            for name, rows in found["tables"].items():
                tables.setdefault(name, []).extend(rows)
            for *key, each in found["details"] if "false alarms" in found["tables"] else ():
                shares.setdefault(tuple(key), []).extend(each)
        if shares:
            tables["false alarms"] = mean_shares(shares)
    else:
        settings = {name: str(each) for name, each in vars(options).items()} | {"device": str(resolve_device(device))}
        for tables, details in {"quality": quality, "places": places, "false-alarms": false_alarms}[study](options):
            write_json(out, {"options": settings, "tables": tables, "details": details})
    for rows in filter(None, tables.values()):
        print()
        print_rows(rows)


if __name__ == "__main__":
    main.__doc__ = __doc__
    typer.run(main)
