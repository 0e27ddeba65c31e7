"""The configurations with a name: the paper's two, those of the released weights, and one for trials."""

from dataclasses import replace

from discopatch.errors import ParameterError
from discopatch.images import Transform
from discopatch.model import Architecture
from discopatch.model.inverted import LITE0
from discopatch.training.config import TrainingConfig

PAPER = TrainingConfig(
    preset="paper",
    architecture=Architecture(patch_size=64, hidden=(128, 256, 512, 1024), latent=1024),
    transform=Transform(),
    images=67,
    patches=48,
    epochs=30,
    learning_rate=8.5e-5,
)
NATURAL = replace(
    PAPER,
    preset="natural",
    images=64,
    patches=16,
    epochs=90,
    learning_rate=3e-4,
    grouping="image",
    weight_degraded=1.0,
    weight_classified=0.5,
    decay=0.3,
    min_scale=0.55,
)
FULL = replace(
    PAPER,
    preset="full",
    architecture=Architecture(patch_size=256, hidden=(32, 64, 128, 256, 512, 1024), latent=1024),
    images=660,
    patches=1,
    epochs=70,
    learning_rate=5e-5,
)
SMALL = replace(
    NATURAL,
    preset="small",
    architecture=Architecture(patch_size=64, hidden=(48, 80, 144, 240), latent=240),
    images=48,
    epochs=120,
    learning_rate=1e-3,
    decay=0.5,
)
RESIDUAL = replace(
    NATURAL,
    preset="residual",
    architecture=Architecture(
        patch_size=64, hidden=(32, 40, 80, 160, 320), latent=320, normalisation="batch", kind="residual"
    ),
    images=96,
    patches=2,
    epochs=200,
    learning_rate=2e-3,
    weight_decay=0.01,
    warm_up=0.02,
    decay=1.0,
    schedule="cosine",
    crop=224,
    cut_mix=0.5,
    grey=0.1,
    weight_distilled=1.0,
    teachers={
        "discriminator": "766316da0e856056",  # natural-v1
        "resnet50": "23b9b4ec74f0b501",
        "efficientnet-lite0": "14788c23867beefc",
    },
)
NATURAL_V2 = replace(
    RESIDUAL,
    preset="natural-v2",
    architecture=Architecture(patch_size=64, hidden=LITE0, latent=320, normalisation="none", kind="inverted"),
    epochs=33,
    learning_rate=2e-4,
    weight_degraded=2.0,
    weight_classified=1.0,
    weight_kept=10.0,
)
TINY = replace(
    PAPER,
    preset="tiny",
    architecture=Architecture(patch_size=16, hidden=(16, 32), latent=32),
    images=8,
    patches=16,
    learning_rate=2e-3,
    grouping="image",
)

PRESETS = {config.preset: config for config in (PAPER, NATURAL, NATURAL_V2, RESIDUAL, FULL, SMALL, TINY)}


def get_preset(name: str) -> TrainingConfig:
    """The configuration of that name; `dataclasses.replace` changes single fields of it."""
    if name not in PRESETS:
        raise ParameterError(f"unknown preset {name!r}: choose one of {', '.join(PRESETS)}")
    return PRESETS[name]
