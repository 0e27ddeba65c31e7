"""What every head is: a module that turns features into one score an image, higher for more out-of-distribution."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from discopatch.encoders import Features
from discopatch.errors import NotFittedError, WeightsError

Array = NDArray[np.float64]

# How the statistics of some normal images move under known changes: probe id -> (images, 2 x channels), after - before.
ProbeShifts = Mapping[str, NDArray[np.float32]]
NO_SHIFTS: ProbeShifts = {}

GroupNumbers = NDArray[np.intp] | None  # one number an image, where similar images belong together


class Fitted(nn.Module):
    """A module whose buffers are declared as None and filled by a fit, in float64, or from a file."""

    def derive(self) -> None:
        """Computes what follows from the stored buffers and is not stored itself."""

    def hold(self, **values: ArrayLike) -> Self:
        """Stores the values as buffers: copies, so that nobody's arrays are shared."""
        for name, value in values.items():
            self.register_buffer(name, torch.from_numpy(np.array(value, np.float64)))
        return self


class Head(Fitted, ABC):
    """Scoring, the GPU and exported graphs share `forward`; what was learnt from normal images is in float64 buffers.

    A new head is one small subclass with `fit` and `forward`; a buffer is declared as None until it is fitted.
    """

    probes: tuple[str, ...] = ()  # ids of the known changes that the head can recognise

    @abstractmethod
    def fit(self, features: Features, shifts: ProbeShifts = NO_SHIFTS, *, groups: GroupNumbers = None) -> Self:
        """A fitted head, from the features of normal images; a head that has nothing to learn returns itself.

        Images of one of the `groups` are never on both sides of a split.
        """

    @abstractmethod
    def forward(self, logits: Tensor, statistics: Tensor) -> Tensor:
        """Logits (B, positions) and statistics (B, 2 x channels) to scores (B,) in float64."""

    def score(self, features: Features) -> Array:
        """The scores (images,), each from its own image's features alone."""
        self.check_fitted()
        return self.evaluate(self, features)

    def probe_scores(self, features: Features) -> Array:
        """(images, probes): how much each image looks like each known change, as z-scores over normal images."""
        return np.empty((len(features.logits), 0))

    @torch.inference_mode()
    def evaluate(self, function: Callable[[Tensor, Tensor], Tensor], features: Features) -> Array:
        """What `function`, this head or a method of it, makes of features on the head's device."""
        device = next((buffer.device for buffer in self.buffers()), torch.device("cpu"))
        logits, statistics = (torch.from_numpy(np.ascontiguousarray(each)).to(device) for each in features)
        result: Array = function(logits, statistics).cpu().numpy()
        return result

    def check_fitted(self) -> None:
        if unfitted_buffers(self):
            raise NotFittedError("this head has not been fitted: call fit with features of normal images first")

    def to_tensors(self) -> dict[str, Tensor]:
        """Everything that was learnt, by name; `from_tensors` is the inverse."""
        return dict(self.state_dict())

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], probes: tuple[str, ...] = ()) -> Self:
        """The fitted head that was stored; WeightsError where a tensor is missing or unknown."""
        head = cls()
        head.probes = probes
        for name, value in tensors.items():
            path, _, leaf = name.rpartition(".")
            try:
                module = head.get_submodule(path)
            except AttributeError:
                raise WeightsError(f"{cls.__name__} has no {name!r}") from None
            assert isinstance(module, Fitted)
            module.hold(**{leaf: value.numpy()})
        if missing := unfitted_buffers(head):
            raise WeightsError(f"{cls.__name__} lacks {', '.join(missing)}")
        for module in head.modules():
            if isinstance(module, Fitted):
                module.derive()
        return head


def declare(module: nn.Module, *names: str, persistent: bool = True) -> None:
    """Declares buffers that a fit will fill; those that are not persistent are derived from others."""
    for name in names:
        module.register_buffer(name, None, persistent=persistent)


def unfitted_buffers(head: nn.Module) -> list[str]:
    """The names of declared buffers that hold nothing yet."""
    return [
        f"{path}.{name}".lstrip(".")
        for path, module in head.named_modules()
        for name, value in module._buffers.items()
        if value is None and name not in module._non_persistent_buffers_set
    ]
