"""Teaches the small network that reasons ask which known change a picture looks like, on photos.

python studies/learn_changes.py measure natural/train-0000.tar natural/train-0001.tar --out changes.npz
python studies/learn_changes.py teach changes.npz             # src/discopatch/explain/learnt.safetensors

Photos are changed in the known ways of `discopatch.heads.probes`, one in five without its colours, and described by
`discopatch.explain.descriptors`: the whole photo and one region of each. One photo in ten is kept to see how well the
network does. No corruption of the benchmark is seen.
"""

import hashlib
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import typer
from numpy.typing import NDArray
from rich.progress import track
from safetensors.torch import save_file
from torch import nn

from discopatch.explain.descriptors import descriptors
from discopatch.explain.learnt import PATH, drawn_in
from discopatch.explain.reasons import FORMS, SILENT, SMALLEST_SPREAD
from discopatch.heads.probes import PROBES, changed
from discopatch.images import NamedImage, Pixels, Transform, read_images
from discopatch.utils import write_atomically

SIZES = (256, 192, 128)  # pixels a side, in turn: smaller ones are sharper, and show no blocks of the files
REGION, TOGETHER = 64, 16  # pixels a side of regions, and photos that are changed at once
FORMS_EACH = 9  # ways in which a photo is changed
GREY = 5  # one in so many photos loses its colours
COLOURS = ("paler", "stronger")  # which grey photos cannot become
HELD_OUT = 10  # one in so many photos is not learnt from
HIDDEN = 128

app = typer.Typer(help=__doc__, add_completion=False)


class Described(NamedTuple):
    """Descriptors (pictures, numbers), which change each has (0: none, or 1 + its place in PROBES), and its photo."""

    values: NDArray[np.float32]
    change: NDArray[np.intp]
    photo: NDArray[np.intp]
    region: NDArray[np.bool_]


def describe(photos: Pixels, start: int) -> Described:
    """Some photos and a region of each, unchanged and changed in some of the ways; those that a change moved."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(start)
    transform = Transform(size=SIZES[start // TOGETHER % len(SIZES)])
    photos = np.stack([transform(photo) for photo in photos])
    grey = (start + np.arange(len(photos))) % GREY == 0
    photos[grey] = np.rint(photos[grey].mean(3, keepdims=True)).astype(np.uint8)
    place = rng.integers(0, len(squares(photos[:1])), len(photos))
    before = described(photos, place)
    scale = np.hypot(before.reshape(-1, before.shape[2]).std(0), SMALLEST_SPREAD)
    values, change, which = [before], [np.zeros(before.shape[:2], np.intp)], [np.ones(before.shape[:2], bool)]
    for number in rng.permutation(len(FORMS))[:FORMS_EACH]:
        owner, form = FORMS[number]
        after = described(changed(form, photos, seed=start), place)
        values.append(after)
        change.append(np.full(after.shape[:2], owner + 1))
        moved = np.square((after - before) / scale).mean(2) > SILENT**2
        which.append(moved & ~(grey & (list(PROBES)[owner] in COLOURS)))
    kept = np.stack(which)
    numbers = np.broadcast_to(start + np.arange(len(photos)), kept.shape)
    regions = np.broadcast_to(np.array([False, True])[:, None], kept.shape)
    return Described(np.stack(values)[kept], np.stack(change)[kept], numbers[kept], regions[kept])


def described(photos: Pixels, place: NDArray[np.intp]) -> NDArray[np.float32]:
    """(2, photos, descriptors): of the photos, and of one region of each."""
    parts = squares(photos)
    own = parts.reshape(len(photos), -1, *parts.shape[1:])[np.arange(len(photos)), place]
    return np.stack([descriptors(photos), descriptors(own)])


def squares(photos: Pixels) -> Pixels:
    """(B, size, size, 3) to (B x squares, REGION, REGION, 3)."""
    count, along = len(photos), photos.shape[1] // REGION
    parts = photos.reshape(count, along, REGION, along, REGION, 3).swapaxes(2, 3)
    return np.ascontiguousarray(parts).reshape(-1, REGION, REGION, 3)


@app.command()
def measure(photos: list[Path], out: Annotated[Path, typer.Option(help="Where the descriptors go.")]) -> None:
    """Describes the photos and changed ones."""
    stream = read_images(photos, transform=Transform(size=max(SIZES)))
    pixels = np.stack([item.pixels for item in stream if isinstance(item, NamedImage)])
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        starts = range(0, len(pixels), TOGETHER)
        work = [pool.submit(describe, pixels[start : start + TOGETHER], start) for start in starts]
        found = [each.result() for each in track(work, "photos")]
    values, change, photo, region = (np.concatenate(parts) for parts in zip(*found, strict=True))
    np.savez(out, values=values, change=change, photo=photo, region=region)


@app.command()
def teach(examples: Path, out: Path = PATH, epochs: int = 60, seed: int = 0, hidden: int = HIDDEN) -> None:
    """Teaches the network from the descriptors, says how well it does on the photos kept back, and writes it."""
    with np.load(examples) as stored:
        found = Described(**{name: stored[name] for name in Described._fields})
    centre, scale = found.values[found.change == 0].mean(0), found.values[found.change == 0].std(0)
    scale = np.hypot(scale, SMALLEST_SPREAD).astype(np.float32)
    inputs = torch.from_numpy(drawn_in((found.values - centre) / scale))
    targets = torch.from_numpy(found.change)
    kept_back = torch.from_numpy(found.photo % HELD_OUT == 1)
    network = taught(inputs[~kept_back], targets[~kept_back], hidden=hidden, epochs=epochs, seed=seed)
    for name, own in (("photos", ~found.region), ("regions", found.region)):
        judge(name, network, inputs, targets, kept_back & torch.from_numpy(own))
    save(out, network, centre, scale, examples=examples, seed=seed)


def taught(inputs: torch.Tensor, targets: torch.Tensor, *, hidden: int, epochs: int, seed: int) -> nn.Sequential:
    """Half of the weight is on unchanged pictures, and each change has as much as another."""
    torch.manual_seed(seed)
    changes = len(PROBES)
    network = nn.Sequential(
        nn.Linear(inputs.shape[1], hidden), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(hidden, 1 + changes),
    )  # fmt: skip
    count = targets.bincount(minlength=1 + changes).double()
    weights = torch.tensor([changes, *[1.0] * changes]) / count
    weights = (weights / weights.mean()).float()
    batch = 1024
    steps = epochs * len(inputs) // batch
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for _ in track(range(steps), "steps"):
        chosen = torch.randint(0, len(inputs), (batch,))
        loss = F.cross_entropy(network(inputs[chosen]), targets[chosen], weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return network.eval()


@torch.inference_mode()
def judge(name: str, network: nn.Sequential, inputs: torch.Tensor, targets: torch.Tensor, own: torch.Tensor) -> None:
    """Prints which share of each change is found where 5 % of unchanged pictures are taken for changed ones."""
    outputs, changes = network(inputs[own]), targets[own]
    odds = outputs[:, 1:] - outputs[:, :1]
    level = odds[changes == 0].amax(1).quantile(0.95)
    right = (odds.amax(1) > level) & (odds.argmax(1) == changes - 1)
    shares = {probe: right[changes == number].float().mean().item() for number, probe in enumerate(PROBES, 1)}
    print(
        f"{name}: {np.mean(list(shares.values())):.1%};",
        ", ".join(f"{key} {value:.0%}" for key, value in shares.items()),
    )


def save(
    out: Path,
    network: nn.Sequential,
    centre: NDArray[np.float32],
    scale: NDArray[np.float32],
    *,
    examples: Path,
    seed: int,
) -> None:
    tensors = {"centre": torch.from_numpy(centre), "scale": torch.from_numpy(scale)}
    for number, layer in enumerate(layer for layer in network if isinstance(layer, nn.Linear)):
        tensors |= {f"weight{number}": layer.weight.detach().T.contiguous(), f"bias{number}": layer.bias.detach()}
    digest = hashlib.sha256(examples.read_bytes()).hexdigest()
    write_atomically(out, lambda path: save_file(tensors, path, {"examples": digest, "seed": str(seed)}))


if __name__ == "__main__":
    app()
