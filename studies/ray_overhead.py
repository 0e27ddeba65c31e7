"""What Ray adds to the time of the same work by plain processes: images in tar shards to Parquet.

python studies/ray_overhead.py                                  # 20,000 images, as many workers as there are cores
python studies/ray_overhead.py --images 400 --shards 4          # whether it works
python studies/ray_overhead.py --gpu --images 100000 --shards 100 --workers 2      # two actors on one GPU

The tables of docs/scale.md, and docs/results/ray-overhead.json. The engines take turns, forwards and then backwards,
each time with a new folder of scores: plain processes are `discopatch score --rank i --world n`, from the start of the
first to the end of the last; Ray is `discopatch score --engine ray` with as many actors, on a cluster of this machine
that runs already, and one time with the start of the cluster. All folders must be equal to the bit.

On cores the images are small and the detector is a quick one, which looks at four patches of an image: with a slower
one what Ray adds would be a smaller share. With --gpu they are JPEG files of 1024 pixels, decoded on the GPU, and the
detector is the default one in bfloat16; all workers share one GPU.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from common import in_both_orders, write_between
from discopatch import Detector
from discopatch.batch.ray_session import connected_ray
from discopatch.errors import DiscopatchError
from discopatch.images.samples import PHOTOS, crops, sample_photos
from discopatch.pretrained import SMALL_WEIGHTS
from discopatch.utils import write_json
from gpu_decode import jpeg, jpeg_files, write_shards

PLAIN, RUNNING, STARTED = "plain processes", "Ray, on a cluster that runs", "Ray, with the start of the cluster"
OBJECT_STORE = 200_000_000  # bytes


@dataclass(frozen=True)
class Plan:
    """What is scored, and by what."""

    images: int
    shards: int
    workers: int
    gpu: bool = False

    @property
    def pixels(self) -> int:
        return 1024 if self.gpu else 128

    @property
    def mark(self) -> str:
        return "ray overhead on a gpu" if self.gpu else "ray overhead"

    def detector(self) -> Detector:
        if self.gpu:
            options: dict[str, Any] = {"decoder": "nvimgcodec", "precision": "bfloat16", "device": "cuda"}
        else:
            options = {"weights": SMALL_WEIGHTS, "patches": 4, "device": "cpu"}
        return Detector(**options, false_alarm_rate=0.1)

    def files(self, count: int) -> list[bytes]:
        """JPEG files of parts of sample photos."""
        if self.gpu:
            return jpeg_files(count, self.pixels)
        photos = sample_photos(PHOTOS)
        found = crops(photos, ceil(count / len(photos)), size=self.pixels, seed=1)
        return [jpeg(found[place].pixels) for place in np.random.default_rng(0).permutation(len(found))]

    def write(self, folder: Path) -> None:
        """The images in tar shards."""
        write_shards(folder, self.files(min(self.images, 600)), self.images, a_shard=ceil(self.images / self.shards))


def main(
    images: Annotated[int, typer.Option(help="In all shards together.")] = 20_000,
    shards: Annotated[int, typer.Option(help="Tar files.")] = 40,
    workers: Annotated[int, typer.Option(help="Processes, or actors.")] = os.cpu_count() or 1,
    gpu: Annotated[bool, typer.Option("--gpu", help="Decode and compute on a GPU, which the workers share.")] = False,
    out: Annotated[Path | None, typer.Option(help="JSON file.")] = Path("docs/results/ray-overhead.json"),
    page: Annotated[Path | None, typer.Option(help="Page with the mark of the table.")] = Path("docs/scale.md"),
) -> None:
    """Prints the table, and writes it between the marks of the page."""
    console, plan = Console(), Plan(images, shards, workers, gpu)
    with tempfile.TemporaryDirectory(prefix="ray-overhead-") as place:
        root = Path(place)
        detector = plan.detector().fit(plan.files(96))
        detector.save(root / "detector.safetensors")
        plan.write(root / "source")
        work = Work(root, plan)

        def measure(engine: str) -> list[float]:
            seconds = work.run(engine)
            console.print(f"{engine}: {seconds:.1f} s", highlight=False)
            return [seconds]

        times = in_both_orders((PLAIN, RUNNING), measure)
        times[STARTED] = measure(STARTED)
        work.check_equal()
    result = {
        **asdict(plan),
        "pixels": plan.pixels,
        "weights": detector.weights,
        "patches": detector.patches,
        "seconds": {name: [round(each, 2) for each in found] for name, found in times.items()},
    }
    text = table(result)
    print(text)
    if out is not None:
        before = json.loads(out.read_text()) if out.exists() else {}
        write_json(out, {**before, plan.mark: result})
    if page is not None:
        write_between(page, plan.mark, text)


class Work:
    """The same images to be scored, again and again, each time into a new folder."""

    def __init__(self, root: Path, plan: Plan) -> None:
        self.root, self.plan = root, plan
        self.folders: list[Path] = []

    def run(self, engine: str) -> float:
        """Seconds from the start of the first process to the end of the last."""
        self.folders.append(self.root / f"scores-{len(self.folders)}")
        workers, cores = self.plan.workers, max(1, (os.cpu_count() or 1) // self.plan.workers) if self.plan.gpu else 1
        if engine == PLAIN:
            ranks = [["--rank", str(rank), "--world", str(workers)] for rank in range(workers)]
            return self._seconds([[*each, "--workers", str(cores)] for each in ranks])
        with_ray = ["--engine", "ray", "--actors", str(workers), "--cpus-per-actor", str(cores)]
        if self.plan.gpu:
            with_ray += ["--gpus-per-actor", str(1 / workers)]
        if engine == STARTED:
            return self._seconds([[*with_ray, "--ray-address", "local"]])
        with connected_ray("local", cores=workers * cores, object_store=OBJECT_STORE) as ray:
            return self._seconds([[*with_ray, "--ray-address", ray.get_runtime_context().gcs_address]])

    def _seconds(self, commands: Sequence[Sequence[str]]) -> float:
        device = ["--device", "cuda", "--batch-size", "256"] if self.plan.gpu else ["--device", "cpu"]
        shared = [sys.executable, "-m", "discopatch", "score", str(self.root / "source"), *device]
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
