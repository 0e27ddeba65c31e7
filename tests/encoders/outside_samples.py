"""Tiny networks with random weights, as users have them: folders of `transformers`, ONNX files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

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


class SmallNetwork:
    """Two convolutions of stride 2, and what a user may name of them; `save` writes the same as ONNX."""

    def __init__(self, *, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.first = random.normal(0, 0.3, (4, 3, 3, 3)).astype(np.float32)
        self.second = random.normal(0, 0.3, (6, 4, 3, 3)).astype(np.float32)

    def outputs(self, pixels: NDArray[np.uint8]) -> dict[str, NDArray[np.float32]]:
        """(B, H, W, 3) in uint8 to each of the outputs, by torch."""
        mean, deviation = (np.array(each, np.float32) for each in (MEAN, DEVIATION))
        x = torch.from_numpy((pixels.astype(np.float32) / 255 - mean) / deviation).permute(0, 3, 1, 2)
        first = torch.conv2d(x, torch.from_numpy(self.first), stride=2, padding=1).relu()
        second = torch.conv2d(first, torch.from_numpy(self.second), stride=2, padding=1).relu()
        found = {"layer1": first, "layer2": second, "pooled": second.mean((2, 3)), "tokens": second.flatten(2).mT}
        return {name: value.numpy() for name, value in found.items()}

    def save(self, path: Path, *, side: int | str = "side", **description: Any) -> Path:
        """With any side, or a fixed one; the JSON beside it says how images are normalised."""
        onnx = pytest.importorskip("onnx")
        helper, floats = onnx.helper, onnx.TensorProto.FLOAT
        shape = onnx.numpy_helper.from_array(np.array([1, 6, -1]), "shape")
        weights = [onnx.numpy_helper.from_array(getattr(self, name), name) for name in ("first", "second")]
        strided = {"strides": [2, 2], "pads": [1, 1, 1, 1]}
        nodes = [
            helper.make_node("Conv", ["image", "first"], ["a"], **strided),
            helper.make_node("Relu", ["a"], ["layer1"]),
            helper.make_node("Conv", ["layer1", "second"], ["b"], **strided),
            helper.make_node("Relu", ["b"], ["layer2"]),
            helper.make_node("GlobalAveragePool", ["layer2"], ["c"]),
            helper.make_node("Flatten", ["c"], ["pooled"]),
            helper.make_node("Reshape", ["layer2", "shape"], ["d"]),
            helper.make_node("Transpose", ["d"], ["tokens"], perm=[0, 2, 1]),
            helper.make_node("ReduceMean", ["image"], ["number"], keepdims=0),
        ]
        outputs = {
            "layer1": [1, 4, None, None],
            "layer2": [1, 6, None, None],
            "pooled": [1, 6],
            "tokens": [1, None, 6],
            "number": [],
        }
        graph = helper.make_graph(
            nodes,
            "small",
            [helper.make_tensor_value_info("image", floats, [1, 3, side, side])],
            [helper.make_tensor_value_info(name, floats, found) for name, found in outputs.items()],
            [*weights, shape],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        path.write_bytes(model.SerializeToString())
        content = {"image_mean": MEAN, "image_std": DEVIATION, **description}
        path.with_suffix(".json").write_text(json.dumps(content))
        return path


def reference_statistics(maps: list[NDArray[np.floating]]) -> NDArray[np.float64]:
    """Maps (B, C, H, W): of each the means, then the logarithms of the variances, by plain numpy."""
    found = []
    for one in maps:
        values = np.asarray(one, np.float64).reshape(*one.shape[:2], -1)
        found += [values.mean(2), np.log(values.var(2) + 1e-6)]
    return np.concatenate(found, 1)
