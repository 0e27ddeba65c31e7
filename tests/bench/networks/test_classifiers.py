"""Classifiers of `transformers` from a folder give the features and logits that the model itself computes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from discopatch.bench.baselines import BASELINES
from discopatch.bench.methods import choose_methods, load_encoder
from discopatch.bench.networks.base import PENULTIMATE
from discopatch.errors import WeightsError
from tests.bench.networks.samples import sample_pixels
from tests.samples import tiny_weights

MEAN, DEVIATION = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
STAGES: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_labels": 5}
CONFIGS = {"regnet": STAGES | {"groups_width": 8}, "bit": STAGES | {"num_groups": 4}}


def save(folder: Path, kind: str) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.AutoModelForImageClassification.from_config(
        transformers.AutoConfig.for_model(kind, **CONFIGS[kind])
    )
    model.save_pretrained(folder)
    content = {"size": {"shortest_edge": 64}, "image_mean": MEAN, "image_std": DEVIATION}
    (folder / "preprocessor_config.json").write_text(json.dumps(content))
    return model.eval()


def prepared() -> torch.Tensor:
    """The centre of the images in 64 pixels, normalised."""
    x = torch.from_numpy(sample_pixels()[:, 16:240, 16:240] / 255).float().permute(0, 3, 1, 2)
    x = F.interpolate(x, (64, 64), mode="bilinear", antialias=True)
    return (x - torch.tensor(MEAN)[:, None, None]) / torch.tensor(DEVIATION)[:, None, None]


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_logits_are_those_of_the_model_itself(kind: str, tmp_path: Path) -> None:
    model = save(tmp_path, kind)
    name = f"{kind}={tmp_path}"
    encoder = load_encoder(name, tiny_weights(), seed=0, device="cpu")
    found = encoder.network.extract(sample_pixels(), encoder.network.kinds)
    assert set(choose_methods([f"{name}/*"])) >= {f"{name}/{each}" for each in BASELINES.keys() - {"niqe"}}
    assert all(map(encoder.refusal, ("rankfeat", "rankfeat-weight")))
    with torch.inference_mode():
        expected = model(prepared()).logits
    logits = encoder.network.classifier.logits(found[PENULTIMATE])
    np.testing.assert_allclose(logits, expected, atol=1e-5, rtol=1e-4)
    assert np.ptp(logits, axis=0).min() > 1e-6  # else equality would say little


def test_a_folder_without_all_weights_or_with_code_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save(tmp_path, "regnet")
    path = tmp_path / "model.safetensors"
    whole = load_file(path)
    save_file({key: value for key, value in whole.items() if "classifier" not in key}, path, {"format": "pt"})
    with pytest.raises(WeightsError, match="classifier"):
        load_encoder(f"regnet={tmp_path}", tiny_weights(), seed=0, device="cpu")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "code.Model"}}))
    with pytest.raises(WeightsError, match="auto_map"):
        load_encoder(f"regnet={tmp_path}", tiny_weights(), seed=0, device="cpu")
