"""What every head is: a module that turns features into one score an image, higher for more out-of-distribution."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from discopatch.encoders import BASIC_KINDS, Features, FeatureSizes, Kind
from discopatch.errors import NotFittedError, WeightsError
from discopatch.model.weights import check_names

Array = NDArray[np.float64]

# How the statistics of some normal images move under known changes: probe id -> (images, 2 x channels), after - before.
ProbeShifts = Mapping[str, NDArray[np.float32]]
NO_SHIFTS: ProbeShifts = {}

GroupNumbers = NDArray[np.intp] | None  # one number an image, where similar images belong together


LARGEST = (
    1e30  # of the numbers in a file, and 1 / LARGEST the smallest that something is divided by: squares stay finite
)


class Size(NamedTuple):
    """A dimension of stored tensors: as long wherever its name stands, within limits."""

    name: str
    most: int
    least: int = 0


STATISTICS = Size("statistics", 2**15, least=1)


class HeadOutput(NamedTuple):
    """What a head makes of B images, all of it in float64."""

    score: Tensor  # (B,)
    components: Tensor | None = None  # (B, components): each that it tells of, as a z-score
    place_map: Tensor | None = None  # (B, side, side): how far places are beyond what is usual


class HeadArrays(NamedTuple):
    """The same as arrays."""

    score: Array  # (images,)
    components: Array  # (images, components), or (images, 0)
    place_map: Array | None  # (images, side, side)


class Stored:
    """What a file may hold for a buffer: a shape, and finite numbers, above 0 where they are divided by."""

    def __init__(self, *shape: Size, positive: bool = False) -> None:
        self.shape, self.positive = shape, positive


class Fitted(nn.Module):
    """A module whose buffers are declared as None and filled by a fit, in float64, or from a file."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[str, Stored] = {}

    def sizes(self, statistics: int | None = None) -> dict[str, int]:
        """Dimensions that are known before a file is read; so many `statistics` are those of a discriminator."""
        return {} if statistics is None else {STATISTICS.name: statistics}

    def derive(self) -> None:
        """Computes what follows from the stored buffers and is not stored itself."""

    def hold(self, **values: ArrayLike) -> Self:
        """Stores the values as buffers: copies, so that nobody's arrays are shared.

        They lie in memory of torch's own, row by row: where a product's numbers begin decides with some libraries how
        its sums are divided, and a head that was read from a file must not differ in the last digit from the fitted.
        """
        for name, value in values.items():
            array = torch.from_numpy(np.array(value, np.float64))
            self.register_buffer(name, array.clone(memory_format=torch.contiguous_format))
        return self


class Head(Fitted, ABC):
    """Scoring, the GPU and exported graphs share `forward`; what was learnt from normal images is in float64 buffers.

    A new head is one small subclass with `fit` and `forward`; a buffer is declared with what may be stored for it.
    """

    needs: tuple[Kind, ...] = BASIC_KINDS  # the kinds of features that `forward` takes, by these names
    probes: tuple[str, ...] = ()  # ids of the known changes that the head can recognise
    component_names: tuple[str, ...] = ()  # of the components that it tells of
    significance_level: float = np.inf  # the z-score above which a component significant
    place_side: int = 0  # places along a side of the image, where they count

    @abstractmethod
    def fit(self, features: Features, shifts: ProbeShifts = NO_SHIFTS, *, groups: GroupNumbers = None) -> Self:
        """A fitted head, from the features of normal images; a head that has nothing to learn returns itself.

        Images of one of the `groups` are never on both sides of a split.
        """

    @abstractmethod
    def forward(self, logits: Tensor, statistics: Tensor) -> Tensor:
        """Logits (B, positions) and statistics (B, 2 x channels) to scores (B,) in float64."""

    def output(self, logits: Tensor, statistics: Tensor) -> HeadOutput:
        """All that it tells of images, of which `forward` is the score."""
        return HeadOutput(self(logits, statistics))

    def score(self, features: Features) -> Array:
        """The scores (images,), each from its own image's features alone."""
        self.check_fitted()
        return self.evaluate(self, features)

    @torch.inference_mode()
    def outputs(self, features: Features) -> HeadArrays:
        """What `output` tells of the images, as arrays."""
        self.check_fitted()
        score, components, places = self.output(**self.tensors(features))
        none = np.empty((len(score), 0))
        return HeadArrays(
            score.cpu().numpy(),
            none if components is None else components.cpu().numpy(),
            None if places is None else places.cpu().numpy(),
        )

    def place_map(self, features: Features) -> Array | None:
        """(side, side): how far the places of one image are beyond what is usual; None where places do not count."""
        found = self.outputs(features).place_map
        return None if found is None else found[0]

    def probe_scores(self, features: Features) -> Array:
        """(images, probes): how much each image looks like each known change, as z-scores over normal images."""
        return np.empty((len(features.logits), 0))

    @torch.inference_mode()
    def evaluate(self, function: Callable[..., Tensor], features: Features) -> Array:
        """What `function`, this head or a method of it, makes of features on the head's device."""
        result: Array = function(**self.tensors(features)).cpu().numpy()
        return result

    def tensors(self, features: Features) -> dict[str, Tensor]:
        """The kinds of features that the head needs, on its device."""
        device = next((buffer.device for buffer in self.buffers()), torch.device("cpu"))
        return {kind: torch.from_numpy(np.ascontiguousarray(getattr(features, kind))).to(device) for kind in self.needs}

    def check_fitted(self) -> None:
        if unfitted_buffers(self):
            raise NotFittedError("this head has not been fitted: call fit with features of normal images first")

    def check_sizes(self, sizes: FeatureSizes) -> None:
        """Raises WeightsError unless the head can score features of these sizes."""
        for module in (each for each in self.modules() if isinstance(each, Fitted)):
            for name, stored in module.stored.items():
                for found, due in zip(getattr(module, name).shape, stored.shape, strict=True):
                    if due == STATISTICS and found != sizes.statistics:
                        raise WeightsError(f"it takes {found} statistics, and its networks give {sizes.statistics}")

    def to_tensors(self) -> dict[str, Tensor]:
        """Everything that was learnt, by name; `from_tensors` is the inverse."""
        return dict(self.state_dict())

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], probes: tuple[str, ...] = (), *, statistics: int | None = None
    ) -> Self:
        """The fitted head that was stored; WeightsError where a tensor is not what was declared.

        `statistics` is the number of statistics of an image where the discriminator is known.
        """
        head = cls()
        head.probes = probes
        stored = {
            f"{path}.{name}".lstrip("."): found
            for path, module in head.named_modules()
            if isinstance(module, Fitted)
            for name, found in module.stored.items()
        }
        for name, values in read_stored(cls.__name__, tensors, stored, head.sizes(statistics)).items():
            path, _, leaf = name.rpartition(".")
            module = head.get_submodule(path)
            assert isinstance(module, Fitted)
            module.hold(**{leaf: values})
        for module in head.modules():
            if isinstance(module, Fitted):
                module.derive()
        return head


def declare(module: Fitted, **stored: Stored) -> None:
    """Declares buffers that a fit will fill, and what a file may hold for them."""
    module.stored |= stored
    for name in stored:
        module.register_buffer(name, None)


def declare_derived(module: Fitted, *names: str) -> None:
    """Declares buffers that follow from others, and are not stored."""
    for name in names:
        module.register_buffer(name, None, persistent=False)


def read_stored(
    owner: str, tensors: Mapping[str, Tensor], stored: Mapping[str, Stored], sizes: Mapping[str, int]
) -> dict[str, NDArray[np.floating]]:
    """The values of all stored tensors by name; WeightsError unless names, types, shapes and numbers are as declared.

    Sizes that are not given are those of the tensors themselves, alike within a module; nothing is computed before all
    shapes are known to fit.
    """
    check_names(owner, tensors, stored)
    found = {**sizes}
    for name, expected in stored.items():
        shape, module = tuple(tensors[name].shape), name.rpartition(".")[0]
        labels = [
            size.name if size.name in sizes or size == STATISTICS else f"{module}.{size.name}"
            for size in expected.shape
        ]
        wanted = [found.setdefault(label, length) for label, length in zip(labels, shape, strict=False)]
        within = all(size.least <= length <= size.most for size, length in zip(expected.shape, shape, strict=False))
        if len(shape) != len(labels) or list(shape) != wanted or not within:
            dimensions = ", ".join(
                f"{size.name} {found.get(label, '')}" for size, label in zip(expected.shape, labels, strict=True)
            )
            raise WeightsError(f"{owner} has a tensor {name} of shape {shape}, where ({dimensions}) is due")
        if tensors[name].dtype not in (torch.float32, torch.float64):
            raise WeightsError(f"{owner} has a tensor {name} in {tensors[name].dtype}, not in float32 or float64")
    return {name: finite(name, tensors[name], positive=expected.positive) for name, expected in stored.items()}


def finite(name: str, tensor: Tensor, *, positive: bool) -> NDArray[np.floating]:
    values: NDArray[np.floating] = tensor.numpy()
    if values.size and not (values.min() >= (1 / LARGEST if positive else -LARGEST) and values.max() <= LARGEST):
        raise WeightsError(f"{name} holds numbers that are not finite, or beyond what a fit finds")
    return values


def unfitted_buffers(head: nn.Module) -> list[str]:
    """The names of declared buffers that hold nothing yet."""
    return [
        f"{path}.{name}".lstrip(".")
        for path, module in head.named_modules()
        for name, value in module._buffers.items()
        if value is None and name not in module._non_persistent_buffers_set
    ]
