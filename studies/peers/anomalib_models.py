"""anomalib 2.7.0 with the weights of ResNet-50 that all peers have, through its Engine as it documents.

    data = Folder("x", root=".", normal_dir="fit", normal_test_dir="held_out", val_split_mode="same_as_test")
    model, engine = Patchcore(backbone="resnet50"), Engine(accelerator="cpu")
    engine.fit(model, datamodule=data)
    engine.export(model, "torch", export_root="model")
    predictions = engine.predict(model, dataset=PredictDataset("new"))

Images become 256 x 256, its default. Its normalisation of scores is switched off after the fit: it cuts scores at 1,
and the decision is the same without. PaDiM keeps 100 features, its default for ResNet-18; there is none for ResNet-50.
SuperSimpleNet is trained for the 300 epochs that its README recommends, EfficientAD, which has a network of its own,
for the 70,000 steps of its configuration; on a GPU if there is one, and CPU seconds are not stored then. When first
fitted EfficientAD downloads its teacher and ImageNette.
"""

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from peer import MEAN, PARTS, STD, Fitted, Suite, import_torchvision, load_resnet50, main

PACKAGES = (
    *("torch==2.13.0", "torchvision==0.28.0", "anomalib==2.7.0", "timm==1.0.31", "lightning==2.6.6", "kornia==0.9.0"),
    *("torchmetrics==1.9.0", "opencv-python-headless==5.0.0.93", "scikit-image==0.26.0", "numpy==2.4.6"),
)
LINES = 8  # with three imports


def method(
    name: str, *, epochs: int | None = None, steps: int | None = None, **parameters: Any
) -> Callable[[Suite], Fitted]:
    def fit(suite: Suite) -> Fitted:
        warnings.simplefilter("ignore")
        import_torchvision()
        import timm
        import torch
        from torchvision.transforms.v2 import Compose, Normalize, Resize

        torch.manual_seed(0)
        create = timm.create_model
        timm.create_model = lambda *given, **options: create(*given, **{**options, "pretrained": False})
        from anomalib import models
        from anomalib.data import Folder, PredictDataset
        from anomalib.engine import Engine
        from anomalib.pre_processing import PreProcessor
        from anomalib.utils.path import get_datasets_dir

        prepare = PreProcessor(transform=Compose([Resize((256, 256), antialias=True), Normalize(MEAN, STD)]))
        own, batch = {"backbone": "resnet50", "pre_processor": prepare}, {}
        if steps:  # EfficientAD takes an image at a time
            own, batch = {"imagenet_dir": get_datasets_dir() / "imagenette"}, {"train_batch_size": 1}
        model = getattr(models, name)(visualizer=False, **own, **parameters)
        if not steps:
            network = next(each for each in model.modules() if hasattr(each, "layer3") and hasattr(each, "conv1"))
            load_resnet50(network, suite)
        folders = {"normal_dir": "fit", "normal_test_dir": "held_out", "val_split_mode": "same_as_test"}
        data = Folder("suite", root=suite.root, num_workers=0, **folders, **batch)
        device = "cuda" if (epochs or steps) and torch.cuda.is_available() else "cpu"
        options = {"accelerator": device, "devices": 1, "enable_progress_bar": False}
        trained = {"max_epochs": epochs, "check_val_every_n_epoch": epochs} if epochs else {}
        trained |= {"max_epochs": 1000, "max_steps": steps} if steps else {}
        engine = Engine(**options, **trained, default_root_dir=tempfile.mkdtemp())
        start, wall_start = time.process_time(), time.perf_counter()
        engine.fit(model, datamodule=data)
        seconds, wall_seconds = time.process_time() - start, time.perf_counter() - wall_start
        threshold = float(model.post_processor.image_threshold)
        model.post_processor.enable_normalization = model.post_processor.enable_thresholding = False
        kept: dict[str, Any] = {}

        def predict(files: Sequence[Path]) -> Iterator[float]:
            found: dict[str, float] = {}
            for part in filter(Path.is_dir, (suite.root / part for part in PARTS)):
                for batch in engine.predict(model, dataset=PredictDataset(part)):
                    for file, score, places in zip(batch.image_path, batch.pred_score, batch.anomaly_map, strict=True):
                        found[file] = float(score)
                        if part.name in ("normal", "defects") and (suite.root / "masks").is_dir():
                            kept[str(Path(file).relative_to(suite.root))] = places.squeeze().cpu().numpy()
            return (found[str(each)] for each in files)

        def save(path: Path) -> None:
            engine.export(model, "torch", export_root=path)

        notes: dict[str, Any] = {"epochs": epochs} if epochs else {"steps": steps} if steps else {}
        if device == "cuda":
            notes |= {"device": torch.cuda.get_device_name(), "fit_wall_seconds": wall_seconds}
        return Fitted(
            lambda files: list(predict(files)),
            LINES,
            threshold,
            save,
            lambda: kept,
            fit_seconds=seconds,
            on_cpu=device == "cpu",
            notes=notes,
        )

    return fit


METHODS = {
    "patchcore-1": method("Patchcore", coreset_sampling_ratio=0.01),
    "padim": method("Padim", n_features=100),
    "dfm": method("Dfm"),
    "patchcore-10": method("Patchcore", coreset_sampling_ratio=0.1),
    "supersimplenet": method("Supersimplenet", epochs=300),
    "efficientad": method("EfficientAd", steps=70_000),
}

if __name__ == "__main__":
    main(__doc__, "anomalib", "anomalib", PACKAGES, METHODS)
