"""Speed on a GPU: one image, batches in both precisions, and files in tar shards to scores by each decoder.

python studies/gpu.py speed --out gpu.json              # a minute on a GPU
python studies/gpu.py decode --out decode.json          # some minutes, with nvImageCodec installed
python studies/gpu.py speed --tiny --device cpu         # only that the script itself works

The tables of docs/performance.md and docs/scale.md. Passes are measured forwards and then backwards. Files are JPEG,
made from sample photos. One process reads and scores; `discopatch score --rank --world` runs several.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch.utils.flop_counter import FlopCounterMode

from common import in_both_orders, jpeg_files, milliseconds, print_rows, write_shards
from discopatch import Detector
from discopatch.encoders import DiscriminatorEncoder, Precision
from discopatch.images import Decoder, NamedImage, Processes, Transform, read_images
from discopatch.pretrained import DEFAULT_WEIGHTS, PRETRAINED, load_pretrained
from discopatch.utils import write_json

Row = dict[str, Any]
BATCHES = (1, 16, 64, 256)
WARM_UP = 5
DECODERS: tuple[Decoder, ...] = ("nvimgcodec", "pillow", "scaled")

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)

Out = Annotated[Path | None, typer.Option(help="JSON file of the results.")]
Tiny = Annotated[bool, typer.Option("--tiny", help="As little as possible.")]


@app.command()
def speed(
    out: Out = None,
    tiny: Tiny = False,
    device: Annotated[str, typer.Option(help="auto takes a GPU where there is one.")] = "auto",
    repeats: Annotated[int, typer.Option(help="Passes of each kind.")] = 50,
) -> None:
    """Milliseconds from pixels in memory to features in memory, by weights, precision and batch size."""
    rows = []
    for name in ("natural-small-v1",) if tiny else PRETRAINED:
        weights = load_pretrained(name)
        with FlopCounterMode(display=False) as counter:
            DiscriminatorEncoder(weights).extract_pixels(np.zeros((1, *[weights.transform.size] * 2, 3), np.uint8))
        work = counter.get_total_flops() / 1e12
        for batch in BATCHES[:1] if tiny else BATCHES:
            passes = {each: make_pass(name, each, device, batch) for each in precisions(device)}
            times = in_both_orders(passes, partial(seconds_of_passes, passes, 2 if tiny else repeats))
            for precision, seconds in times.items():
                middle, spread = milliseconds(seconds)
                rate = 1e3 * batch / middle
                row = {"weights": name, "precision": precision, "batch": batch, "ms": round(middle, 3), "range": spread}
                rows.append({**row, "images/s": round(rate, 1), "TFLOP/s": round(rate * work, 2)})
    print_rows(rows)
    if out is not None:
        write_json(out, {"device": device_text(), "torch": torch.__version__, "rows": rows})


def precisions(device: str) -> tuple[Precision, ...]:
    return ("float32", "bfloat16") if device != "cpu" and torch.cuda.is_available() else ("float32",)


def make_pass(name: str, precision: Precision, device: str, batch: int) -> Callable[[], object]:
    weights = load_pretrained(name)
    encoder = DiscriminatorEncoder(weights, device=device, batch_size=batch, precision=precision)
    shape = (batch, weights.transform.size, weights.transform.size, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    return lambda: encoder.extract_pixels(pixels)


def seconds_of_passes(passes: dict[Precision, Callable[[], object]], repeats: int, name: Any) -> list[float]:
    found = []
    for _ in range(WARM_UP + repeats):
        start = time.perf_counter()
        passes[name]()
        found.append(time.perf_counter() - start)
    return found[WARM_UP:]


@app.command()
def decode(
    out: Out = None,
    tiny: Tiny = False,
    images: Annotated[int, typer.Option(help="Files of each size in shards.")] = 16384,
    batch: Annotated[int, typer.Option(help="Images that pass together.")] = 256,
    workers: Annotated[int, typer.Option(help="Processes of the decoders on cores.")] = 16,
) -> None:
    """Pixels beside those of Pillow, and images a second from tar shards to pixels and to predictions, by decoder."""
    on_gpu = torch.cuda.is_available()
    decoders = DECODERS if on_gpu else DECODERS[1:]
    count, distinct, sides = (24, 40, (320,)) if tiny else (images, 256, (1024, 256))
    rows, differences = [], []
    with TemporaryDirectory() as place:
        for side in sides:
            files = jpeg_files(distinct, side)
            shards = write_shards(Path(place) / str(side), files, count)
            detector = Detector(
                "natural-small-v1" if tiny else DEFAULT_WEIGHTS,
                false_alarm_rate=0.1,
                batch_size=batch,
                precision="bfloat16" if on_gpu else "float32",
                reason_images=0,
                detection_images=0,
            ).fit(files)
            detector.save(Path(place) / "detector")
            usual = pixels_of(files, "pillow")
            for decoder in decoders:
                difference = np.abs(pixels_of(files, decoder).astype(int) - usual)
                row = {"side": side, "decoder": decoder}
                differences.append({**row, "mean": float(difference.mean()), "largest": int(difference.max())})
                reading: Any = 2 if tiny else workers if decoder == "nvimgcodec" else Processes(workers)
                loaded = Detector.load(Path(place) / "detector", decoder=decoder, batch_size=batch)
                transform = Transform(decoder=decoder)
                for until, stream in (
                    ("pixels", read_images(shards, transform=transform, workers=reading)),
                    ("predictions", loaded.predict_iter(shards, workers=reading)),
                ):
                    start = time.perf_counter()
                    done = sum(1 for _ in stream)
                    rows.append({**row, "until": until, "images/s": round(done / (time.perf_counter() - start), 1)})
    print_rows(differences)
    print_rows(rows)
    if out is not None:
        write_json(out, {"device": device_text(), "images": count, "differences": differences, "rows": rows})


def pixels_of(files: list[bytes], decoder: Decoder) -> Any:
    stream = read_images(files, transform=Transform(decoder=decoder))
    return np.stack([each.pixels for each in stream if isinstance(each, NamedImage)])


def device_text() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} CPU threads"


if __name__ == "__main__":
    app()
