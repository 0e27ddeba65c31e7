"""Folders with some defects: our folder test and alibi-detect's drift detectors on the same images.

python studies/peers/folders.py discopatch SUITES SCORES     # where discopatch is installed
python studies/peers/folders.py alibi-detect SUITES SCORES   # in an environment that is made for it
python studies/peers/folders.py table

    found = KSDrift(reference).predict(folder)["data"]["is_drift"]    # or MMDDrift(reference, backend="pytorch")

A draw splits normal images that were not fitted into 39 that are the reference and a folder of 40, of which defects
replace a share. The scores are those of the default detector in SCORES. For the pooled features of ResNet-50, which
pytorch_ood_methods.py stores in SUITES, all normal images are drawn from and the reference are 120. The rate of both is
5 %, alibi-detect's default. Its KS test of 2,048 features is left out: it takes seconds a folder.
"""

import json
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from peer import Suite, continue_in_environment
from streams import ALIBI_DETECT

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "src"))

Floats = NDArray[np.float32]
Fails = Callable[[Floats, Floats], bool]  # reference (n, features), folder (m, features)

RATE, FOLDER = 0.05, 40
SHARES = {"normal": 0.0, "10 %": 0.1, "25 %": 0.25}
SUITES = ("castings", "kolektor", "tiles", "solar")


def our_test(reference: Floats, folder: Floats) -> bool:
    from discopatch.calibration import alarms_allowed
    from discopatch.gate import FolderCounts

    n, ranks = len(reference), (reference[:, 0] >= folder).sum(1)
    return FolderCounts((np.bincount(ranks, minlength=n + 1), alarms_allowed(n, RATE))).fails(RATE)


def theirs(name: str, **options: Any) -> Fails:
    def fails(reference: Floats, folder: Floats) -> bool:
        import torch
        from alibi_detect import cd

        torch.manual_seed(0)  # of the permutations
        return bool(getattr(cd, name)(reference, **options).predict(folder)["data"]["is_drift"])

    return fails


def methods(peer: str) -> Iterator[tuple[str, str, Fails]]:
    """The name, what it looks at, and the test."""
    if peer == "discopatch":
        yield "folder test", "scores", our_test
        return
    mmd = theirs("MMDDrift", backend="pytorch")
    yield from (("KS", "scores", theirs("KSDrift")), ("MMD", "scores", mmd), ("MMD", "features", mmd))


def values(root: Path, scores: Path, kind: str) -> tuple[Floats, Floats, int]:
    """Of normal images and of defects; and how many of the first are the reference."""
    suite, parts = Suite(root.resolve()), ["held_out", "normal"]
    held_out = len(suite.files("held_out"))
    if kind == "features":
        with np.load(suite.root / "resnet50-pooled.npz") as file:
            found: dict[Path, Any] = {each: file[str(each)] for each in suite.files("fit", *parts, "defects")}
        parts, held_out = ["fit", *parts], held_out + len(suite.files("fit"))
    else:
        stored = json.loads((scores / root.name / "discopatch.json").read_text())["scores"]
        found = {suite.root / name: [each] for name, each in stored.items()}
    stacked = [np.array([found[each] for each in suite.files(*part)], np.float32) for part in (parts, ["defects"])]
    return stacked[0], stacked[1], held_out


def measure(peer: str, suites: Path, scores: Path, draws: int, out: Path) -> None:
    content = json.loads(out.read_text()) if out.exists() else {}
    for name, kind, fails in methods(peer):
        row = content.setdefault("folders", {}).setdefault(f"{peer}, {name}, {kind}", {"version": version(peer)})
        for suite in (each for each in SUITES if each not in row and (suites / each).is_dir()):
            normal, defects, references = values(suites / suite, scores, kind)
            failed = dict.fromkeys(SHARES, 0)
            for number in range(draws):
                rng = np.random.default_rng([11, number])
                drawn, others = rng.permutation(normal), rng.permutation(defects)
                for share, part in SHARES.items():
                    folder = np.concatenate([others[: int(part * FOLDER)], drawn[references:]])[:FOLDER]
                    failed[share] += fails(drawn[:references], folder)
            row[suite] = {"draws": draws, **{share: each / draws for share, each in failed.items()}}
            row["normal"] = float(np.mean([row[each]["normal"] for each in SUITES if each in row]))
            print(peer, name, kind, suite, row[suite], flush=True)
            out.write_text(json.dumps(content, separators=(",", ":")) + "\n")


def table(out: Path) -> None:
    for name, row in json.loads(out.read_text())["folders"].items():
        cells = [f"{100 * row[each]['10 %']:.0f} / {100 * row[each]['25 %']:.0f}" for each in SUITES if each in row]
        print("|", " | ".join([name, f"{100 * row['normal']:.1f} %", *cells]), "|")


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=("discopatch", "alibi-detect", "table"))
    parser.add_argument("suites", type=Path, nargs="?")
    parser.add_argument("scores", type=Path, nargs="?")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/peers-streams.json")
    options = parser.parse_args()
    if options.peer == "table":
        table(options.out)
        return
    if options.peer == "alibi-detect":
        continue_in_environment(options.peer, ALIBI_DETECT)
    measure(options.peer, options.suites, options.scores, options.draws, options.out)


if __name__ == "__main__":
    main()
