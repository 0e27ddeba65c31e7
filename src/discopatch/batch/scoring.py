"""Parts of a source become tables of scores, whichever engine asks for it."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING

from discopatch.batch.features import Layout, stored_kinds
from discopatch.batch.identity import Identity
from discopatch.batch.manifest import Manifest
from discopatch.batch.plan import PER_PART, Part
from discopatch.batch.table import TableBuilder
from discopatch.errors import ParameterError
from discopatch.images import DEFAULT_WORKERS, Workers

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
        self._scorer: Scorer | None = None  # with an encoder of what is stored too
        if features or places:
            if isinstance(predictor, Runtime):
                raise ParameterError("an export gives no features to store: give the detector that was exported")
            self._scorer = predictor.scorer_with(stored_kinds(predictor, places=places))
            self.layout = Layout.of(self._scorer, places=places)

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
        begun = deque[Part]()

        def sources() -> Iterator[object]:
            for part in parts:
                begun.append(part)
                yield part.source

        builder = TableBuilder(self.predictor.component_names, self.layout)
        for predictions, features, ends in self._predict(sources(), workers):
            builder.add(predictions, features)
            if progress is not None:
                progress(len(predictions))
            if ends:
                yield begun.popleft(), builder.table()
                builder = TableBuilder(self.predictor.component_names, self.layout)

    def _predict(
        self, sources: Iterable[object], workers: Workers
    ) -> "Iterator[tuple[list[Prediction], Features | None, bool]]":
        """Batches of predictions, the features of those that have a score, and whether a source ends there."""
        from discopatch.export.runtime import Runtime

        if isinstance(self.predictor, Runtime):
            for images, ends in self.predictor.predict_batches(sources, workers=workers):
                yield [each.prediction for each in images], None, ends
            return
        for batch in (self._scorer or self.predictor.scorer_).predict_batches(sources, workers=workers):
            yield [each.prediction for each in batch.images], batch.features, batch.ends


def score_part(scorer: PartScorer, part: Part, *, workers: Workers = DEFAULT_WORKERS) -> "pyarrow.Table":
    """The scores of one part, a row an image in its order; the same to the bit wherever it is done."""
    ((_, table),) = scorer.score_parts([part], workers=workers)
    return table
