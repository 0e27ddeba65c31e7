"""Parts of a source become tables of scores, whichever engine asks for it."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from discopatch.cluster.features import Layout, stored_kinds
from discopatch.cluster.identity import Identity, transform_of
from discopatch.cluster.manifest import Manifest
from discopatch.cluster.plan import PER_PART, Part
from discopatch.cluster.table import TableBuilder
from discopatch.errors import ParameterError
from discopatch.images import DEFAULT_WORKERS, NamedImage, Refusal, Workers, read_images
from discopatch.images.items import Item, open_shards
from discopatch.images.source import list_entries

if TYPE_CHECKING:
    import pyarrow

    from discopatch.detector import Detector
    from discopatch.encoders import Features
    from discopatch.export.runtime import Runtime
    from discopatch.results import Prediction
    from discopatch.scorer import Scorer

NO_LISTING = "0" * 64  # where the source is not listed yet


class PartScorer:
    """A detector or an export, and what is stored of each image.

    features: whether the features, but for places, are stored too, so that another head or threshold can be applied
        to them without reading the images again; an export has none.
    places: whether the features of places are stored too, some fifty kilobytes an image.
    """

    def __init__(self, predictor: "Detector | Runtime", *, features: bool = False, places: bool = False) -> None:
        from discopatch.export.runtime import Runtime

        self.predictor = predictor
        self.layout: Layout | None = None
        if features or places:
            if isinstance(predictor, Runtime):
                raise ParameterError("an export gives no features to store: give the detector that was exported")
            self.layout = Layout.of(predictor, places=places)
        self._places = places
        self._scorer: Scorer | None = None

    def manifest(self, per_part: int = PER_PART) -> Manifest:
        """That of a folder with its scores, but for the source."""
        limits = self.predictor.limits
        return Manifest(
            detector=Identity.of(self.predictor),
            max_pixels=limits.max_pixels,
            max_bytes=limits.max_bytes,
            per_part=per_part,
            components=self.predictor.component_names,
            source=NO_LISTING,
            features=self.layout,
        )

    def score_parts(
        self,
        parts: Iterable[Part],
        *,
        workers: Workers = DEFAULT_WORKERS,
        progress: Callable[[int], object] | None = None,
    ) -> "Generator[tuple[Part, pyarrow.Table], None, None]":
        """The tables of the parts, in order; the next part's images are read while those of one are scored.

        `progress` is called with the number of images of each batch. No batch holds images of two parts: on a GPU the
        size of a batch shows in the last digits of a score.
        """
        limits, ends = self.predictor.limits, deque[End]()

        def items() -> Iterator[Item]:
            read = 0
            for part in parts:
                for item in open_shards(list_entries(part.source, limits), limits):
                    read += 1
                    yield item
                ends.append(End(part, read))

        transform = transform_of(self.predictor)
        with closing(read_images(items(), transform=transform, workers=workers, limits=limits)) as stream:
            images = PartStream(stream, ends)
            while images.has_more():
                builder = TableBuilder(self.predictor.component_names, self.layout)
                for predictions, features in self._predict(images.of_next_part()):
                    builder.add(predictions, features)
                    if progress is not None:
                        progress(len(predictions))
                yield ends.popleft().part, builder.table()

    def _predict(self, images: Iterator[NamedImage | Refusal]) -> "Iterator[tuple[list[Prediction], Features | None]]":
        from discopatch.export.runtime import Runtime

        if isinstance(self.predictor, Runtime):
            for each in self.predictor.predict_stream(images):
                yield [each.prediction], None
            return
        kinds = () if self.layout is None else stored_kinds(self.predictor, places=self._places)
        if self._scorer is None:
            self._scorer = self.predictor.scorer_with(kinds)
        for batch in self._scorer.predict_batches(images):
            yield [each.prediction for each in batch.images], batch.features


class End(NamedTuple):
    """A part whose last image was asked for, and how many images there were up to it."""

    part: Part
    images: int


class PartStream:
    """One stream of images, handed out part by part.

    Where a part ends is known once the image behind it is asked for, which therefore waits for its turn.
    """

    def __init__(self, stream: Iterator[NamedImage | Refusal], ends: "deque[End]") -> None:
        self._stream, self._ends, self._taken = stream, ends, 0
        self._waiting: NamedImage | Refusal | None = None

    def _look(self) -> NamedImage | Refusal | None:
        """The next image, which is not taken yet."""
        if self._waiting is None:
            self._waiting = next(self._stream, None)
        return self._waiting

    def has_more(self) -> bool:
        return self._look() is not None or bool(self._ends)

    def of_next_part(self) -> Iterator[NamedImage | Refusal]:
        """Its images, all of which must be taken before the next part's."""
        while True:
            image = self._look()
            if self._ends and self._taken == self._ends[0].images:
                return
            assert image is not None, "a part ends where the stream does"
            self._waiting = None
            self._taken += 1
            yield image


def score_part(scorer: PartScorer, part: Part, *, workers: Workers = DEFAULT_WORKERS) -> "pyarrow.Table":
    """The scores of one part, a row an image in its order; the same to the bit wherever it is done."""
    ((_, table),) = scorer.score_parts([part], workers=workers)
    return table
