"""What the scripts of all peers share: their environment, the weights, what is measured, and the stored scores.

python studies/peers/prepare.py --data ROOT --out SUITES      # its first lines list the files
OMP_NUM_THREADS=1 python studies/peers/X.py SUITES --out SCORES [--only NAME,..] [--methods METHOD,..]
python studies/peers/read.py SUITES SCORES --docs docs         # docs/results/peers.json, the tables and the plot

Contract. A script X makes a virtual environment of its own with pinned versions and continues in it. It fits on fit/
alone; held_out/ only chooses thresholds. Each method runs in a process of its own and writes SCORES/NAME/METHOD.json:
peer, version, method; scores {path below SUITES/NAME: float, higher = more unusual} of all images of held_out, normal,
defects and corrupted; threshold (its own, of normal images alone) and flagged {path: bool}, or null where the tool has
none; fit_seconds and image_seconds (CPU of all threads) and peak_mib, or null if on a GPU; threads; saved_mb; lines (of
user code: fit, save, score); versions; suite_digest and weights_digest; pixel (a file with the maps of normal and
defects, or null). What is there is not run again.
"""

import json
import os
import re
import subprocess
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import distributions, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

THREADS = 1  # CPU seconds of several threads depend on what else runs; start with OMP_NUM_THREADS=1
MEAN, STD = (123.68 / 255, 116.779 / 255, 103.939 / 255), (1 / 255,) * 3  # of RGB in 0..1, as the weights need it
PARTS = "held_out", "normal", "defects", "corrupted"


@dataclass
class Suite:
    """The folder of one suite."""

    root: Path

    def files(self, *parts: str) -> list[Path]:
        return [path for part in parts for path in sorted((self.root / part).rglob("*.png"))]

    @property
    def weights(self) -> Path:
        return self.root.parent / "resnet50.safetensors"


@dataclass
class Fitted:
    """What a method's function returns. `score` is called once with all images to score."""

    score: Callable[[Sequence[Path]], Sequence[float]]
    lines: int
    threshold: float | None = None  # the tool's own, of normal images alone; above it an image is flagged
    save: Callable[[Path], Any] | None = None  # writes a file or files at the path, whose size is stored
    maps: Callable[[], dict[str, Any]] | None = None  # by the name of the image, after `score`
    flagged: Callable[[], Sequence[bool]] | None = None  # after `score`, where it is not by the threshold
    fit_seconds: float | None = None  # CPU, where the function does more than to fit, such as to import packages
    earlier_seconds: float = 0  # CPU, for each image before `score`: of features that several methods share
    on_cpu: bool = True  # else seconds and memory do not compare with those of others, and are not stored
    notes: dict[str, Any] = field(default_factory=dict)  # stored as well


Method = Callable[[Suite], Fitted]


LIBRARIES: list[Any] = []  # operators are declared as long as these are kept


def import_torchvision() -> None:
    """Imports torchvision; a build for CUDA beside a torch without misses two operators, which are declared here.

    No method uses them.
    """
    try:
        import_module("torchvision")
    except RuntimeError:  # no operator torchvision::nms
        import torch

        for each in [each for each in sys.modules if each.split(".")[0] == "torchvision"]:
            del sys.modules[each]
        LIBRARIES.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            LIBRARIES[-1].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def load_resnet50(network: Any, suite: Suite) -> Any:
    """A ResNet-50 of torchvision or timm with our weights; asserts that its features are ours to 1e-4.

    Keras has the stride of a stage in the first convolution, torchvision in the second. Input: RGB by MEAN and STD.
    """
    import torch
    from safetensors.torch import load_file

    tensors = load_file(suite.weights)
    found: dict[str, Any] = {}
    network.load_state_dict({name: tensors[name] for name in network.state_dict() if name in tensors}, strict=False)
    network.eval()
    for number in range(1, 5):
        if (stage := getattr(network, f"layer{number}", None)) is not None:
            if number > 1:
                stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
            name = f"reference.layer{number}"
            hook = stage.register_forward_hook(lambda module, x, y, name=name: found.update({name: y}))
            found[name] = hook
    hooks = list(found.values())
    with torch.no_grad():
        network(tensors["reference.input"])
    for hook in hooks:
        hook.remove()
    assert found, "no layers"
    for name, value in found.items():
        error = float((value - tensors[name]).abs().max() / tensors[name].abs().max())
        assert error < 1e-4, f"{name} differs by {error}"
    return network


def continue_in_environment(name: str, packages: Sequence[str]) -> None:
    """Goes on in the peer's environment, which is made where it is missing: PEERS_HOME/NAME or in the user's cache.

    torch is installed first, and torchvision without what it depends on, so that no CUDA comes with them.
    """
    home = Path(os.environ.get("PEERS_HOME", "~/.cache/discopatch-peers")).expanduser() / name
    python = home / "bin" / "python"
    if Path(sys.prefix).resolve() == home.resolve():
        return
    if not (home / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        pip = [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--extra-index-url",
            "https://download.pytorch.org/whl/cpu",
        ]
        first = [each for each in packages if re.match("torch=", each)]
        alone = [each for each in packages if each.startswith("torchvision=")]
        rest = [each for each in packages if each not in (*first, *alone)]
        for options in (first, ["--no-deps", *alone] * bool(alone), rest):
            if options:
                subprocess.run([*pip, *options], check=True)
        (home / "ready").write_text(" ".join(packages))
    os.execve(python, [str(python), *sys.argv], {**os.environ, "OMP_NUM_THREADS": str(THREADS)})


def peak_mib() -> int:
    return int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) // 1024


def run(peer: str, package: str, name: str, method: Method, suite: Suite, out: Path) -> None:
    """Fits and scores, and writes SCORES/NAME/METHOD.json."""
    with suppress(ImportError):
        import torch

        torch.set_num_threads(THREADS)
    place = out / suite.root.name
    place.mkdir(parents=True, exist_ok=True)
    start = time.process_time()
    fitted = method(suite)
    fit_seconds = time.process_time() - start if fitted.fit_seconds is None else fitted.fit_seconds
    files = suite.files(*PARTS)
    start = time.process_time()
    scores = [float(each) for each in fitted.score(files)]
    image_seconds = (time.process_time() - start) / len(files) + fitted.earlier_seconds
    assert len(scores) == len(files)
    assert all(each == each for each in scores), "NaN"
    names = [str(each.relative_to(suite.root)) for each in files]
    flagged = None
    if fitted.flagged is not None:
        flagged = [bool(each) for each in fitted.flagged()]
    elif fitted.threshold is not None:
        flagged = [each > fitted.threshold for each in scores]
    described = json.loads((suite.root / "suite.json").read_text())
    found = {
        "peer": peer,
        "version": version(package),
        "method": name,
        "suite_digest": described["digest"],
        "weights_digest": described["weights_digest"],
        "fit_seconds": fit_seconds if fitted.on_cpu else None,
        "image_seconds": image_seconds if fitted.on_cpu else None,
        "threads": THREADS,
        "peak_mib": peak_mib() if fitted.on_cpu else None,
        "saved_mb": None,
        "lines": fitted.lines,
        "threshold": fitted.threshold,
        "pixel": None,
        "notes": fitted.notes,
    }
    if fitted.save is not None:
        saved = place / f"{name}.saved"
        fitted.save(saved)
        kept = [saved] if saved.is_file() else [each for each in saved.rglob("*") if each.is_file()]
        found["saved_mb"] = sum(each.stat().st_size for each in kept) / 1e6
    if fitted.maps is not None and (suite.root / "masks").is_dir():
        import numpy as np

        found["pixel"] = f"{name}.npz"
        maps: dict[str, Any] = {key: np.float16(each) for key, each in fitted.maps().items()}
        np.savez_compressed(place / f"{name}.npz", **maps)
    found["versions"] = {each.name: each.version for each in distributions()}
    found["scores"] = dict(zip(names, scores, strict=True))
    found["flagged"] = None if flagged is None else dict(zip(names, flagged, strict=True))
    partial = place / f"{name}.json.partial"
    partial.write_text(json.dumps(found))
    partial.rename(place / f"{name}.json")
    print(suite.root.name, name, f"fit {fit_seconds:.0f} s, image {image_seconds:.3f} s, {peak_mib()} MiB", flush=True)


def main(doc: str | None, peer: str, package: str, packages: Sequence[str], methods: dict[str, Method]) -> None:
    """The command line of a peer's script. `packages` empty: run where the script was started."""
    parser = ArgumentParser(
        description=doc, formatter_class=RawDescriptionHelpFormatter, prog="", usage="%(prog)s SUITES --out SCORES"
    )
    parser.add_argument("suites", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", help="Suites.")
    parser.add_argument("--methods", help=", ".join(methods))
    options = parser.parse_args()
    if packages:
        continue_in_environment(peer, packages)
    found = sorted(each.parent for each in options.suites.glob("*/suite.json"))
    wanted = options.only.split(",") if options.only else [each.name for each in found]
    for folder in sorted((each for each in found if each.name in wanted), key=lambda each: wanted.index(each.name)):
        for name in options.methods.split(",") if options.methods else methods:
            if not (options.out / folder.name / f"{name}.json").exists():
                arguments = (peer, package, name, methods[name], Suite(folder.resolve()), options.out.resolve())
                child = get_context("fork").Process(target=run, args=arguments)
                child.start()
                child.join()
                if child.exitcode:
                    print(folder.name, name, "failed", flush=True)
