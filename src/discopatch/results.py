"""What is said about images: predictions, explanations, and the questions that one asks of a detector or an export."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from discopatch.errors import ImageError, ParameterError
from discopatch.images import DEFAULT_WORKERS, NamedImage, Pixels, Refusal, Workers
from discopatch.utils import require

if TYPE_CHECKING:
    import pandas


# The components of a head, in words; what each says comes behind.
COMPONENT_WORDS = {"acquisition": "how it was taken", "content": "what is in it", "place": "a place in it"}


ALL_OVER = 0.5  # the share of places from which on no single one is named


class ComponentScore(NamedTuple):
    """How much one component of the head hears in an image."""

    name: str  # one of COMPONENT_WORDS
    z: float  # over normal images
    speaks: bool  # whether it stands out; about 5 % of normal images have a component that does


def component_scores(names: Sequence[str], z: Sequence[float], level: float) -> tuple[ComponentScore, ...]:
    """One of each name, which speaks where its z-score is above the level."""
    return tuple(ComponentScore(name, one, one > level) for name, one in zip(names, z, strict=True))


@dataclass(frozen=True, slots=True)
class Prediction:
    """One image's score and what follows from it, or the error with which it was refused: never both, never neither."""

    name: str
    score: float | None  # higher means more out-of-distribution
    p_value: float | None  # share of normal images with at least this score, counting this one
    is_ood: bool | None
    error: str | None = None  # such as "truncated: JPEG cut short or damaged: copy it again"
    components: tuple[ComponentScore, ...] = ()  # of a head that has components with names

    def __post_init__(self) -> None:
        if (self.score is None) == (self.error is None):
            raise ParameterError(f"{self.name}: a prediction has either a score or an error")
        if self.error is not None and (self.p_value is not None or self.is_ood is not None):
            raise ParameterError(f"{self.name}: a refused image has no p-value and no decision")

    @property
    def spoke(self) -> tuple[ComponentScore, ...]:
        """The components that stand out, strongest first."""
        return tuple(sorted((each for each in self.components if each.speaks), key=lambda each: -each.z))


class Predictions(Sequence[Prediction]):
    """The predictions of many images, in their order, one by one or as arrays (images,)."""

    def __init__(self, predictions: Iterable[Prediction]) -> None:
        self._predictions = tuple(predictions)

    def __len__(self) -> int:
        return len(self._predictions)

    @overload
    def __getitem__(self, index: int) -> Prediction: ...
    @overload
    def __getitem__(self, index: slice) -> "Predictions": ...
    def __getitem__(self, index: int | slice) -> "Prediction | Predictions":
        found = self._predictions[index]
        return Predictions(found) if isinstance(found, tuple) else found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Predictions) and self._predictions == other._predictions

    def __hash__(self) -> int:
        return hash(self._predictions)

    def __repr__(self) -> str:
        flagged, refused = int(self.is_ood.sum()), sum(error is not None for error in self.errors)
        return f"<Predictions of {len(self)} images: {flagged} out-of-distribution, {refused} refused>"

    @cached_property
    def names(self) -> NDArray[np.str_]:
        return np.array([each.name for each in self], np.str_)

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """NaN where an image was refused."""
        return np.array([each.score for each in self], np.float64)

    @cached_property
    def p_values(self) -> NDArray[np.float64]:
        """NaN where an image was refused."""
        return np.array([each.p_value for each in self], np.float64)

    @cached_property
    def is_ood(self) -> NDArray[np.bool_]:
        """False where an image was refused: `errors` tells which."""
        return np.array([bool(each.is_ood) for each in self], np.bool_)

    @cached_property
    def errors(self) -> NDArray[np.object_]:
        """None where an image was scored."""
        return np.array([each.error for each in self], np.object_)

    def to_pandas(self) -> "pandas.DataFrame":
        """One row an image with the fields of `Prediction`; components as in `as_dict`."""
        require("pandas", extra="bench")
        import pandas

        fields = [name for name in Prediction.__dataclass_fields__ if name != "components"]
        names = dict.fromkeys(component.name for each in self for component in each.components)
        columns = [*fields, *names, *(["spoke"] if names else [])]
        return pandas.DataFrame([all_fields(each) for each in self], columns=columns)


class Reason(NamedTuple):
    """A known change that an image looks like."""

    id: str  # one of `discopatch.heads.PROBES`
    z: float  # how much likelier than in normal images, in standard deviations of theirs
    text: str  # such as "less fine detail than normal"


class Component(NamedTuple):
    """A component of the head that speaks about an image."""

    name: str  # acquisition, content or place
    z: float  # over normal images
    text: str  # such as "a place in it: upper left"


@dataclass(frozen=True, eq=False)
class Explanation:
    """A prediction, the image as the model gets it, and where and how it differs from normal ones."""

    prediction: Prediction
    image: Pixels  # (size, size, 3), through the transform
    anomaly_map: NDArray[np.float32]  # (64, 64), by how much each region is more unusual than regions of normal images
    reasons: tuple[Reason, ...]  # the strongest first
    components: tuple[Component, ...] = ()  # that stand out, the strongest first


Decide: TypeAlias = Callable[[str, float, tuple[ComponentScore, ...]], Prediction]  # of name, score and components


class PredictedImage(NamedTuple):
    """A prediction, and the image as the model gets it or the reason why it was refused."""

    prediction: Prediction
    image: NamedImage | None
    refusal: Refusal | None

    @property
    def pixels(self) -> Pixels | None:
        """(size, size, 3), fetched only now where the image is still on a GPU."""
        return None if self.image is None else self.image.pixels

    @classmethod
    def refused(cls, refusal: Refusal) -> Self:
        return cls(Prediction(refusal.name, None, None, None, refusal.error), None, refusal)

    @classmethod
    def scored(
        cls,
        image: NamedImage,
        score: float,
        decide: Decide,
        components: tuple[ComponentScore, ...] = (),
    ) -> Self:
        """What `decide` makes of the score; a score that is not a finite number is a refusal."""
        if not isfinite(score):
            return cls.refused(Refusal.not_finite(image.name))
        return cls(decide(image.name, score, components), image, None)


class Predictor(ABC):
    """Whatever predicts images one by one can be asked for all of them."""

    @property
    def component_names(self) -> tuple[str, ...]:
        """Of the components that its predictions have."""
        return ()

    @abstractmethod
    def predict_images(self, images: object, *, workers: Workers = DEFAULT_WORKERS) -> Iterator[PredictedImage]:
        """Predictions with the pixels that they are about, in constant memory."""

    def predict_iter(self, images: object, *, workers: Workers = DEFAULT_WORKERS) -> Iterator[Prediction]:
        """A prediction for every image, one by one, in constant memory."""
        return (each.prediction for each in self.predict_images(images, workers=workers))

    def predict(self, images: object, *, workers: Workers = DEFAULT_WORKERS) -> Predictions:
        """A prediction for every image, in order; one that cannot be read is a prediction with an error."""
        return Predictions(self.predict_iter(images, workers=workers))

    def score(self, images: object, *, workers: Workers = DEFAULT_WORKERS) -> NDArray[np.float64]:
        """The scores (images,), higher for more out-of-distribution; NaN where an image was refused."""
        return self.predict(images, workers=workers).scores


def check_finite(name: str, score: float) -> None:
    """Raises ImageError where there is no finite score to explain."""
    if not isfinite(score):
        refusal = Refusal.not_finite(name)
        raise ImageError(refusal.reason, f"{name}: {refusal.error}")


def as_dict(prediction: Prediction) -> dict[str, Any]:
    """The prediction as plain values: name and error, or name, score, p_value and is_ood.

    Where there are components, also the z-score of each by its name, and `spoke`, the names of those that stand out.
    """
    return {name: value for name, value in all_fields(prediction).items() if value is not None}


def all_fields(prediction: Prediction) -> dict[str, Any]:
    """The same with fields that have no value."""
    fields = asdict(prediction)
    if fields.pop("components"):
        fields |= {each.name: each.z for each in prediction.components}
        fields["spoke"] = [each.name for each in prediction.spoke]
    return fields


def explain_components(
    prediction: Prediction, reasons: Sequence[Reason], place_map: NDArray[np.floating] | None
) -> tuple[Component, ...]:
    """What the components that stand out say, in words; the map of places (side, side) tells where one differs."""
    details = {"content": "unlike any normal image"}
    if reasons:
        details["acquisition"] = reasons[0].text.removesuffix(" than normal")
    if place_map is not None:
        details["place"] = position_of(place_map)
    return tuple(
        Component(name, z, ": ".join(filter(None, (COMPONENT_WORDS[name], details.get(name)))))
        for name, z, _ in prediction.spoke
    )


def position_of(values: NDArray[np.floating]) -> str:
    """In which of nine parts of (side, side) the largest value is, in words, unless most values are above 0."""
    if (values > 0).mean() > ALL_OVER:
        return "all over"
    row, column = np.unravel_index(int(values.argmax()), values.shape)
    down, across = (int(3 * (place + 0.5) / side) for place, side in zip((row, column), values.shape, strict=True))
    if down == across == 1:
        return "centre"
    return f"{('upper', 'middle', 'lower')[down]} {('left', 'middle', 'right')[across]}"
