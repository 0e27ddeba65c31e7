"""What becomes of files that were damaged, or changed on purpose: refused with one error, or loaded and sound.

python studies/fuzz_files.py                             # docs/results/fuzz.json and the table
python studies/fuzz_files.py --count 200 --kind detector # a few of one kind

A tiny detector, its weights, a training run and an ONNX export are changed at random: their bytes; fields of their
JSON, by type and by size; names, shapes, types and numbers of their tensors; the graph. All but the first are sealed
again with a digest that fits, as an attacker would. Each kind is loaded in a process of its own, which may take no more
than 300 MB of address space beyond what it had before the load.
"""

import json
import resource
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor

from discopatch import Detector, Runtime, Weights
from discopatch.bench.tables.writers import markdown_table
from discopatch.encoders import DiscriminatorEncoder
from discopatch.errors import DiscopatchError, ImageError
from discopatch.export import export_detector
from discopatch.images import NamedImage, RefusalReason, Transform
from discopatch.images.samples import crops, sample_photos
from discopatch.model import Architecture, Networks
from discopatch.model.weights import HEADER
from discopatch.results import Predictor
from discopatch.seal import UNSEALED, seal
from discopatch.training import TrainingConfig
from discopatch.training.auxiliary import AuxiliaryDiscriminator
from discopatch.training.checkpoint import RunFolder, Trainable
from discopatch.training.presets import TINY
from discopatch.utils import file_digest, write_json

COUNT = 2000
MOST_BYTES = 300 * 10**6  # that a load may take
ARCHITECTURE = Architecture(patch_size=32, hidden=(8, 16), latent=8)
LARGEST_SCORED = 256  # pixels along a side: larger images are not what this study is about

# JSON in the place of a value, such as an attacker writes it and a library would not.
WRONG = (
    *("null", "true", "false", "0", "-1", "1", "0.5", "-0.5", "1e308", "1e999", "NaN", "-Infinity", "2147483648"),
    *("9223372036854775807", "1" * 30, "1" * 5000, '""', '"x"', '"NaN"', '"\\ud800"', '"\\u0000"', f'"{"x" * 10_000}"'),
    *("[]", "{}", "[null]", '[{"a": []}]', '{"a": 1, "a": 2}', "tru", "[" * 40 + "]" * 40, "[" * 100_000),
    *("[" + "[]," * 100_000 + "[]]", "[" + "0.5," * 10_000 + "1]", "[1e30, 0]", "[0, -1, 2]"),
)
HERE = "@here@"  # where such a value goes


def sample_images(count: int, *, seed: int = 0) -> list[NamedImage]:
    return crops(sample_photos(["temple"]), count, size=64, seed=seed)


@dataclass(frozen=True)
class Kind:
    """Files that are read together: how they are made, which are changed, and how they are loaded and tried."""

    make: Callable[[Path], object]  # in an empty folder
    load: Callable[[Path], Callable[[], bool]]  # returns the trial, which tells whether all is finite


# The four kinds


def tiny_weights() -> Weights:
    return Weights(Networks.from_seed(ARCHITECTURE, 0).discriminator, Transform(size=64))


@cache
def tiny_detector() -> Detector:
    return Detector(tiny_weights(), false_alarm_rate=0.1, device="cpu").fit(sample_images(60), workers=1)


def load_detector(folder: Path) -> Callable[[], bool]:
    detector = Detector.load(folder / "detector.safetensors", device="cpu")
    return lambda: is_sound(detector, detector.weights_.transform)


def load_weights(folder: Path) -> Callable[[], bool]:
    weights = Weights.load(folder / "weights.safetensors")

    def trial() -> bool:
        size = weights.transform.size
        if size > LARGEST_SCORED:
            return True
        pixels = np.random.default_rng(0).integers(0, 256, (1, size, size, 3), np.uint8)
        return all(bool(np.isfinite(part).all()) for part in DiscriminatorEncoder(weights).extract_pixels(pixels))

    return trial


def load_run(folder: Path) -> Callable[[], bool]:
    """As a resumed training does."""
    run = RunFolder(folder / "run")
    config = TrainingConfig.from_dict(run.read()["config"])
    run.checkpoints.check_architecture(config.architecture)
    trainables = make_trainables(config)
    run.checkpoints.restore(trainables)
    return lambda: all(part.is_finite() for part in trainables.values())


def make_trainables(config: TrainingConfig) -> dict[str, Trainable]:
    networks = Networks.from_seed(config.architecture, config.seed)
    parts = {"vae": networks.vae, "discriminator": AuxiliaryDiscriminator.from_config(networks.discriminator, config)}
    return {
        name: Trainable(network, torch.optim.Adam(network.parameters(), lr=config.learning_rate))
        for name, network in parts.items()
    }


def make_run(folder: Path) -> None:
    run, trainables = RunFolder(folder / "run"), make_trainables(TINY)
    run.begin(TINY, "0" * 64)
    for part in trainables.values():
        for parameter in part.network.parameters():
            parameter.grad = torch.ones_like(parameter)
        part.optimiser.step()
    run.checkpoints.save(1, 8, trainables)


def load_export(folder: Path) -> Callable[[], bool]:
    runtime = Runtime.load(folder / "export", threads=1)
    return lambda: is_sound(runtime, runtime.transform)


def is_sound(predictor: Predictor, transform: Transform) -> bool:
    """Whether an image gets a finite score; ImageError where it is refused, as for a score that is not finite."""
    if transform.size > LARGEST_SCORED:
        return True
    (prediction,) = predictor.predict(sample_images(1, seed=1))
    if prediction.error is not None:
        raise ImageError(RefusalReason.NOT_FINITE, prediction.error)
    return prediction.score is not None and isfinite(prediction.score)


KINDS = {
    "detector": Kind(lambda folder: tiny_detector().save(folder / "detector.safetensors"), load_detector),
    "weights": Kind(lambda folder: tiny_weights().save(folder / "weights.safetensors"), load_weights),
    "checkpoint": Kind(make_run, load_run),
    "export": Kind(lambda folder: export_detector(tiny_detector(), folder / "export"), load_export),
}


# Changes


class Mutator:
    """Changes one file of a folder in a random way, by one generator."""

    def __init__(self, *seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def change(self, folder: Path) -> str:
        """Changes a file, and tells in what way: bytes, fields, tensors or graph."""
        path = self.one_of([each for each in sorted(folder.rglob("*")) if each.is_file()])
        ways = {
            ".safetensors": ("bytes", "fields", "tensors"),
            ".json": ("bytes", "fields"),
            ".onnx": ("bytes", "graph"),
        }
        way: str = self.one_of(ways[path.suffix])
        match way:
            case "bytes":
                path.write_bytes(self.change_bytes(path.read_bytes()))
            case "graph":
                path.write_bytes(self.change_bytes(path.read_bytes()))
                sidecar = path.with_name("detector.json")
                content = json.loads(sidecar.read_text())
                content["files"][path.name] = file_digest(path)
                write_sealed(sidecar, json.dumps(content | {"file_digest": UNSEALED}))
            case "fields" if path.suffix == ".json":
                content = json.loads(path.read_text())
                write_sealed(
                    path, self.change_fields(content | ({"file_digest": UNSEALED} if "file_digest" in content else {}))
                )
            case "fields":
                header, tensors = read_parts(path)
                save_sealed(path, tensors, self.change_fields(header | {"file_digest": UNSEALED}))
            case _:
                header, tensors = read_parts(path)
                self.change_tensors(tensors)
                save_sealed(path, tensors, json.dumps(header | {"file_digest": UNSEALED}))
        return way

    def one_of(self, choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def change_bytes(self, content: bytes) -> bytes:
        """Flipped, overwritten, cut out, doubled, cut off or added; or another length of the header."""
        start = int(self.rng.integers(len(content))) if self.rng.random() < 0.5 else int(self.rng.integers(2000))
        stop = start + int(self.rng.integers(1, 64))
        match self.one_of(("flip", "flip", "random", "zero", "delete", "double", "truncate", "extend", "length")):
            case "flip":
                flipped = bytearray(content)
                flipped[start % len(content)] ^= 1 << int(self.rng.integers(8))
                return bytes(flipped)
            case "random":
                return content[:start] + self.rng.bytes(stop - start) + content[stop:]
            case "zero":
                return content[:start] + bytes(stop - start) + content[stop:]
            case "delete":
                return content[:start] + content[stop:]
            case "double":
                return content[:stop] + content[start:]
            case "truncate":
                return content[:start]
            case "extend":
                return content + self.rng.bytes(stop - start)
            case _:
                length = self.one_of((0, 1, len(content), 2**20, 2**31, 2**63, 2**64 - 1, start))
                return int(length).to_bytes(8, "little") + content[8:]

    def change_fields(self, content: Any) -> str:
        """JSON with one value replaced, removed, renamed, doubled or, if it is a number, of another size."""
        places = list(values_within(content))
        holder, key = places[int(self.rng.integers(len(places)))]
        value, text = holder[key], self.one_of(WRONG)
        match self.one_of(("wrong", "wrong", "size", "remove", "rename", "double")):
            case "size" if isinstance(value, int | float):
                text = json.dumps(self.one_of((value + 1, value - 1, -value, value * 1000, value * 10**6, value + 0.5)))
            case "size":
                text = json.dumps(value * 2 if isinstance(value, str | list) else str(value))
            case "remove":
                del holder[key]
            case "rename" if isinstance(holder, dict):
                holder[f"{key}_"] = holder.pop(key)
            case "double":
                text = f"{json.dumps(value)}, {json.dumps(key) if isinstance(key, str) else 0}" + (
                    f": {json.dumps(value)}" if isinstance(key, str) else ""
                )
        if key in holder if isinstance(holder, dict) else len(holder) > key:
            holder[key] = HERE
        return json.dumps(content).replace(f'"{HERE}"', text, 1)

    def change_tensors(self, tensors: dict[str, Tensor]) -> None:
        """One tensor missing, renamed or added, of another shape or type, or with other numbers."""
        name = self.one_of(sorted(tensors))
        value = tensors[name]
        match self.one_of(("missing", "renamed", "added", "shape", "type", "numbers", "numbers")):
            case "missing":
                del tensors[name]
            case "renamed":
                tensors[f"{name}_"] = tensors.pop(name)
            case "added":
                tensors[self.one_of(("extra", f"{name}.extra", f"head/{name}", ""))] = torch.zeros(3)
            case "shape":
                flat = value.flatten()
                shapes = (
                    flat,
                    value[None],
                    flat[:-1],
                    flat[:0],
                    torch.cat([flat, flat]),
                    value.permute(tuple(reversed(range(value.ndim)))),
                    flat[:1].expand(9999),
                )
                tensors[name] = self.one_of(shapes).contiguous()
            case "type":
                types = (torch.float16, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool)
                tensors[name] = value.to(self.one_of(types))
            case _:
                changed = value.clone().flatten()
                wrong = self.one_of(
                    (np.nan, np.inf, 3e38, -1, 0, 1e-38, 1e20) if value.is_floating_point() else (-1, 2**62)
                )
                changed[int(self.rng.integers(max(changed.numel(), 1))) if self.rng.random() < 0.5 else ...] = wrong
                tensors[name] = changed.reshape(value.shape)


def values_within(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every value of a JSON tree, as the object or list that holds it and its key there."""
    keys = content if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    for key in list(keys):
        yield content, key
        yield from values_within(content[key])


def read_parts(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    content = path.read_bytes()
    table = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return json.loads(table["__metadata__"][HEADER]), {name: value.clone() for name, value in load_file(path).items()}


def save_sealed(path: Path, tensors: dict[str, Tensor], header: str) -> None:
    save_file(tensors, path, {HEADER: header})
    if UNSEALED in header:
        seal(path)


def write_sealed(path: Path, content: str) -> None:
    path.write_text(content)
    if UNSEALED in content:
        seal(path)


# The study


@dataclass
class Outcomes:
    """How many files were refused, loaded, or anything else, by way of the change; and the most memory of a load."""

    counts: Counter[str]
    other: list[str]  # what should not be: other errors, messages without the file, numbers that are not finite
    most_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {"counts": dict(sorted(self.counts.items())), "other": self.other, "most_bytes": self.most_bytes}


def fuzz(kind: str, count: int, *, seed: int, limit: bool = False) -> Outcomes:
    """Loads `count` changed copies of the files of that kind; with `limit` within the address space that is allowed."""
    outcomes = Outcomes(Counter(), [])
    with TemporaryDirectory() as place:
        original, folder = Path(place) / "original", Path(place) / "changed"
        original.mkdir()
        KINDS[kind].make(original)
        if not KINDS[kind].load(original)():
            raise AssertionError(f"the original {kind} is not sound")
        for number in range(count):
            shutil.copytree(original, folder)
            way = Mutator(seed, number).change(folder)
            before = reset_peak()
            outcome = load_and_try(KINDS[kind], folder, limit=limit)
            outcomes.most_bytes = max(outcomes.most_bytes, peak_bytes() - before)
            outcomes.counts[f"{way} {outcome if outcome in ('refused', 'loaded') else 'other'}"] += 1
            if outcome not in ("refused", "loaded"):
                outcomes.other.append(f"{kind} {number} {way}: {outcome}")
            shutil.rmtree(folder)
    return outcomes


def load_and_try(kind: Kind, folder: Path, *, limit: bool) -> str:
    """`refused`, `loaded`, or what should not be."""
    unlimited = resource.getrlimit(resource.RLIMIT_AS)
    if limit:
        resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") + MOST_BYTES, unlimited[1]))
    try:
        trial = kind.load(folder)
    except DiscopatchError as error:
        return "refused" if str(folder) in str(error) else f"no file is named: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, unlimited)
    try:
        return "loaded" if trial() else "not finite"
    except DiscopatchError:
        return "refused"
    except BaseException as error:
        return f"at work, {type(error).__name__}: {error}"


def memory(name: str) -> int:
    """A line of /proc/self/status in bytes."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def reset_peak() -> int:
    """Makes the peak what is resident now, and returns it."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def peak_bytes() -> int:
    return memory("VmHWM")


def in_process(kind: str, count: int, seed: int) -> dict[str, Any]:
    """The outcomes of one kind, from a process of its own; a crash of it would be told too."""
    command = [sys.executable, __file__, "--kind", kind, "--count", str(count), "--seed", str(seed), "--worker"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"counts": {}, "other": [f"exit {done.returncode}: {done.stderr[-2000:]}"], "most_bytes": 0}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(results: dict[str, Any]) -> str:
    rows = []
    for kind, found in results.items():
        totals = Counter[str]()
        for name, number in found["counts"].items():
            totals[name.split()[1]] += number
        numbers = [sum(totals.values()), *(totals[name] for name in ("refused", "loaded", "other"))]
        rows.append([kind, *map(str, numbers), f"{found['most_bytes'] / 1e6:.0f} MB"])
    return markdown_table(["files", "changed", "refused", "loaded, finite", "anything else", "most memory"], rows)


def main(
    count: Annotated[int, typer.Option(help="Changed copies of each kind.")] = COUNT,
    kind: Annotated[list[str] | None, typer.Option(help="Only these kinds.")] = None,
    seed: Annotated[int, typer.Option()] = 0,
    out: Annotated[Path, typer.Option(help="Where the counts go.")] = Path("docs/results/fuzz.json"),
    worker: Annotated[bool, typer.Option("--worker", hidden=True)] = False,
) -> None:
    """Change files at random and count what becomes of them."""
    kinds = kind or list(KINDS)
    if worker:
        print(json.dumps(fuzz(kinds[0], count, seed=seed, limit=True).to_dict()))
        return
    results = {each: in_process(each, count, seed) for each in kinds}
    print(table(results))
    for found in results.values():
        print(*found["other"], sep="\n", end="")
    if not kind:
        write_json(out, {"count": count, "seed": seed, "kinds": results})


if __name__ == "__main__":
    typer.run(main)
