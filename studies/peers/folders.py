"""Folders of 20 images: our folder test beside alibi-detect's tests for drift, each with a rate of 1 %.

python studies/peers/folders.py alibi-detect SUITES SCORES   # after pytorch_ood_methods.py, whose features it takes
python studies/peers/folders.py discopatch SUITES SCORES     # after ours.py, whose scores it takes

    detector = MMDDrift(features, backend="pytorch", p_val=0.01, n_permutations=1000)   # or KSDrift
    fails = detector.predict(new_features)["data"]["is_drift"]

alibi-detect compares a folder with all images of fit/ and held_out/; its default backend would be TensorFlow. Our test
takes the scores of held_out/ as calibration. Folders are drawn from normal/ and defects/, or are those of corrupted/.
"""

import json
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from peer import Suite, continue_in_environment

ROOT = Path(__file__).parents[2]
PACKAGES = ["torch==2.13.0", "alibi-detect==0.13.0"]
IMAGES, DRAWS, RATE = 20, 50, 0.01
Test = Callable[[Sequence[Path]], bool]  # the files of a folder -> whether it fails


def folders(suite: Suite) -> Iterator[tuple[str, list[Path]]]:
    """Kind and files of each folder."""
    rng, normal, defects = np.random.default_rng(0), suite.files("normal"), suite.files("defects")
    for _ in range(DRAWS):
        usual = [normal[place] for place in rng.permutation(len(normal))[:IMAGES]]
        yield "normal", usual
        if defects:
            wrong = [defects[place] for place in rng.permutation(len(defects))[:IMAGES]]
            yield "2 defects", wrong[:2] + usual[2:]
            yield "all defects", wrong
    for folder in sorted((suite.root / "corrupted").glob("*")):
        yield f"severity {folder.name[-1]}", sorted(folder.glob("*.png"))


def alibi_detect(suite: Suite) -> dict[str, Test]:
    from alibi_detect.cd import KSDrift, MMDDrift

    with np.load(suite.root / "resnet50-pooled.npz") as file:
        features = dict(file)

    def stacked(files: Sequence[Path]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return np.stack([features[str(each)] for each in files])

    reference = stacked(suite.files("fit", "held_out"))
    tests = {
        "MMD": MMDDrift(reference, backend="pytorch", p_val=RATE, n_permutations=1000),
        "KS": KSDrift(reference, p_val=RATE),
    }

    def fails(test: Any, files: Sequence[Path]) -> bool:
        return bool(test.predict(stacked(files))["data"]["is_drift"])

    return {f"alibi-detect, {name}": partial(fails, test) for name, test in tests.items()}


def discopatch(suite: Suite, scores: Path) -> dict[str, Test]:
    from discopatch.calibration import alarms_allowed
    from discopatch.gate import FolderCounts

    found = json.loads((scores / suite.root.name / "discopatch.json").read_text())["scores"]
    calibration = np.array([score for name, score in found.items() if name.startswith("held_out/")])

    def fails(files: Sequence[Path]) -> bool:
        ranks = [int((calibration >= found[str(each.relative_to(suite.root))]).sum()) for each in files]
        counted = np.bincount(ranks, minlength=len(calibration) + 1)
        return FolderCounts(counted, alarms_allowed(len(calibration), 0.05)).fails(RATE)

    return {"discopatch": fails}


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=("discopatch", "alibi-detect"))
    parser.add_argument("suites", type=Path)
    parser.add_argument("scores", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/peers-folders.json")
    options = parser.parse_args()
    if options.peer == "alibi-detect":
        continue_in_environment(options.peer, PACKAGES)
    else:
        sys.path.insert(0, str(ROOT / "src"))
    content = json.loads(options.out.read_text()) if options.out.exists() else {}
    for described in sorted(options.suites.glob("*/suite.json")):
        suite = Suite(described.parent.resolve())
        tests = alibi_detect(suite) if options.peer == "alibi-detect" else discopatch(suite, options.scores)
        for name, test in tests.items():
            counts: dict[str, list[int]] = {}
            for kind, files in folders(suite):
                failed, tried = counts.setdefault(kind, [0, 0])
                counts[kind] = [failed + test(files), tried + 1]
            content.setdefault(suite.root.name, {})[name] = counts
            print(suite.root.name, name, counts, flush=True)
            options.out.write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
