"""The one way from pictures to features that all backbones share: images by themselves, float32, nothing learns."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from discopatch.baselines.method import Classifier, Features
from discopatch.images import Pixels
from discopatch.model.blocks import channels_last
from discopatch.model.weights import digest_of

COMES = 256  # pixels a side that every method gets
SIDE = 224  # pixels a side that networks see of them
GPU_BATCH = 64


class Network(nn.Module, ABC):
    """What a backbone runs."""

    kinds: ClassVar[tuple[str, ...]]  # the kinds of features that it can show
    head: nn.Linear

    @abstractmethod
    def prepare(self, pixels: Tensor) -> Tensor:
        """(B, 256, 256, 3) in uint8 -> what the network takes."""

    @abstractmethod
    def see(self, x: Tensor, kinds: Collection[str]) -> dict[str, Tensor]:
        """Those kinds of features of prepared pixels, each (B, d)."""


class FrozenBackbone:
    """A Backbone around a network. On a CPU each image passes alone, so that its neighbours do not change one bit;
    on a GPU they pass in batches, and agree to rounding.
    """

    def __init__(
        self,
        name: str,
        network: Network,
        *,
        parameters: int | None = None,
        classes: Sequence[str] = (),
        device: str | torch.device = "cpu",
    ) -> None:
        self.name = name
        self.digest = digest_of(network)
        self.parameters = parameters or sum(each.numel() for each in network.parameters())
        self.kinds: tuple[str, ...] = network.kinds
        self.classifier = Classifier(network.head.weight.detach().numpy(), network.head.bias.detach().numpy())
        self.classes = tuple(classes)
        self.device = torch.device(device)
        self._network = channels_last(network.eval().requires_grad_(False)).to(self.device)

    @torch.inference_mode()
    def look(self, pixels: Pixels, kinds: Collection[str]) -> Features:
        """(images, 256, 256, 3) in uint8 -> those kinds of features, float32, each image's from itself alone."""
        if pixels.dtype != np.uint8 or pixels.shape[1:] != (COMES, COMES, 3):
            raise ValueError(
                f"{self.name} looks at uint8 pictures of {COMES} x {COMES} x 3, not at {pixels.dtype} of "
                f"{' x '.join(map(str, pixels.shape[1:]))}: pass them through Transform(size={COMES})"
            )
        if unknown := sorted(set(kinds) - set(self.kinds)):
            raise ValueError(f"{self.name} cannot show {unknown[0]!r}, only {', '.join(self.kinds)}")
        if len(pixels) == 0:  # as wide as those of any picture
            any_picture = np.zeros((1, COMES, COMES, 3), np.uint8)
            return {kind: values[:0] for kind, values in self.look(any_picture, kinds).items()}
        together = 1 if self.device.type == "cpu" else GPU_BATCH
        parts = [self._see(pixels[start : start + together], kinds) for start in range(0, len(pixels), together)]
        return {kind: torch.cat([part[kind] for part in parts]).numpy() for kind in kinds}

    def _see(self, pixels: Pixels, kinds: Collection[str]) -> dict[str, Tensor]:
        some = torch.from_numpy(pixels.copy()).to(self.device)
        return {kind: seen.cpu() for kind, seen in self._network.see(self._network.prepare(some), kinds).items()}


def centre(pixels: Tensor) -> Tensor:
    """(B, 256, 256, 3) -> (B, 224, 224, 3)."""
    margin = (COMES - SIDE) // 2
    return pixels[:, margin : margin + SIDE, margin : margin + SIDE]
