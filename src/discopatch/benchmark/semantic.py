"""Other kinds of images against photos, beside what the way they came would do to the photos themselves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from discopatch.benchmark.bench import Bench, Report, Scores, Seen, compare, figures, score
from discopatch.benchmark.metrics import Estimate
from discopatch.benchmark.pool import PART
from discopatch.benchmark.reading import OOD_SETS, PHOTOS_AT_227, Encoded, ImageSet, shard_files
from discopatch.benchmark.routes import Route, routes_of, travel
from discopatch.images import Pixels
from discopatch.scoring import Head

Views = dict[str, dict[str, Estimate]]  # by view, then by head


@dataclass(frozen=True, eq=False)
class Photos:
    """The test photos: their files, and what is seen of them stored as the photos to fit on are, and as they come."""

    files: Sequence[Encoded]
    stored: Seen
    as_they_come: Seen

    def __len__(self) -> int:
        return len(self.files)


def ood_report(bench: Bench, folder: Path, photos: Photos, heads: Mapping[str, Head]) -> Report:
    """Four figures for each set and head, their means, and how the files of each set are stored."""
    sets: Report = {}
    estimates: list[Views] = []
    for name in (*OOD_SETS, PHOTOS_AT_227):
        files = shard_files(folder / f"{name}.tar")
        images = bench.load(name, files[: bench.plan.limit])
        routes = routes_of(name, [file.data for file in files], len(photos), seed=bench.plan.seed)
        found = views(bench, name, photos, images, along_routes(bench, name, photos.files, routes), heads)
        sets[name] = {view: figures(each) for view, each in found.items()} | describe(routes, len(images))
        if name in OOD_SETS:
            estimates.append(found)
    return {"sets": sets, "means": mean_views(estimates)}


def views(
    bench: Bench, name: str, photos: Photos, images: ImageSet, routed: Pixels, heads: Mapping[str, Head]
) -> Views:
    """Everything stored as the photos to fit on are, but for the last.

    auroc: the set against the test photos; control: the test photos along the set's route against themselves;
    matched: the set against the test photos along its route; as they come: the set against the test photos, none stored
    once more.
    """
    store = bench.plan.natural_storage.store_all
    normal, bare = score(photos.stored, heads), score(photos.as_they_come, heads)
    shifted, bare_shifted = score(bench.look(store(images.pixels)), heads), score(bench.look(images.pixels), heads)
    moved = score(bench.look(store(routed)), heads)
    same, other = bench.drawn("natural test", len(photos)), bench.drawn(name, len(images))
    return {
        "auroc": compare(normal, shifted, (same, other)),
        "control": compare(normal, moved, (same, same)),
        "matched": compare(moved, shifted, (same, other)),
        "as they come": compare(bare, bare_shifted, (same, other)),
    }


def mean_views(estimates: Sequence[Views]) -> Report:
    """Over the sets, by view and head."""
    return {
        view: figures({head: Estimate.mean([each[view][head] for each in estimates]) for head in heads})
        for view, heads in estimates[0].items()
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
    files, transform = [photo.data for photo in photos], bench.dense.weights.transform
    starts = range(0, len(photos), PART)
    calls = (partial(travel, files[at : at + PART], routes[at : at + PART], transform) for at in starts)
    parts, done = list[Pixels](), 0
    for part in bench.pool.stream(calls):
        done += len(part)
        bench.tell(f"photos by the way of {name}", done, len(photos))
        parts.append(part)
    return np.concatenate(parts)


def storage_report(bench: Bench, photos: Photos, calibration: ImageSet, heads: Mapping[str, Head]) -> Report:
    """What the storage of the photos to fit on does by itself, and what their having been trained on does.

    as they come: the test photos not stored once more against the same photos stored; calibration: photos of which the
    head has seen none but the discriminator all, against the test photos, everything stored alike.
    """
    others = calibration.of(slice(bench.plan.limit))
    same, other = bench.drawn("natural test", len(photos)), bench.drawn("natural calibration", len(others))
    normal: Scores = score(photos.stored, heads)
    return {
        "as they come": figures(compare(normal, score(photos.as_they_come, heads), (same, same))),
        "calibration": figures(compare(normal, score(bench.look(others.pixels), heads), (same, other))),
    }
