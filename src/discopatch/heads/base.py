"""The base class of heads: modules that turn features into one score per image, higher for more out-of-distribution."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from discopatch.encoders import BASIC_KINDS, Features, FeatureSizes, Kind
from discopatch.errors import NotFittedError, WeightsError
from discopatch.model.weights import check_names

Array = NDArray[np.float64]
Values = TypeVar("Values", Tensor, Array)
Shapes = Mapping[str, tuple[str | int, ...]]  # of tensors; a dimension is a number, or a name of one unknown length

# Shifts of the statistics of normal images, and behind them of the tones where a head needs them, under known changes:
# probe id -> (images, numbers), after - before.
ProbeShifts = Mapping[str, NDArray[np.float32]]
NO_SHIFTS: ProbeShifts = {}

GroupNumbers = NDArray[np.intp] | None  # one number per image, where similar images belong together

LARGEST = 1e30  # magnitude of stored numbers, and 1 / LARGEST the smallest divisor: squares stay finite


class HeadOutput(NamedTuple, Generic[Values]):
    """The output of a head for B images, in float64, as tensors or arrays."""

    score: Values  # (B,)
    components: Values  # (B, components), z-scores


class Fitted(nn.Module):
    """A module whose buffers are filled by a fit, in float64, or from a file.

    shapes: the stored buffers, with their dimensions.
    positive: the stored buffers that are divisors.
    derived: buffers that `derive` computes, which are not stored.
    """

    shapes: ClassVar[Shapes] = {}
    positive: ClassVar[tuple[str, ...]] = ()
    derived: ClassVar[tuple[str, ...]] = ()

    probes: tuple[str, ...] = ()  # ids of the known changes that it is fitted for

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Tensor: ...  # the buffers

    def __init__(self) -> None:
        super().__init__()
        for name in (*self.shapes, *self.derived):
            self.register_buffer(name, None, persistent=name in self.shapes)

    @classmethod
    def of(cls, **values: ArrayLike) -> Self:
        """A fitted module with these values."""
        module = cls().hold(**values)
        module.derive()
        return module

    @classmethod
    def empty(cls) -> Self:
        """A module of no values, which is stored where there is nothing to fit."""
        return cls.of(**{name: np.ones((0,) * len(dimensions)) for name, dimensions in cls.shapes.items()})

    def prepare(self, tensors: Collection[str]) -> None:
        """Adds the optional modules of which there are tensors."""

    def derive(self) -> None:
        """Computes everything that follows from the stored buffers; WeightsError where they do not fit together."""

    def check_sizes(self, sizes: FeatureSizes) -> None:
        """Raises WeightsError unless the fitted module takes features of these sizes."""

    def hold(self, **values: ArrayLike) -> Self:
        """Copies the values into buffers.

        The copies are contiguous tensors in torch's own memory. The alignment of an array can change the order of
        summation, and a head that was read from a file must score like the fitted one to the last digit.
        """
        for name, value in values.items():
            array = torch.from_numpy(np.array(value, np.float64))
            self.register_buffer(name, array.clone(memory_format=torch.contiguous_format))
        return self

    def to_tensors(self) -> dict[str, Tensor]:
        """All fitted values by name; `from_tensors` is the inverse."""
        return dict(self.state_dict())

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], probes: tuple[str, ...] = (), sizes: FeatureSizes | None = None
    ) -> Self:
        """The stored module; WeightsError where a tensor is not as declared or does not fit features of these sizes."""
        found = cls()
        found.prepare(tensors)
        found.probes = probes
        modules = {f"{path}." if path else "": each for path, each in found.named_modules() if isinstance(each, Fitted)}
        check_names(cls.__name__, tensors, [path + name for path, module in modules.items() for name in module.shapes])
        for path, module in modules.items():
            own = {name: tensors[path + name] for name in module.shapes}
            owner = f"{cls.__name__}.{path}".rstrip(".")
            module.hold(**read_tensors(owner, own, module.shapes, probes=len(probes), positive=module.positive))
        for module in modules.values():
            module.derive()
        if sizes is not None:
            found.check_sizes(sizes)
        return found


class Nearest(Fitted):
    """The class of an image: that of the nearest of several means of statistics, where all have one covariance."""

    shapes: ClassVar[Shapes] = {
        "mean": ("statistics",),  # of all images
        "weights": ("means", "statistics"),
        "offsets": ("means",),
        "numbers": ("means",),  # of the classes; several means may be of one
    }

    def forward(self, statistics: Tensor) -> Tensor:
        """(B, statistics) to the numbers of classes (B,), in float64."""
        nearest = ((statistics.double() - self.mean) @ self.weights.T + self.offsets).argmax(1)
        return self.numbers[nearest]


class Head(Fitted, ABC):
    """A module that scores features; scoring, the GPU and exported graphs share `forward`.

    A new head is a small subclass with `fit`, `forward`, and `shapes` of its buffers.
    """

    needs: tuple[Kind, ...] = BASIC_KINDS  # the kinds of features that `forward` takes, by these names
    component_names: tuple[str, ...] = ()
    significance_level: float = np.inf  # the z-score above which a component is significant
    classes: Nearest | None  # of a detector with classes

    def __init__(self) -> None:
        super().__init__()
        self.classes = None

    def prepare(self, tensors: Collection[str]) -> None:
        if any(name.startswith("classes.") for name in tensors):
            self.classes = Nearest()

    @abstractmethod
    def fit(self, features: Features, shifts: ProbeShifts = NO_SHIFTS, *, groups: GroupNumbers = None) -> Self:
        """A fitted head, from the features of normal images; a head without parameters returns itself.

        Images of one of the `groups` are never on both sides of a split.
        """

    @abstractmethod
    def forward(self, logits: Tensor, statistics: Tensor) -> Tensor:
        """Logits (B, positions) and statistics (B, 2 x channels) to scores (B,) in float64."""

    def output(self, logits: Tensor, statistics: Tensor) -> HeadOutput[Tensor]:
        """The whole output, of which `forward` returns the score."""
        score = self(logits, statistics)
        return HeadOutput(score, score[:, None][:, :0])  # its length stays unknown in an exported graph

    def judge(self, **features: Tensor) -> HeadOutput[Tensor]:
        """The output; with classes, the number of the class is one more column behind the components."""
        found = self.output(**features)
        if self.classes is None:
            return found
        number = self.classes(features["statistics"])[:, None]
        return HeadOutput(found.score, torch.cat((found.components, number), 1))

    def likeness(self, features: Features) -> float | None:
        """How like examples of defects an image is, as a z-score; None without examples."""
        return None

    def score(self, features: Features) -> Array:
        """The scores (images,), each from its own image's features alone."""
        return self.outputs(features).score

    @torch.inference_mode()
    def outputs(self, features: Features) -> HeadOutput[Array]:
        """The whole output as arrays, of `judge`."""
        if any(value is None for module in self.modules() for value in module._buffers.values()):
            raise NotFittedError("this head has not been fitted: call fit with features of normal images first")
        score, components = self.judge(**self.tensors(features))
        return HeadOutput(score.cpu().numpy(), components.cpu().numpy())

    def tensors(self, features: Features) -> dict[str, Tensor]:
        """The kinds of features that the head needs, on its device."""
        device = next((buffer.device for buffer in self.buffers()), torch.device("cpu"))
        return {kind: torch.from_numpy(np.ascontiguousarray(getattr(features, kind))).to(device) for kind in self.needs}


def read_tensors(
    owner: str, tensors: Mapping[str, Tensor], shapes: Shapes, *, probes: int = 0, positive: Collection[str] = ()
) -> dict[str, Array]:
    """The values of all tensors in float64; WeightsError unless names, types, shapes and numbers are as declared.

    The dimension named "probes" has that length. Tensors in `positive` are divisors.
    """
    check_names(owner, tensors, shapes)
    known: dict[str | int, str | int] = {"probes": probes}
    found = {}
    for name, dimensions in shapes.items():
        shape, dtype = tuple(tensors[name].shape), tensors[name].dtype
        for dimension, length in zip(dimensions, shape, strict=False):
            if isinstance(dimension, str):
                known.setdefault(dimension, length)
        if shape != (due := tuple(known.get(each, each) for each in dimensions)):
            raise WeightsError(f"{owner} has a tensor {name} of shape {shape}, not {due}")
        if dtype not in (torch.float32, torch.float64):
            raise WeightsError(f"{owner} has a tensor {name} in {dtype}, not in float32 or float64")
        values, least = tensors[name].numpy(), 1 / LARGEST if name in positive else -LARGEST
        if values.size and not (values.min() >= least and values.max() <= LARGEST):
            raise WeightsError(f"{owner} has a tensor {name} with numbers that are not finite or out of range")
        found[name] = values.astype(np.float64)
    return found
