"""From JPEG files in tar shards to scores on one GPU: whether pixels are right, what each stage takes, where time goes.

python studies/gpu_decode.py --out FOLDER                      # some minutes on a GPU, with nvImageCodec installed
python studies/gpu_decode.py --only check,stages               # parts: check, stages, stream
python studies/gpu_decode.py --fake --tiny --out FOLDER        # only that the script itself works, without a GPU

The tables of docs/performance.md. Files are made from sample photos, or from noise with their spectrum where
scikit-image is not installed.
"""

import io
import json
import os
import tarfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from queue import Empty
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
import typer
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from discopatch import Detector
from discopatch.batch import score_to
from discopatch.bench.tables.writers import markdown_table
from discopatch.encoders import FeatureBatch
from discopatch.errors import MissingExtraError
from discopatch.images import Decoder, Limits, NamedImage, Pixels, Processes, Transform, gpu_decode, read_batches
from discopatch.images.gpu_decode import JpegDecoder, NvImageCodec, read_jpeg_header
from discopatch.images.tensors import resize_batch
from discopatch.images.samples import PHOTOS, sample_photos
from discopatch.images.source import list_source
from discopatch.pretrained import DEFAULT_WEIGHTS
from gpu_bench import photo_like_noise

Row = dict[str, Any]
PARTS = ("check", "stages", "stream")
KINDS: dict[str, dict[str, Any]] = {
    "4:2:0": {"subsampling": 2},
    "4:2:2": {"subsampling": 1},
    "4:4:4": {"subsampling": 0},
    "progressive": {"progressive": True},
    "grey": {"grey": True},
}
UPSAMPLING = {"interpolated": ":fancy_upsampling=1", "repeated": ":fancy_upsampling=0"}
QUALITY = 90
A_SHARD = 1024  # images
OTHERS: tuple[Decoder, ...] = ("pillow", "scaled")


class PillowJpegs:
    """Looks like a decoder of JPEG files on a GPU, and decodes with Pillow; for tests, and to try this script."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, tuple[int, int, int]]] = []  # files, and the shape that was expected of them
        self.unreadable: set[bytes] = set()

    @property
    def decoded(self) -> int:
        return sum(count for count, _ in self.calls)

    def decode(self, files: Sequence[bytes], shape: tuple[int, int, int]) -> list[Tensor | None]:
        self.calls.append((len(files), shape))
        return [None if data in self.unreadable else self._read(data, shape) for data in files]

    def _read(self, data: bytes, shape: tuple[int, int, int]) -> Tensor | None:
        try:
            image = np.array(Image.open(io.BytesIO(data)).convert("L" if shape[2] == 1 else "RGB"))
        except OSError:
            return None
        found = torch.from_numpy(image.reshape(*image.shape[:2], shape[2]))
        return found if tuple(found.shape) == shape else None


@dataclass(frozen=True)
class Plan:
    """How much is made and timed."""

    device: torch.device
    distinct: int  # images of each size
    repeats: int
    batch: int
    images: dict[int, int]  # in shards, by the side of the files
    normal: int  # images that the detector is fitted on
    by_processor: int  # images that processes decode, to compare
    weights: str = DEFAULT_WEIGHTS

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"


def main(
    out: Annotated[Path, typer.Option(help="Folder for gpu_decode.json and gpu_decode.md.")] = Path(),
    only: Annotated[str, typer.Option(help=f"Some of {', '.join(PARTS)}.")] = ",".join(PARTS),
    fake: Annotated[bool, typer.Option("--fake", help="Pillow in place of nvImageCodec.")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="As little as possible.")] = False,
    batch: Annotated[int, typer.Option(help="Images that pass together.")] = 256,
    images: Annotated[int, typer.Option(help="Files of 1024 pixels in shards; four times as many of 256.")] = 16384,
    workers: Annotated[int, typer.Option(help="Processes that decode on cores, to compare.")] = os.cpu_count() or 1,
    processes: Annotated[str, typer.Option(help="Numbers of processes that share the GPU.")] = "1,2,4",
) -> None:
    """Writes a JSON file and a page of tables, part by part."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    plan = Plan(device, 256, 20, batch, {1024: images, 256: 4 * images}, 120, 2048)
    if tiny:
        plan = Plan(device, 12, 2, 8, {320: 24, 256: 24}, 40, 8, "natural-small-v1")
    if fake:
        use_pillow()
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"made": describe(plan, fake=fake)}
    chosen = only.split(",")
    files = {side: jpeg_files(plan.distinct, side) for side in plan.images}
    found["made"]["bytes a file"] = {str(side): int(np.mean([*map(len, made)])) for side, made in files.items()}
    if "check" in chosen:
        found["pixels"] = check(plan, fake=fake)
        write(out, found)
    if "stages" in chosen:
        found["stages"] = [row for side, made in files.items() for row in stages(plan, side, made, fake=fake)]
        write(out, found)
    if "stream" in chosen:
        with TemporaryDirectory() as folder:
            for name, row in stream(plan, files, Path(folder), workers, [*map(int, processes.split(","))], fake=fake):
                print(name, row, flush=True)
                found.setdefault(name, []).append(row)
                write(out, found)
    print((out / "gpu_decode.md").read_text())


def use_pillow() -> None:
    gpu_decode.open_decoder = lambda device: PillowJpegs()  # type: ignore[assignment]


def describe(plan: Plan, *, fake: bool) -> dict[str, Any]:
    name = torch.cuda.get_device_name() if plan.on_gpu else "none"
    return {"gpu": name, "torch": torch.__version__, "fake": fake, "cores": os.cpu_count(), "batch": plan.batch}


def write(out: Path, found: dict[str, Any]) -> None:
    """What there is so far, so that nothing is lost when the time is over."""
    (out / "gpu_decode.json").write_text(json.dumps(found, indent=2) + "\n")
    page = [f"{found['made']}\n"]
    for name, rows in found.items():
        if isinstance(rows, list) and rows:
            columns = list(dict.fromkeys(column for row in rows for column in row))
            cells = [[text(row.get(column)) for column in columns] for row in rows]
            page += [f"## {name}", markdown_table(columns, cells), ""]
    (out / "gpu_decode.md").write_text("\n".join(page))


def text(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else "" if value is None else f"{value}"


# Files


def photos(count: int, side: int) -> list[Pixels]:
    """(side, side, 3) each: parts of sample photos, enlarged, or noise that has the spectrum of photos."""
    rng = np.random.default_rng(side)
    try:
        known = list(sample_photos(PHOTOS).values())
    except MissingExtraError:
        few = photo_like_noise(min(count, 32), side, seed=0)
        return [np.roll(few[n % len(few)], rng.integers(side, size=2), (0, 1)) for n in range(count)]
    found = []
    for number in range(count):
        photo = known[number % len(known)]
        length = int(rng.integers(200, min(photo.shape[:2]) + 1))
        top, left = (int(rng.integers(whole - length + 1)) for whole in photo.shape[:2])
        part = Image.fromarray(photo[top : top + length, left : left + length])
        large = np.asarray(part.resize((side, side), Image.Resampling.BICUBIC), np.float32)
        found.append(np.clip(large + rng.normal(0, 3, large.shape), 0, 255).astype(np.uint8))  # enlarged, it is smooth
    return found


def jpeg(pixels: Pixels, *, grey: bool = False, **options: Any) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert("L") if grey else image).save(file, "JPEG", **{"quality": QUALITY, **options})
    return file.getvalue()


def jpeg_files(count: int, side: int) -> list[bytes]:
    with ThreadPoolExecutor() as pool:
        return list(pool.map(jpeg, photos(count, side)))


def write_shards(folder: Path, files: Sequence[bytes], count: int, *, a_shard: int = A_SHARD) -> list[Path]:
    """So many images in tar shards, each file again and again under other names."""
    folder.mkdir(parents=True)
    paths = []
    for first in range(0, count, a_shard):
        paths.append(folder / f"{first // a_shard:05}.tar")
        with tarfile.open(paths[-1], "w") as archive:
            for number in range(first, min(first + a_shard, count)):
                info = tarfile.TarInfo(f"{number:08}.jpg")
                info.size = len(files[number % len(files)])
                archive.addfile(info, io.BytesIO(files[number % len(files)]))
    return paths


# Whether pixels are right


def decoder_of(plan: Plan, options: str, *, fake: bool) -> JpegDecoder:
    return PillowJpegs() if fake else NvImageCodec(plan.device, options=options)


def check(plan: Plan, *, fake: bool) -> list[Row]:
    """Levels by which pixels differ from Pillow's, whole and in the square, of each kind of file; twice in a row."""
    side, rows = max(plan.images), []
    made = photos(min(plan.distinct, 32), side)
    for kind, options in KINDS.items():
        files = [jpeg(pixels[:, : side - 24], **options) for pixels in made]
        expected = [np.asarray(Image.open(io.BytesIO(data))).reshape(side, side - 24, -1) for data in files]
        for name, option in UPSAMPLING.items():
            decoder = decoder_of(plan, option, fake=fake)
            decoder.decode(files[::-1], expected[0].shape)  # so that buffers are used again
            found = decoder.decode(files, expected[0].shape)
            read = [(one.cpu().numpy(), other) for one, other in zip(found, expected, strict=True) if one is not None]
            row: Row = {"files": kind, "chroma": name, "read": f"{len(read)} of {len(files)}"}
            if read:
                whole = np.array([np.abs(one.astype(int) - other).mean() for one, other in read])
                largest = max(int(np.abs(one.astype(int) - other).max()) for one, other in read)
                one, other = (resized([pair[place] for pair in read], plan.device) for place in (0, 1))
                square = np.abs(one.astype(int) - other)
                row |= {
                    "mean difference": float(whole.mean()),
                    "largest": largest,
                    "in the square": float(square.mean()),
                    "largest there": int(square.max()),
                }
            rows.append(row)
    files = [jpeg(pixels) for pixels in made]
    usual, ours = (
        np.stack([image.pixels for batch in read_all(files, each, plan) for image in batch.items if is_image(image)])
        for each in (Transform(), Transform(decoder="nvimgcodec"))
    )
    difference = np.abs(usual.astype(int) - ours)
    rows.append({"files": "4:2:0, read as images", "in the square": float(difference.mean())})
    rows[-1]["largest there"] = int(difference.max())
    return rows


def is_image(item: object) -> bool:
    return isinstance(item, NamedImage)


def read_all(source: object, transform: Transform, plan: Plan, **options: Any) -> Iterator[Any]:
    return read_batches([source], transform=transform, size=plan.batch, device=plan.device, **options)


def resized(images: Sequence[NDArray[np.uint8]], device: torch.device) -> NDArray[np.uint8]:
    found = resize_batch(torch.from_numpy(np.stack(images)).to(device), Transform())
    return found.cpu().numpy()


# What each stage takes


def stages(plan: Plan, side: int, files: Sequence[bytes], *, fake: bool) -> list[Row]:
    """Microseconds an image of each stage alone, of a batch of files in memory."""
    batch = [files[number % len(files)] for number in range(plan.batch)]
    shape, rows = (side, side, 3), []

    def add(name: str, call: Callable[[], object], count: int = plan.batch) -> None:
        seconds = timed(call, plan)
        rows.append({"side": side, "stage": name, "us an image": 1e6 * seconds / count, "images/s": count / seconds})

    add("headers", lambda: [read_jpeg_header(data) for data in batch])
    with TemporaryDirectory() as folder:
        (shard,) = write_shards(Path(folder) / "shard", files, plan.batch)
        add("reading a tar shard", lambda: list(list_source(shard).items()))
    for name, option in UPSAMPLING.items():
        decoder = decoder_of(plan, option, fake=fake)
        add(f"decoding, chroma {name}", lambda: decoder.decode(batch, shape))  # noqa: B023 - called at once
        add(
            f"decoding and resizing, chroma {name}",
            lambda: resize_batch(torch.stack([x for x in decoder.decode(batch, shape) if x is not None]), Transform()),  # noqa: B023
        )
    if plan.on_gpu and not fake:
        rows += smaller_batches(plan, side, batch)
    images = torch.randint(256, (plan.batch, *shape), dtype=torch.uint8, device=plan.device)
    add("resizing, as a product", lambda: resize_batch(images, Transform()))
    add("resizing, torch's interpolate", lambda: interpolated(images, 256))
    add("batches from memory", lambda: [*read_all(batch, Transform(decoder="nvimgcodec"), plan, workers=4)])
    return rows


def smaller_batches(plan: Plan, side: int, files: Sequence[bytes]) -> list[Row]:
    """The rate of decoding alone by the number of files that are given at once."""
    rows = []
    decoder = NvImageCodec(plan.device)
    for count in (16, 32, 64, 128):
        seconds = timed(lambda: decoder.decode(files[:count], (side, side, 3)), plan)  # noqa: B023 - called at once
        row = {"side": side, "stage": f"decoding {count} at once", "us an image": 1e6 * seconds / count}
        rows.append({**row, "images/s": count / seconds})
    return rows


def interpolated(images: Tensor, size: int) -> Tensor:
    values = F.interpolate(images.permute(0, 3, 1, 2).float(), (size, size), mode="bicubic", antialias=True)
    return values.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def timed(call: Callable[[], object], plan: Plan) -> float:
    """Median seconds of a call, until the GPU has done all of it."""
    spent = []
    for _ in range(plan.repeats + 1):
        start = time.perf_counter()
        call()
        if plan.on_gpu:
            torch.cuda.synchronize()
        spent.append(time.perf_counter() - start)
    return median(spent[1:])


# From shards to scores


def stream(
    plan: Plan, files: dict[int, list[bytes]], folder: Path, workers: int, processes: Sequence[int], *, fake: bool
) -> Iterator[tuple[str, Row]]:
    """Images a second from tar shards, as far as each step of the way to Parquet; and how decoders agree on scores."""
    detector = fitted(plan, folder)
    for parity in detector.decoders_:
        yield "parity", {"fitted": "nvimgcodec", **asdict(parity)}
    for side, count in plan.images.items():
        shards = write_shards(folder / str(side), files[side], count)
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
            for name, rate in fresh.submit(steps, plan, folder / "detector", shards, fake=fake).result():
                yield "stream", {"side": side, "decoder": "nvimgcodec", "until": name, "images/s": rate}
        for number in processes:
            rate = by_processes(plan, folder, shards, number, fake=fake)
            ending = "es" if number > 1 else ""
            yield (
                "stream",
                {
                    "side": side,
                    "decoder": "nvimgcodec",
                    "until": f"Parquet, {number} process{ending}",
                    "images/s": rate,
                },
            )
        encoder = detector.encoder_
        for decoder in OTHERS:
            encoder.transform = Transform(decoder=decoder)  # whatever their parity: they are timed
            reading = Processes(workers) if workers > 4 else workers
            rate = rate_of(few(encoder.batches(shards, workers=reading), plan.by_processor))
            yield "stream", {"side": side, "decoder": decoder, "until": f"features, {reading}", "images/s": rate}
        encoder.transform = detector.transform_


def fitted(plan: Plan, folder: Path) -> Detector:
    """A detector of files of the largest size, also saved."""
    detector = Detector(
        plan.weights,
        decoder="nvimgcodec",
        precision="bfloat16" if plan.on_gpu else "float32",
        device=plan.device.type,
        batch_size=plan.batch,
        false_alarm_rate=0.05,
    )
    detector.fit(jpeg_files(plan.normal, max(plan.images)), also_decoders=OTHERS)
    detector.save(folder / "detector")
    return detector


def steps(plan: Plan, path: Path, shards: Sequence[Path], *, fake: bool) -> list[tuple[str, float]]:
    """The rate of one process up to each step, each with all that comes before it."""
    detector = load(path, plan.device.type, plan.batch, fake=fake)
    limits, encoder = Limits(), detector.encoder_
    deque(encoder.batches(shards), 0)  # so that buffers are there, and files in the system's memory
    return [
        ("files in memory", rate_of([item] for item in list_source(shards).items(limits))),
        ("pixels on the GPU", rate_of(batch.items for batch in read_all(shards, encoder.transform, plan))),
        ("features", rate_of(batch.items for batch in encoder.batches(shards))),
        ("predictions", rate_of([each] for each in detector.predict_images(shards))),
    ]


def load(path: Path, device: str, batch: int, *, fake: bool) -> Detector:
    """In a process of its own."""
    if fake:
        use_pillow()
    return Detector.load(path, device=device, batch_size=batch)


def rate_of(batches: Iterable[Sized]) -> float:
    """Images a second, from the first batch to the last."""
    whole = iter(batches)
    next(whole)
    began, images = time.perf_counter(), sum(map(len, whole))
    return images / (time.perf_counter() - began)


def few(batches: Iterator[FeatureBatch], most: int) -> Iterator[Sized]:
    """Of so many images."""
    for batch in batches:
        yield batch.items
        most -= len(batch.items)
        if most <= 0:
            return


def by_processes(plan: Plan, folder: Path, shards: Sequence[Path], count: int, *, fake: bool) -> float:
    """Images a second of all processes together, from when all are ready until the last one has written its scores."""
    context = get_context("spawn")
    ready, done = context.Barrier(count), context.Queue()
    out = folder / f"scores-{shards[0].parent.name}-{count}"
    device = plan.device.type
    running = [
        context.Process(
            target=score_rank,
            args=(folder / "detector", device, plan.batch, shards, out, rank, count, ready, done, fake),
        )
        for rank in range(count)
    ]
    for process in running:
        process.start()
    spans: list[tuple[int, float, float]] = []
    while len(spans) < count:
        with suppress(Empty):
            spans.append(done.get(timeout=1))
        if any(process.exitcode for process in running):
            raise RuntimeError("a process that scores has failed: see above")
    for process in running:
        process.join()
    return sum(images for images, _, _ in spans) / (
        max(end for _, _, end in spans) - min(began for _, began, _ in spans)
    )


def score_rank(
    detector: Path,
    device: str,
    batch: int,
    shards: Sequence[Path],
    out: Path,
    rank: int,
    world: int,
    ready: Barrier,
    done: "Queue[tuple[int, float, float]]",
    fake: bool,
) -> None:
    """What `discopatch score --out --rank --world` does, after a first shard that is not counted."""
    loaded = load(detector, device, batch, fake=fake)
    score_to(loaded, shards[:1], out / f"warm-up-{rank}", rank=0, world=1)
    ready.wait()
    began = time.time()
    run = score_to(loaded, shards, out / "scores", rank=rank, world=world)
    done.put((run.images, began, time.time()))


if __name__ == "__main__":
    typer.run(main)
