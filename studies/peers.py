"""Packages that others wrote, on the same photos: AUROC of corruptions, with what each of them needs.

pip install pyod cleanvision
python studies/peers.py --photos train.tar --new test.tar --normal 200 --test 40 --severity 3

The last rows of the README's table, in some twenty minutes on two cores.

PyOD's detectors take features: those of ResNet-50 (`discopatch data fetch
resnet50`), as is usual, and those of our network, as our own heads have them; they are fitted on the same photos as
ours. cleanvision fits nothing: the score is the most suspicious of its looks at light, darkness, blur and detail.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from PIL import Image

from discopatch import Detector
from discopatch.bench.methods import load_encoder
from discopatch.bench.tables.writers import markdown_table
from discopatch.corruptions import CORRUPTIONS, corrupt
from discopatch.images import NamedImage, Pixels, Transform, read_images
from discopatch.metrics import auroc
from discopatch.pretrained import load_pretrained

Scores = NDArray[np.float64]
Score = Callable[[Sequence[Pixels]], Scores]
FEATURES = {"resnet50": "ResNet-50", "discopatch": "our network"}
PYOD = {"KNN": "knn", "ECOD": "ecod", "IForest": "iforest"}
LOOKS = ("dark", "light", "blurry", "low_information")
AT_ONCE = 16


def main(
    photos: Annotated[list[str], typer.Option(help="Normal photos to fit on: tar shards, folders.")],
    new: Annotated[list[str], typer.Option(help="Other photos of the same kind.")],
    normal: Annotated[int, typer.Option(help="Photos to fit on.")] = 300,
    test: Annotated[int, typer.Option(help="New photos.")] = 60,
    severity: Annotated[list[int], typer.Option(help="Of the 19 corruptions; several times for more.")] = [1, 3],  # noqa: B006
    out: Annotated[Path, typer.Option(help="JSON file.")] = Path("docs/results/peers.json"),
) -> None:
    """Prints a row for each method, and writes all figures."""
    fitted, tested = squares(photos, normal), squares(new, test)
    methods = all_methods(fitted)
    clean = {name: score(tested) for name, score in methods.items()}
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in methods}
    for level in severity:
        for corruption in CORRUPTIONS:
            changed = [corrupt(each, corruption, level, seed=place) for place, each in enumerate(tested)]
            for name, score in methods.items():
                found[name].setdefault(str(level), {})[corruption] = round(auroc(clean[name], score(changed)), 4)
            print(f"{corruption} {level}", flush=True)
    versions = {name: version(name) for name in ("pyod", "cleanvision", "discopatch")}
    content = {"normal": normal, "test": test, "versions": versions, "auroc": found}
    out.write_text(json.dumps(content, indent=1) + "\n")
    print(table(found))


def table(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Means over corruptions, in Markdown."""
    levels = list(next(iter(found.values())))
    rows = [[name, *(f"{np.mean([*each[level].values()]):.3f}" for level in levels)] for name, each in found.items()]
    return markdown_table(["AUROC, mean of 19 corruptions", *(f"severity {level}" for level in levels)], rows)


def squares(sources: Iterable[str], count: int) -> list[Pixels]:
    """The first photos, each through the transform of the released weights."""
    images = (each for each in read_images(list(sources), transform=Transform()) if isinstance(each, NamedImage))
    return [each.pixels for each in islice(images, count)]


def all_methods(fitted: Sequence[Pixels]) -> dict[str, Score]:
    """By name, what scores images, fitted where there is something to fit."""
    detector = Detector(device="cpu").fit(list(fitted))
    methods: dict[str, Score] = {"discopatch, as it comes": lambda images: detector.score(list(images))}
    for encoder, title in FEATURES.items():
        features = pooled_features(encoder)
        learnt = features(fitted)
        for name, module in PYOD.items():
            methods[f"PyOD's {name}, features of {title}"] = pyod_score(name, module, learnt, features)
    methods["cleanvision"] = cleanvision_score
    return methods


def pooled_features(name: str) -> Callable[[Sequence[Pixels]], Scores]:
    """One vector for each image, which is what kNN compares; images that were just seen are not passed again."""
    encoder = load_encoder(name, load_pretrained(), seed=0, device="cpu")
    (kind,) = encoder.needs("knn")
    last: tuple[Sequence[Pixels], Scores] = [], np.empty(0)

    def features(images: Sequence[Pixels]) -> Scores:
        nonlocal last
        if last[0] is not images:
            parts = [np.stack(images[start : start + AT_ONCE]) for start in range(0, len(images), AT_ONCE)]
            last = images, np.concatenate([encoder.extract(part, [kind])[kind] for part in parts]).astype(float)
        return last[1]

    return features


def pyod_score(name: str, module: str, learnt: Scores, features: Callable[[Sequence[Pixels]], Scores]) -> Score:
    kind: Any = getattr(import_module(f"pyod.models.{module}"), name)
    model = kind(random_state=0) if name == "IForest" else kind()
    model.fit(learnt)
    return lambda images: np.asarray(model.decision_function(features(images)), dtype=float)


def cleanvision_score(images: Sequence[Pixels]) -> Scores:
    """One minus the lowest of its scores, which are low where something is wrong."""
    lab_of: Any = import_module("cleanvision").Imagelab
    with tempfile.TemporaryDirectory() as place:
        for number, pixels in enumerate(images):
            Image.fromarray(pixels).save(Path(place) / f"{number:04}.png")
        lab = lab_of(data_path=place, verbose=False)
        lab.find_issues({look: {} for look in LOOKS}, n_jobs=1, verbose=False)
        scores = lab.issues.sort_index()[[f"{look}_score" for look in LOOKS]].to_numpy(dtype=float)
    return np.asarray(1 - scores.min(axis=1), dtype=float)


if __name__ == "__main__":
    typer.run(main)
