"""From JPEG files in tar shards to scores on one GPU: whether pixels are right, what each stage takes, where time goes.

python studies/gpu_decode.py --out FOLDER                      # some minutes on a GPU, with nvImageCodec installed
python studies/gpu_decode.py --only check,stages               # parts: check, stages, stream
python studies/gpu_decode.py --fake --tiny --out FOLDER        # only that the script itself works, without a GPU

The tables of docs/performance.md. Files are made from sample photos, or from noise with their spectrum where
scikit-image is not installed. Scores go to Parquet, or to .npy files where pyarrow is not installed.
"""

import io
import json
import os
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
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
from discopatch.bench.tables.writers import markdown_table
from discopatch.calibration import p_values
from discopatch.encoders import Encoder, Precision
from discopatch.errors import MissingExtraError
from discopatch.images import Decoder, Limits, NamedImage, Pixels, Processes, Transform, gpu_decode, read_batches
from discopatch.images.gpu_decode import JpegDecoder, NvImageCodec
from discopatch.images.items import open_shards
from discopatch.images.jpeg import read_jpeg_header
from discopatch.images.resample import resize_batch
from discopatch.images.samples import PHOTOS, sample_photos
from discopatch.images.source import list_entries
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
A_SHARD = 4096  # images


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
    workers: Annotated[int, typer.Option(help="Processes to compare with.")] = os.cpu_count() or 1,
) -> None:
    """Writes a JSON file and a page of tables, part by part."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    plan = Plan(device, 256, 20, batch, {1024: images, 256: 4 * images}, 400, 2048)
    if tiny:
        plan = Plan(device, 12, 2, 8, {320: 24, 256: 24}, 40, 8, "natural-small-v1")
    if fake:
        gpu_decode.open_decoder = lambda device: PillowJpegs()  # type: ignore[assignment]
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
            found["stream"], found["parity"] = stream(plan, files, Path(folder), workers)
        write(out, found)
    print((out / "gpu_decode.md").read_text())


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


def write_shards(folder: Path, files: Sequence[bytes], count: int) -> list[Path]:
    """So many images in tar shards, each file again and again under other names."""
    folder.mkdir(parents=True)
    paths = []
    for first in range(0, count, A_SHARD):
        paths.append(folder / f"{first // A_SHARD:05}.tar")
        with tarfile.open(paths[-1], "w") as archive:
            for number in range(first, min(first + A_SHARD, count)):
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
        add("reading a tar shard", lambda: list(open_shards(list_entries(shard, Limits()), Limits())))
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
    plan: Plan, files: dict[int, list[bytes]], folder: Path, workers: int
) -> tuple[list[Row], list[dict[str, Any]]]:
    """Images a second from shards to files of scores, by decoder and size; and how decoders agree on scores."""
    rows, parities = [], []
    precision: Precision = "bfloat16" if plan.on_gpu else "float32"
    others: tuple[Decoder, ...] = ("pillow", "scaled")
    for side, count in plan.images.items():
        normal = jpeg_files(plan.normal, side)
        detector = Detector(
            plan.weights,
            decoder="nvimgcodec",
            precision=precision,
            device=plan.device.type,
            batch_size=plan.batch,
            false_alarm_rate=0.05,
        )
        detector.fit(normal, also_decoders=others)
        parities += [{"side": side, "fitted": "nvimgcodec", **asdict(each)} for each in detector.decoders_]
        shards = write_shards(folder / str(side), files[side], count)
        encoder = detector.encoder_
        some = shards[:1]
        score_shards(detector, encoder, some, folder / "warm-up", workers=4, most=4 * plan.batch)
        rows.append({"side": side, "decoder": "nvimgcodec", **score_shards(detector, encoder, shards, folder / "a", 8)})
        rows.append({"side": side, "decoder": "nvimgcodec, without a head", **pass_shards(encoder, shards)})
        for name in others:
            encoder.transform = Transform(decoder=name)  # whatever their parity: they are timed
            reading = Processes(workers) if workers > 4 else workers
            timing = score_shards(detector, encoder, some, folder / name, reading, most=plan.by_processor)
            rows.append({"side": side, "decoder": f"{name}, {reading}", **timing})
    return rows, parities


def score_shards(
    detector: Detector,
    encoder: Encoder,
    shards: Sequence[Path],
    out: Path,
    workers: int | Processes,
    most: int | None = None,
) -> Row:
    """Names, scores, p-values, decisions and z-scores, a file a shard; seconds by what the main thread did."""
    out.mkdir(parents=True, exist_ok=True)
    spent = dict.fromkeys(("waiting for features", "head", "writing"), 0.0)
    head, calibration, limit = detector.scorer_.head, detector.calibration_scores_, detector.threshold_
    images, began = 0, time.perf_counter()
    for shard in shards:
        columns: dict[str, list[Any]] = {"name": [], "score": [], "p_value": [], "is_ood": [], "z": []}
        batches = iter(encoder.batches(shard, workers=workers))
        if most is not None:
            batches = islice(batches, -(-most // encoder.batch_size))
        while True:
            start = time.perf_counter()
            batch = next(batches, None)
            spent["waiting for features"] += time.perf_counter() - start
            if batch is None:
                break
            if batch.features is None:
                continue
            start = time.perf_counter()
            scores, z, _ = head.outputs(batch.features)
            columns["name"] += [item.name for item in batch.items if is_image(item)]
            columns["score"].append(scores)
            columns["p_value"].append(p_values(scores, calibration))
            columns["is_ood"].append(scores > limit)
            columns["z"].append(z)
            images += len(scores)
            spent["head"] += time.perf_counter() - start
        start = time.perf_counter()
        write_scores(out / shard.stem, columns, detector.component_names)
        spent["writing"] += time.perf_counter() - start
    seconds = time.perf_counter() - began
    return {"images": images, "seconds": seconds, "images/s": images / seconds, **spent}


def pass_shards(encoder: Encoder, shards: Sequence[Path]) -> Row:
    began, images = time.perf_counter(), 0
    for shard in shards:
        images += sum(len(batch.items) for batch in encoder.batches(shard, workers=8))
    seconds = time.perf_counter() - began
    return {"images": images, "seconds": seconds, "images/s": images / seconds}


def write_scores(path: Path, columns: dict[str, list[Any]], components: Sequence[str]) -> None:
    arrays = {name: np.concatenate(values) for name, values in columns.items() if name != "name" and values}
    z = arrays.pop("z", np.empty((0, 0)))
    arrays |= {f"z_{name}": z[:, place] for place, name in enumerate(components)}
    if find_spec("pyarrow") is None:
        np.save(path.with_suffix(".npy"), np.rec.fromarrays([np.array(columns["name"]), *arrays.values()]))
        return
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"name": columns["name"], **arrays})
    pyarrow.parquet.write_table(table, path.with_suffix(".parquet"))


if __name__ == "__main__":
    typer.run(main)
