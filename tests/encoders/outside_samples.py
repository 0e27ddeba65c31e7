"""Tiny networks with random weights, as users have them: folders of `transformers`, and a network object."""

import json
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from torch import Tensor

from discopatch.encoders import OutsideNetwork

SIDE = 64
MEAN, DEVIATION = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
TOKENS = {
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": SIDE,
    "patch_size": 16,
}
STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32]}
CONFIGS: dict[str, dict[str, Any]] = {
    "dinov2": TOKENS,
    "dinov2_with_registers": TOKENS,
    "vit": TOKENS,
    "resnet": {**STAGES, "embedding_size": 8, "layer_type": "basic"},
    "convnext": STAGES,
    "mobilenet_v2": {"image_size": SIDE, "depth_multiplier": 0.25},
    "swin": {"image_size": SIDE, "embed_dim": 8, "depths": [1] * 4, "num_heads": [1] * 4, "window_size": 2},
}


def make_model(kind: str, *, seed: int = 0, classifier: bool = False) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(kind, **CONFIGS[kind])
    made = transformers.AutoModelForImageClassification if classifier else transformers.AutoModel
    return made.from_config(config, attn_implementation="eager").eval()


def save_checkpoint(folder: Path, kind: str, *, seed: int = 0, classifier: bool = False, **saving: Any) -> Path:
    """A folder as `save_pretrained` leaves it, and the description of its images."""
    make_model(kind, seed=seed, classifier=classifier).save_pretrained(folder, **saving)
    content = {"size": {"height": SIDE, "width": SIDE}, "image_mean": MEAN, "image_std": DEVIATION}
    (folder / "preprocessor_config.json").write_text(json.dumps(content))
    return folder


def change_json(path: Path, **changes: Any) -> None:
    """Other values of some fields; None takes one away."""
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


class SmallNetwork(OutsideNetwork):
    """Two convolutions of stride 2, as a network object of a user."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__("small", f"{seed:016x}", side=None, any_side=True)
        random = torch.Generator().manual_seed(seed)
        self.first, self.second = (torch.randn(shape, generator=random) / 5 for shape in ((4, 3, 3, 3), (6, 4, 3, 3)))
        self.check()

    def layers(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        first = torch.conv2d(x / 255, self.first, stride=2, padding=1).relu()
        second = torch.conv2d(first, self.second, stride=2, padding=1).relu()
        return [first, second], second.mean((2, 3))

    def on_device(self, device: torch.device) -> Self:
        return self
