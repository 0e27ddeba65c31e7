"""Which methods a run has: `EYE/METHOD`, such as `discopatch/combined`, `discopatch-64/logit` or `resnet50/energy`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from discopatch.baselines.backbones.named import BACKBONES, fetched, load_backbone
from discopatch.baselines.named import BASELINES
from discopatch.benchmark.eyes import ClassifierEye, DiscriminatorEye, Eye
from discopatch.benchmark.pool import PART
from discopatch.model.weights import Weights
from discopatch.scoring.named import HEADS
from discopatch.weights import SMALL as SMALL_WEIGHTS
from discopatch.weights import released

OURS = "discopatch"
SMALL = f"{OURS}-small"  # the released weights of a tenth of the work, whatever the others are
PATCH_COUNTS = (4, 16, 32, 64, 128, 512)
REFERENCE = f"{OURS}/combined"  # with which all others are compared
PAPER = f"{OURS}-64/logit"  # the paper's score

_PATCHES = re.compile(rf"{OURS}-([1-9]\d*)")


@dataclass(frozen=True, order=True)
class MethodName:
    """What looks, and what is made of it."""

    eye: str
    method: str

    def __str__(self) -> str:
        return f"{self.eye}/{self.method}"


def default_methods(folder: Path | None = None, *, quick: bool = False) -> tuple[str, ...]:
    """Our heads, all baselines on the backbones that are here, and the paper's score, which costs most."""
    return (
        f"{OURS}/*",
        f"{SMALL}/combined",
        *([] if quick else [PAPER]),
        *(f"{name}/*" for name in BACKBONES if fetched(name, folder)),
    )


def choose(patterns: Sequence[str]) -> list[MethodName]:
    """Those that fit any of the patterns, each once, in the order of the patterns; * stands for anything."""
    chosen: dict[MethodName, None] = {}
    for pattern in patterns:
        found = [name for name in known(pattern) if fnmatchcase(str(name), pattern)]
        if not found:
            raise ValueError(
                f"unknown method {pattern!r}: it is EYE/METHOD, * for any. EYE is {OURS} (one dense pass), {SMALL} "
                f"(the same with {SMALL_WEIGHTS}) or {OURS}-N (N random patches) with METHOD {', '.join(HEADS)}; or "
                f"one of {', '.join(BACKBONES)}, regnet=FOLDER, mobilenetv2=FOLDER, bit=FOLDER, beitv2=FOLDER with "
                f"METHOD {', '.join(BASELINES)}"
            )
        chosen |= dict.fromkeys(found)
    return list(chosen)


def known(pattern: str) -> list[MethodName]:
    """All methods, and those of the eye that the pattern names."""
    eye = pattern.rpartition("/")[0]
    ours = [OURS, SMALL, *(f"{OURS}-{count}" for count in PATCH_COUNTS)]
    if _PATCHES.fullmatch(eye) and eye not in ours:
        ours.append(eye)
    others = [*BACKBONES, *([eye] if "=" in eye else [])]
    return [MethodName(eye, head) for eye in ours for head in HEADS] + [
        MethodName(eye, method) for eye in others for method in BASELINES
    ]


def open_eye(name: str, weights: Weights, *, seed: int, device: str, folder: Path | None = None) -> Eye:
    """The network of that name, on that device."""
    patches = _PATCHES.fullmatch(name)
    if name in (OURS, SMALL) or patches:
        count = int(patches[1]) if patches else None
        own = released(SMALL_WEIGHTS) if name == SMALL else weights
        return DiscriminatorEye(name, own, patches=count, seed=seed, device=device, batch_size=PART)
    return ClassifierEye(load_backbone(name, device=device, folder=folder))
