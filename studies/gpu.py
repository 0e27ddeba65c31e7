"""Speed on a GPU: one image, batches in both precisions, and files in tar shards to scores by each decoder.

python studies/gpu.py speed --out gpu.json              # a minute on a GPU
python studies/gpu.py places --out places.json          # two minutes on a GPU
python studies/gpu.py decode --out decode.json          # some minutes, with nvImageCodec installed
python studies/gpu.py speed --tiny --device cpu         # only that the script itself works

The tables of docs/performance.md and docs/scale.md. Passes are measured forwards and then backwards. Files are JPEG,
made from sample photos. One process reads and scores; several may be started on one folder.
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import typer

from common import in_both_orders, jpeg_files, milliseconds, print_rows, write_shards
from discopatch import Detector
from discopatch.encoders import BASIC_KINDS, DiscriminatorEncoder, Features, Precision
from discopatch.heads import ComponentsHead, Head, PlaceModel, measure_shifts
from discopatch.heads.places import fit_places
from discopatch.images import Decoder, NamedImage, Pixels, Processes, Transform, read_images
from discopatch.pretrained import DEFAULT_WEIGHTS, PRETRAINED, load_pretrained
from discopatch.utils import prefetch, write_json

Row = dict[str, Any]
BATCHES = (1, 16, 64, 256)
PLACE_BATCHES = (64, 128, 256, 512)
WARM_UP = 5
DECODERS: tuple[Decoder, ...] = ("nvimgcodec", "pillow", "scaled")

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)

Out = Annotated[Path | None, typer.Option(help="JSON file of the results.")]
Device = Annotated[str, typer.Option(help="auto takes a GPU where there is one.")]
Tiny = Annotated[bool, typer.Option("--tiny", help="As little as possible.")]


@app.command()
def speed(
    out: Out = None,
    tiny: Tiny = False,
    device: Device = "auto",
    repeats: Annotated[int, typer.Option(help="Passes of each kind.")] = 50,
) -> None:
    """Milliseconds from pixels in memory to features in memory, by weights, precision and batch size."""
    rows = []
    for name in ("natural-small-v2",) if tiny else PRETRAINED:
        for batch in BATCHES[:1] if tiny else BATCHES:
            passes = {each: make_pass(name, each, device, batch) for each in precisions(device)}
            times = in_both_orders(passes, partial(seconds_of_passes, passes, 2 if tiny else repeats))
            for precision, seconds in times.items():
                middle, spread = milliseconds(seconds)
                rate = 1e3 * batch / middle
                row = {"weights": name, "precision": precision, "batch": batch, "ms": round(middle, 3), "range": spread}
                rows.append({**row, "images/s": round(rate, 1)})
    print_rows(rows)
    if out is not None:
        write_json(out, {"device": device_text(), "torch": torch.__version__, "rows": rows})


def precisions(device: str) -> tuple[Precision, ...]:
    return ("float32", "bfloat16") if device != "cpu" and torch.cuda.is_available() else ("float32",)


def make_pass(name: str, precision: Precision, device: str, batch: int) -> Callable[[], object]:
    encoder = make_encoder(name, precision, batch, device=device)
    shape = (batch, encoder.transform.size, encoder.transform.size, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    return lambda: encoder.extract_pixels(pixels)


def make_encoder(
    name: str, precision: Precision, batch: int, *, size: int | None = None, **options: Any
) -> DiscriminatorEncoder:
    """The encoder of these weights, by default for their size."""
    weights = load_pretrained(name)
    transform = weights.transform if size is None else Transform.whole(1.0, size, like=weights.transform)
    return DiscriminatorEncoder(weights, transform=transform, precision=precision, batch_size=batch, **options)


def seconds_of_passes(passes: dict[Precision, Callable[[], object]], repeats: int, name: Any) -> list[float]:
    found = []
    for _ in range(WARM_UP + repeats):
        start = time.perf_counter()
        passes[name]()
        found.append(time.perf_counter() - start)
    return found[WARM_UP:]


@app.command()
def places(
    out: Out = None,
    tiny: Tiny = False,
    device: Device = "auto",
    seconds: Annotated[float, typer.Option(help="Length of each measurement.")] = 0.7,
) -> None:
    """Images/s from pixels in memory to features, z-scores of places and scores; differences between precisions."""
    rows, differences = [], []
    for size in (64,) if tiny else (256, 512):
        make = partial(make_encoder, "natural-small-v2" if tiny else DEFAULT_WEIGHTS, device=device, size=size)
        normal, new = np.split(textures(44 if tiny else 256, size), [40 if tiny else 128])
        head, model = fit_components(make, normal)
        with_places: Row = {"kinds": ComponentsHead.needs, "compare": model}
        without: Row = {"kinds": (*BASIC_KINDS, "pooled")}
        steps = {"features": (without, None), "places": (with_places, None), "scores": (with_places, head)}
        exact = make("float32", 8, **with_places).extract_pixels(new)
        for precision in precisions(device):
            for batch in (4,) if tiny else PLACE_BATCHES if precision == "bfloat16" else PLACE_BATCHES[2:3]:
                row, pixels = (
                    {"size": size, "precision": precision, "batch": batch},
                    np.resize(new, (batch, *new[0].shape)),
                )
                for until, (options, scored_by) in steps.items():
                    rate = images_per_second(make(precision, batch, **options), scored_by, pixels, seconds)
                    rows.append({**row, "until": until, "images/s": round(rate)})
            found = make(precision, 8, **with_places).extract_pixels(new)
            scores, usual = head.score(found), head.score(exact)
            changes = {"z": found.places - exact.places, "score": (scores - usual) / usual.std()}
            largest = {f"{name}, largest change": float(np.abs(each).max()) for name, each in changes.items()}
            means = {f"{name}, mean change": float(np.abs(each).mean()) for name, each in changes.items()}
            differences.append({"size": size, "precision": precision, **largest, **means})
    print_rows(rows)
    print_rows(differences)
    if out is not None:
        write_json(out, {"device": device_text(), "torch": torch.__version__, "rows": rows, "differences": differences})


def textures(count: int, size: int) -> Pixels:
    """(count, size, size, 3): random walks, smooth as photos are."""
    walks = np.random.default_rng(0).normal(size=(count, size, size, 3)).astype(np.float32).cumsum(1).cumsum(2)
    found: Pixels = np.clip(128 + 50 * walks / walks.std((1, 2), keepdims=True), 0, 255).astype(np.uint8)
    return found


def fit_components(make: Callable[..., DiscriminatorEncoder], pixels: Pixels) -> tuple[Head, PlaceModel]:
    """A head with all parts and a model of places, on the device."""
    encoder, every = make("float32", 8, kinds=ComponentsHead.needs), np.arange(len(pixels))
    features = Features.concatenate(list(encoder.extract_each(pixels)))
    model = fit_places(
        lambda rows: map(torch.from_numpy, features.places[rows]), every, every, blocks=encoder.place_sizes, seed=0
    )
    shifts = measure_shifts(encoder.extract_pixels, pixels[:6], seed=0)
    head = ComponentsHead(layer_sizes=encoder.layer_sizes, places=model).fit(features, shifts)
    return head.to(encoder.device), model.model.to(encoder.device)


def images_per_second(encoder: DiscriminatorEncoder, head: Head | None, pixels: Pixels, seconds: float) -> float:
    """The rate of successive batches; the next one is started before the last is awaited."""
    done = -WARM_UP
    if head is not None:
        encoder.score_by(head.output, head.needs)
    for later in prefetch(map(encoder.start, repeat(pixels)), encoder.prefetched):
        later()
        done += 1
        if done <= 0:
            start = time.perf_counter()
        elif time.perf_counter() - start > seconds:
            break
    return done * len(pixels) / (time.perf_counter() - start)


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
                "natural-small-v2" if tiny else DEFAULT_WEIGHTS,
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
