"""Features as they are stored beside scores: in float16, the statistics as deviations from the detector's mean."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.schema import Positive, length

if TYPE_CHECKING:
    import pyarrow

    from discopatch.detector import Detector
    from discopatch.encoders import Features, Kind
    from discopatch.heads import Head
    from discopatch.scorer import Scorer

STORED_KINDS: "tuple[Kind, ...]" = ("logits", "statistics", "pooled", "places")
LARGEST_HALF = 65504.0  # in float16
Numbers = Annotated[tuple[float, ...], length(0, 2**15)]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One kind of features: the shape of an image's, and for each number, where that matters, what was taken from it.

    Stored is (feature - centre) / scale. A float16 has three digits: those of a statistic that is far from 0 and hardly
    varies would all be the mean's. The scale is a power of two, by which nothing is rounded.
    """

    kind: Literal["logits", "statistics", "pooled", "places"]
    shape: Annotated[tuple[Positive, ...], length(1, 2)]
    centre: Numbers = ()
    scale: Numbers = ()

    @property
    def size(self) -> int:
        """Numbers of an image."""
        return prod(self.shape)

    def encode(self, values: NDArray[np.floating]) -> NDArray[np.float16]:
        """(images, *shape) as (images, size) in float16; what is beyond its range becomes its largest number."""
        flat: NDArray[np.floating] = values.reshape(len(values), -1)
        if self.centre:
            flat = np.divide(flat - np.array(self.centre, np.float32), np.array(self.scale, np.float32))
        found: NDArray[np.float16] = np.clip(flat, -LARGEST_HALF, LARGEST_HALF).astype(np.float16)
        return found

    def decode(self, stored: NDArray[np.float16]) -> NDArray[np.floating]:
        """The inverse but for rounding, in float32; places stay in float16, as encoders give them."""
        flat: NDArray[np.floating] = stored
        if self.kind != "places":
            flat = stored.astype(np.float32)
        if self.centre:
            flat = flat * np.array(self.scale, np.float32) + np.array(self.centre, np.float32)
        return flat.reshape(len(stored), *self.shape)


@dataclass(frozen=True)
class Layout:
    """The kinds of features that are stored, in order."""

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, scorer: "Scorer", *, places: bool = False) -> Self:
        """The kinds that the scorer's encoder gives, and what its head knows of the usual statistics.

        All of them are stored, whether this head needs them or not, so that another one may; places, which are by far
        the largest, only where they are asked for.
        """
        size = scorer.encoder.transform.size
        example = scorer.encoder.start(np.zeros((1, size, size, 3), np.uint8))()
        centre, scale = usual_statistics(scorer.head, example.statistics.shape[1])
        found = []
        for kind in STORED_KINDS:
            values = getattr(example, kind)
            if values.size and (kind != "places" or places):
                own = {"centre": centre, "scale": scale} if kind == "statistics" else {}
                found.append(Column(kind=kind, shape=values.shape[1:], **own))
        return cls(tuple(found))

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(column.kind for column in self.columns)

    @property
    def row_bytes(self) -> int:
        """Of the features of one image."""
        return sum(2 * column.size for column in self.columns)

    def arrays(self, features: Sequence["Features"], present: NDArray[np.bool_]) -> list["pyarrow.Array"]:
        """One column of lists for each kind; rows that are not `present` among the images have none."""
        import pyarrow

        found = []
        for column in self.columns:
            parts = [column.encode(getattr(each, column.kind)) for each in features]
            values = np.concatenate(parts) if parts else np.empty((0, column.size), np.float16)
            ends = np.concatenate([[0], np.cumsum(present)]) * column.size
            mask = None if present.all() else pyarrow.array(~present)
            flat = pyarrow.array(values.reshape(-1))
            found.append(pyarrow.ListArray.from_arrays(pyarrow.array(ends, pyarrow.int32()), flat, mask=mask))
        return found

    def features(self, batch: "pyarrow.RecordBatch", kinds: Iterable["Kind | str"]) -> "Features":
        """Those of all images of a batch that have features; kinds that are not asked for are empty."""
        from discopatch.encoders import Features

        wanted = set(kinds)
        found: dict[str, Any] = {}
        images = 0
        for column in self.columns:
            if column.kind in wanted:
                values = batch.column(column.kind).flatten().to_numpy(zero_copy_only=False)
                found[column.kind] = column.decode(values.reshape(-1, column.size))
                images = len(found[column.kind])
        for kind in ("logits", "statistics"):
            found.setdefault(kind, np.empty((images, 0), np.float32))
        return Features(**found)


def stored_kinds(detector: "Detector", *, places: bool) -> tuple["Kind", ...]:
    """The kinds of features that the encoder is asked for: those of its head, and others that do not change its pass.

    On a GPU in bfloat16 a plain network gives pooled features in another, slower pass, whose last digits differ.
    """
    state = detector.state_
    found = set(state.head.needs)
    if not (
        state.parameters["precision"] == "bfloat16"
        and state.weights is not None
        and state.weights.discriminator.architecture.kind == "plain"
    ):
        found |= {"pooled", "places"} if places else {"pooled"}
    return tuple(kind for kind in STORED_KINDS if kind in found)


def usual_statistics(head: "Head", size: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and spread, as a power of two, of each statistic of normal images, as far as the head knows them."""
    from discopatch.heads.components import ComponentsHead
    from discopatch.heads.gaussian import ShrunkGaussian

    centre, spread = np.zeros(size, np.float32), np.ones(size)
    if isinstance(head, ComponentsHead):
        early, deep = len(head.early.mean), len(head.deep.mean)
        centre = head.mean.cpu().numpy().astype(np.float32)
        spread[:early] = head.early.scale.cpu().numpy()
        spread[size - deep :] = head.deep.scale.cpu().numpy()
    else:
        for module in head.modules():
            if isinstance(module, ShrunkGaussian) and len(module.mean) == size:
                centre, spread = module.mean.cpu().numpy().astype(np.float32), module.scale.cpu().numpy()
                break
    scale = np.exp2(np.round(np.log2(spread)))
    return tuple(centre.tolist()), tuple(scale.tolist())
