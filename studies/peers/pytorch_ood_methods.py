"""pytorch-ood 0.4.0 on the pooled features of ResNet-50, with its defaults.

    detector = KNN(None).fit_features(features, labels)
    scores = detector.predict_features(new_features)

Images become 256 x 256. Features are computed once a suite, by torchvision's ResNet-50 with the weights of all peers;
their CPU seconds count for each method. Normal images have one label, as there are no classes. ViM has no default
number of dimensions: it gets half the number of fitted images. kNN takes the 50th neighbour by default, of fewer images
the last one; `knn-1` takes the first. fDBD is left out: with 1000 classes and 2048 features it needs 8 GiB.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from time import process_time
from typing import Any

from peer import MEAN, STD, Fitted, Suite, import_torchvision, load_resnet50, main

PACKAGES = (
    *("torch==2.13.0", "torchvision==0.28.0", "pytorch-ood==0.4.0", "scikit-learn==1.9.1", "numpy==2.4.6"),
    *("scipy==1.17.1", "pillow==13.0.0", "safetensors==0.8.0"),
)
LINES = 10  # with imports, and those that make the features


def pooled(suite: Suite) -> tuple[dict[str, Any], Any]:
    """The features by file, with the CPU seconds of an image under `seconds`; and the last layer of the network."""
    import numpy as np
    import torch
    from PIL import Image

    import_torchvision()
    from torchvision.models import resnet50

    network = load_resnet50(resnet50(weights=None), suite)
    head, network.fc = network.fc, torch.nn.Identity()
    stored = suite.root / "resnet50-pooled.npz"
    if not stored.exists():
        found, start = {}, process_time()
        files = suite.files("fit", "held_out", "normal", "defects", "corrupted")
        for path in files:
            pixels = Image.open(path).convert("RGB").resize((256, 256), Image.Resampling.BILINEAR)
            values = (torch.from_numpy(np.array(pixels)).float() / 255 - torch.tensor(MEAN)) / torch.tensor(STD)
            with torch.inference_mode():
                found[str(path)] = network(values.permute(2, 0, 1)[None])[0].numpy()
        np.savez(stored, seconds=(process_time() - start) / len(files), **found)
    with np.load(stored) as file:
        return dict(file), head


def method(name: str, kind: str, *arguments: Any, **parameters: Any) -> Callable[[Suite], Fitted]:
    """A detector of features or logits."""

    def fit(suite: Suite) -> Fitted:
        import torch

        features, head = pooled(suite)
        from pytorch_ood import detector as detectors

        def stacked(files: Sequence[Path]) -> Any:
            return torch.stack([torch.from_numpy(features[str(each)]) for each in files])

        normal, make, start = stacked(suite.files("fit")), getattr(detectors, name), process_time()
        if name == "ViM":
            detector = make(None, d=len(normal) // 2, w=head.weight, b=head.bias)
        elif kind == "maps":
            detector = make(torch.nn.Identity(), lambda maps: head(maps.flatten(1)), **parameters)
        else:
            options = {"k": min(50, len(normal)), **parameters} if name == "KNN" else parameters
            detector = make(None, *[head for each in arguments if each == "head"], **options)
        if kind == "features":
            detector.fit_features(normal, torch.zeros(len(normal), dtype=torch.long))

        def score(files: Sequence[Path]) -> Sequence[float]:
            new = stacked(files)
            with torch.no_grad():
                if kind == "maps":
                    found = detector.predict_feature_maps(new[:, :, None, None])
                else:
                    found = detector.predict_features(new) if kind == "features" else detector.predict_logits(head(new))
            return [float(each) for each in found]

        seconds = float(features["seconds"])
        fit_seconds = process_time() - start + seconds * len(normal) * (kind == "features")
        return Fitted(score, LINES, fit_seconds=fit_seconds, earlier_seconds=seconds)

    return fit


METHODS = {
    "pytorch-ood-knn": method("KNN", "features"),
    "pytorch-ood-knn-1": method("KNN", "features", k=1),
    "pytorch-ood-vim": method("ViM", "features"),
    "pytorch-ood-mahalanobis": method("Mahalanobis", "features"),
    "pytorch-ood-nnguide": method("NNGuide", "features", "head"),
    "pytorch-ood-energy": method("EnergyBased", "logits"),
    "pytorch-ood-msp": method("MaxSoftmax", "logits"),
    "pytorch-ood-maxlogit": method("MaxLogit", "logits"),
    "pytorch-ood-ash-s": method("ASH", "maps"),
    "pytorch-ood-ash-b": method("ASH", "maps", variant="ash-b"),
    "pytorch-ood-scale": method("SCALE", "maps"),
}

if __name__ == "__main__":
    with suppress(ImportError):  # once for all methods
        import_torchvision()
        import_module("pytorch_ood.detector")
    main(__doc__, "pytorch-ood", "pytorch-ood", PACKAGES, METHODS)
