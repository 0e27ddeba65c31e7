"""What Ray adds to the time of the same work by plain processes: small images in tar shards to Parquet.

python studies/ray_overhead.py                                  # 20,000 images, as many workers as there are cores
python studies/ray_overhead.py --images 400 --shards 4          # whether it works

The table of docs/scale.md, and docs/results/ray-overhead.json. The engines take turns, forwards and then backwards,
each time with a new folder of scores: plain processes are `discopatch score --rank i --world n`, from the start of the
first to the end of the last; Ray is `discopatch score --engine ray` with as many actors, on a cluster of this machine
that runs already, and one time with the start of the cluster. All folders must be equal to the bit. The detector is a
quick one, which looks at four patches of an image: with a slower one what Ray adds would be a smaller share.
"""

import io
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from PIL import Image
from rich.console import Console

from common import in_both_orders, write_between
from discopatch import Detector
from discopatch.cluster.ray_session import connected_ray
from discopatch.errors import DiscopatchError
from discopatch.images.samples import PHOTOS, crops, sample_photos
from discopatch.pretrained import SMALL_WEIGHTS
from discopatch.utils import write_json

PLAIN, RUNNING, STARTED = "plain processes", "Ray, on a cluster that runs", "Ray, with the start of the cluster"
SIZE = 128  # pixels of an image
OBJECT_STORE = 200_000_000  # bytes


def main(
    images: Annotated[int, typer.Option(help="In all shards together.")] = 20_000,
    shards: Annotated[int, typer.Option(help="Tar files.")] = 40,
    workers: Annotated[int, typer.Option(help="Processes, or actors.")] = os.cpu_count() or 1,
    weights: Annotated[str, typer.Option(help="Released weights of the detector.")] = SMALL_WEIGHTS,
    patches: Annotated[int, typer.Option(help="Of each image.")] = 4,
    out: Annotated[Path | None, typer.Option(help="JSON file.")] = Path("docs/results/ray-overhead.json"),
    page: Annotated[Path | None, typer.Option(help="Page with the mark of the table.")] = Path("docs/scale.md"),
) -> None:
    """Prints the table, and writes it between the marks of the page."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="ray-overhead-") as place:
        root = Path(place)
        fit_detector(root / "detector.safetensors", weights, patches)
        write_shards(root / "source", images, shards)
        work = Work(root, workers)

        def measure(engine: str) -> list[float]:
            seconds = work.run(engine)
            console.print(f"{engine}: {seconds:.1f} s", highlight=False)
            return [seconds]

        times = in_both_orders((PLAIN, RUNNING), measure)
        times[STARTED] = measure(STARTED)
        work.check_equal()
    result = {
        "images": images,
        "shards": shards,
        "pixels": SIZE,
        "weights": weights,
        "patches": patches,
        "workers": workers,
        "seconds": {name: [round(each, 2) for each in found] for name, found in times.items()},
    }
    text = table(result)
    print(text)
    if out is not None:
        write_json(out, result)
    if page is not None:
        write_between(page, "ray overhead", text)


def fit_detector(path: Path, weights: str, patches: int) -> None:
    photos = crops(sample_photos(PHOTOS), 12, size=256, seed=0)
    mixed = [photos[place].pixels for place in np.random.default_rng(0).permutation(len(photos))]
    Detector(weights, patches=patches, false_alarm_rate=0.1, device="cpu").fit(mixed).save(path)


def write_shards(folder: Path, images: int, shards: int) -> None:
    """Crops of sample photos as JPEG, of which each stands several times under names of its own."""
    folder.mkdir()
    encoded = []
    for image in crops(sample_photos(PHOTOS), 50, size=SIZE, seed=1):
        content = io.BytesIO()
        Image.fromarray(image.pixels).save(content, "jpeg", quality=90)
        encoded.append(content.getvalue())
    for shard in range(shards):
        with tarfile.open(folder / f"{shard:05d}.tar", "w") as archive:
            for number in range(shard, images, shards):
                member = tarfile.TarInfo(f"{number:06d}.jpg")
                member.size = len(encoded[number % len(encoded)])
                archive.addfile(member, io.BytesIO(encoded[number % len(encoded)]))


class Work:
    """The same images to be scored, again and again, each time into a new folder."""

    def __init__(self, root: Path, workers: int) -> None:
        self.root, self.workers = root, workers
        self.folders: list[Path] = []

    def run(self, engine: str) -> float:
        """Seconds from the start of the first process to the end of the last."""
        self.folders.append(self.root / f"scores-{len(self.folders)}")
        if engine == PLAIN:
            ranks = [["--rank", str(rank), "--world", str(self.workers)] for rank in range(self.workers)]
            return self._seconds([[*each, "--workers", "1"] for each in ranks])
        with_ray = ["--engine", "ray", "--actors", str(self.workers), "--cpus-per-actor", "1", "--ray-address"]
        if engine == STARTED:
            return self._seconds([[*with_ray, "local"]])
        with connected_ray("local", cores=self.workers, object_store=OBJECT_STORE) as ray:
            return self._seconds([[*with_ray, ray.get_runtime_context().gcs_address]])

    def _seconds(self, commands: Sequence[Sequence[str]]) -> float:
        shared = [sys.executable, "-m", "discopatch", "score", str(self.root / "source"), "--device", "cpu"]
        shared += ["--detector", str(self.root / "detector.safetensors"), "--out", str(self.folders[-1])]
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        started = time.monotonic()
        running = [
            subprocess.Popen([*shared, *each], env=one_thread, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            for each in commands
        ]
        for process in running:
            _, said = process.communicate()
            if process.returncode:
                raise DiscopatchError(f"a process failed: {said.decode(errors='replace')[-2000:]}")
        return time.monotonic() - started

    def check_equal(self) -> None:
        """Raises unless all folders have the same files to the bit."""
        first, *others = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in self.folders)
        if any(other != first for other in others):
            raise DiscopatchError("the engines wrote different files")


def table(result: Mapping[str, Any]) -> str:
    """In Markdown, with the times as ratios to that of plain processes."""
    medians = {name: statistics.median(each) for name, each in result["seconds"].items()}
    shape = f"{result['images']:,} images of {result['pixels']} px in {result['shards']} tar shards"
    rows = [f"| {shape}, {result['workers']} workers | seconds | images/s | times plain |", "|---|---:|---:|---:|"]
    for name, seconds in medians.items():
        rate, ratio = result["images"] / seconds, seconds / medians[PLAIN]
        rows.append(f"| {name} | {seconds:.1f} | {rate:,.1f} | {ratio:.3f} |")
    return "\n".join(rows)


if __name__ == "__main__":
    typer.run(main)
