"""Other kinds of images against photos, beside what the way they came would do to the photos themselves."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from discopatch.benchmark.bench import Bench, Report, Scores, Seen, compare, figures, score
from discopatch.benchmark.metrics import Estimate
from discopatch.benchmark.pool import PART
from discopatch.benchmark.routes import Route, Storage, routes_of, travel
from discopatch.benchmark.suites import OOD_SETS, PHOTOS_AT_227, Encoded, ImageSet, shard_files
from discopatch.images import Pixels
from discopatch.scoring import Head

Views = dict[str, dict[str, Estimate]]  # by view, then by head

VIEWS = ("auroc", "control", "matched")
FITTED_STORAGE = Storage(quality=92)  # how the photos to fit on are stored, at the size of the transform


def ood_report(bench: Bench, folder: Path, photos: Sequence[Encoded], clean: Seen, heads: Mapping[str, Head]) -> Report:
    """For each set three figures by each head, and the way its images are stored.

    auroc: the set against the test photos; control: the test photos along the set's route against themselves;
    matched: the set against the test photos along its route.
    """
    normal = score(clean, heads)
    sets: Report = {}
    estimates: list[Views] = []
    for name in (*OOD_SETS, PHOTOS_AT_227):
        files = shard_files(folder / f"{name}.tar")
        images = bench.load(name, files[: bench.plan.limit])
        routes = routes_of(name, [file.data for file in files], len(photos), seed=bench.plan.seed)
        shifted = score(bench.look(images.pixels), heads)
        routed = score(bench.look(along_routes(bench, name, photos, routes)), heads)
        found = three_views(bench, name, normal, shifted, routed)
        sets[name] = {view: figures(each) for view, each in found.items()} | describe(routes, len(images))
        if name in OOD_SETS:
            estimates.append(found)
    return {"sets": sets, "means": mean_views(estimates)}


def three_views(bench: Bench, name: str, normal: Scores, shifted: Scores, routed: Scores) -> Views:
    """The set against photos, routed photos against photos, the set against routed photos."""
    photos = bench.drawn("natural test", len(normal["combined"]))
    others = bench.drawn(name, len(shifted["combined"]))
    return {
        "auroc": compare(normal, shifted, (photos, others)),
        "control": compare(normal, routed, (photos, photos)),
        "matched": compare(routed, shifted, (photos, others)),
    }


def mean_views(estimates: Sequence[Views]) -> Report:
    """Over the sets, by view and head."""
    return {
        view: figures({head: Estimate.mean([each[view][head] for each in estimates]) for head in estimates[0][view]})
        for view in VIEWS
    }


def describe(routes: Sequence[Route], images: int) -> Report:
    """How many images, and by which sizes and storages they came."""
    qualities = [route.storage.quality for route in routes]
    return {
        "images": images,
        "route": {
            "sizes": list(routes[0].sizes),
            "without loss": qualities.count(None),
            "jpeg qualities": sorted({quality for quality in qualities if quality is not None}),
        },
    }


def along_routes(bench: Bench, name: str, photos: Sequence[Encoded], routes: Sequence[Route]) -> Pixels:
    """(photos, size, size, 3): the photos from their files, each along its route."""
    transform, done, parts = bench.dense.weights.transform, 0, list[Pixels]()
    files = [photo.data for photo in photos]
    starts = range(0, len(photos), PART)
    calls = (partial(travel, files[at : at + PART], routes[at : at + PART], transform) for at in starts)
    for part in bench.pool.stream(calls):
        done += len(part)
        bench.tell(f"photos by the way of {name}", done, len(photos))
        parts.append(part)
    return np.concatenate(parts)


def fitted_photos_report(
    bench: Bench, photos: Sequence[Encoded], calibration: ImageSet, clean: Seen, heads: Mapping[str, Head]
) -> Report:
    """What sets the photos to fit on apart from the test photos: they were stored once more, and trained on.

    control: the test photos stored in the same way against themselves; photos: such photos, of which the head has seen
    none but the discriminator all, against the test photos.
    """
    transform = bench.dense.weights.transform
    route = Route((transform.size,), FITTED_STORAGE)
    stored = score(bench.look(along_routes(bench, "the photos to fit on", photos, [route] * len(photos))), heads)
    others = calibration.of(slice(bench.plan.limit))
    drawn = bench.drawn("natural test", len(photos)), bench.drawn("natural calibration", len(others))
    normal = score(clean, heads)
    return {
        "control": figures(compare(normal, stored, (drawn[0], drawn[0]))),
        "photos": figures(compare(normal, score(bench.look(others.pixels), heads), drawn)),
    }
