"""The report as one HTML file that works offline."""

import base64
import hashlib
import heapq
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_CEILING, Context, Decimal
from functools import cache
from importlib.resources import files
from math import floor, isfinite, log10
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from discopatch.evaluation import Evaluation
from discopatch.explain.heatmap import LEAST, MOST, colour_layer, css_gradient, to_image
from discopatch.gate import FolderTest
from discopatch.images import NamedImage, Pixels
from discopatch.report.content import ReportContent
from discopatch.report.histogram import Histogram
from discopatch.results import Explanation, FittedDetector, PredictedImage, Prediction
from discopatch.utils import counted, write_atomically

if TYPE_CHECKING:
    from discopatch.audit import Audit

MAX_CARDS = 100  # images with heatmaps, of 3 bytes a pixel in memory until the page is written
MAX_ROWS = 2_000  # rows that a phone sorts at once
_WIDTHS = {"wide": 960, "narrow": 340}  # two histograms, since scaled text is too small on a phone
_THUMBNAIL, _SMALL = (320, 320), (160, 160)
_QUALITY = 75  # with 24 images of noise and a full table the page is below 2 MB

_UNSHOWABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029\ufffe\uffff]")
_AFTER_FOLDER = re.compile(r"(?<=[/\\])")
_ROUND_UP = Context(prec=2, rounding=ROUND_CEILING)


class ReportBuilder:
    """Keeps every prediction, and the pixels of the `close_ups` flagged images with the highest scores."""

    def __init__(self, close_ups: int = MAX_CARDS) -> None:
        self.close_ups = close_ups
        self.predictions: list[Prediction] = []
        self._highest: list[tuple[float, int, NamedImage]] = []  # a heap, the lowest score first

    def collect(self, predicted: Iterable[PredictedImage]) -> Iterator[Prediction]:
        """Yields every prediction and keeps it."""
        for prediction, image, _ in predicted:
            self.predictions.append(prediction)
            if image is not None and prediction.score is not None and prediction.is_ood:
                self._keep(prediction.score, image)
            yield prediction

    def _keep(self, score: float, image: NamedImage) -> None:
        place = score, -len(self.predictions)  # of equal scores the first stays
        if len(self._highest) == self.close_ups and not (self._highest and place > self._highest[0][:2]):
            return  # the pixels of a GPU are not fetched
        pixels = image.pixels.copy()  # they may be part of a batch
        kept = NamedImage(image.name, pixels, image.size, image.out_of_range)
        heapq.heappush(self._highest, (*place, kept))
        if len(self._highest) > self.close_ups:
            heapq.heappop(self._highest)

    def write(
        self, path: Path, detector: FittedDetector, *, title: str, created: str, folder: FolderTest | None = None
    ) -> None:
        """Explains the flagged images with the highest scores, and writes the report as one HTML file.

        `folder` is the decision about all images together.
        """
        content = ReportContent(
            title=title,
            predictions=self.predictions,
            calibration_scores=detector.calibration_scores_,
            threshold=detector.threshold_,
            false_alarm_rate=detector.false_alarm_rate_,
            close_ups=[detector.explain(image) for _, _, image in sorted(self._highest, reverse=True)],
            settings=settings_text(detector),
            created=created,
            folder=folder,
            detection_rates=detector.detection_rates_,
            cautions=detector.cautions_,
        )
        write_report(path, content)


def write_report(path: Path, content: ReportContent) -> None:
    _write(path, render_report(content))


def _write(path: Path, page: str) -> None:
    write_atomically(path, lambda partial: partial.write_text(page, encoding="utf-8", newline="\n"))


def render_report(content: ReportContent) -> str:
    drawings = {name: Histogram(content, width=width) for name, width in _WIDTHS.items()}
    return _render("report.html.j2", content=content, drawings=drawings)


def write_evaluation(path: Path, evaluation: Evaluation, detector: FittedDetector, *, title: str, created: str) -> None:
    """Writes the results of `detector.evaluate`, with heatmaps of the worst wrong decisions, as one HTML file."""
    content = SimpleNamespace(
        title=title,
        evaluation=evaluation,
        refused=evaluation.refused,
        calibration_scores=detector.calibration_scores_,
        smallest_p_value=1 / (len(detector.calibration_scores_) + 1),
        settings={**settings_text(detector), "digest": evaluation.detector, "seed of the ranges": str(evaluation.seed)},
        created=created,
    )
    _write(path, _render("evaluation.html.j2", content=content))


def write_audit(path: Path, audit: "Audit", *, title: str, settings: Mapping[str, object], created: str) -> None:
    from discopatch.audit import MAX_GROUPS, MAX_SHOWN  # with torch, which exports do not need

    scores = audit.predictions.scores
    content = SimpleNamespace(
        title=title,
        audit=audit,
        refused=audit.broken,
        calibration_scores=scores[np.isfinite(scores)],
        smallest_p_value=0.0,
        settings=settings,
        created=created,
    )
    _write(path, _render("audit.html.j2", content=content, max_groups=MAX_GROUPS, max_shown=MAX_SHOWN))


def settings_text(detector: FittedDetector) -> dict[str, str]:
    elsewhere = ("detection_rates", "cautions")  # on the page
    listed = {name: str(value) for name, value in detector.settings().items() if name not in elsewhere}
    return {
        **{name.replace("_", " "): value for name, value in listed.items()},
        "false-alarm guarantee": detector.guarantee_.text,
    }


def _render(template: str, *, content: ReportContent | SimpleNamespace, **values: Any) -> str:
    page, behaviour = _environment().get_template(template), _resource("behaviour.js")
    return page.render(
        content=content,
        score=score_format(content.calibration_scores),
        legend=(LEAST, MOST),
        gradient=css_gradient(),
        max_rows=MAX_ROWS,
        policy=_content_security_policy(behaviour),
        style=theme() + _resource("style.css"),
        behaviour=behaviour,
        **values,
    )


def theme() -> Markup:
    """The CSS that the page of the service shares with the report."""
    return _resource("theme.css")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_showable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "counted": counted,
        "moment": moment,
        "p_value": p_value_text,
        "path_parts": _AFTER_FOLDER.split,
        "picture": Thumbnail.from_pixels,
        "percent": lambda share: f"{100 * share:g}\N{NO-BREAK SPACE}%",
        "px": lambda position: f"{position:.1f}",
        "roughly": lambda number: f"{number:,.0f}" if number >= 10 else f"{number:.2g}",
        "rounded_up": rounded_up,
        "thousands": lambda number: f"{number:,}",
        "thumbnail": Thumbnail.from_explanation,
    }
    environment.tests["finite"] = isfinite
    return environment


@cache
def _resource(name: str) -> Markup:
    """A file of the template folder that is part of the page."""
    return Markup(files(__package__).joinpath("templates", name).read_text(encoding="utf-8"))


def _showable(value: Any) -> Any:
    """The value with replacement characters in place of those that browsers cannot show; it is escaped later."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _UNSHOWABLE.sub("\N{REPLACEMENT CHARACTER}", value)
    return value


def _content_security_policy(behaviour: str) -> str:
    """Nothing is fetched, and only our script runs in browsers with hashes (which then ignore unsafe-inline)."""
    digest = base64.b64encode(hashlib.sha256(f"\n{behaviour}".encode()).digest()).decode()
    return (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'unsafe-inline' 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


@dataclass(frozen=True)
class Thumbnail:
    """A small image and its heatmap, of one size, both as data URIs inside the page."""

    image: str
    heatmap: str
    width: int
    height: int

    @classmethod
    def from_pixels(cls, pixels: Pixels) -> "Thumbnail":
        """A smaller one without a heatmap."""
        image = to_image(pixels)
        image.thumbnail(_SMALL, Image.Resampling.LANCZOS)
        return cls(_data_uri(image), "", *image.size)

    @classmethod
    def from_explanation(cls, explanation: Explanation) -> "Thumbnail":
        image = to_image(explanation.image)
        image.thumbnail(_THUMBNAIL, Image.Resampling.LANCZOS)
        heatmap = colour_layer(explanation.anomaly_map, size=image.size)
        return cls(_data_uri(image), _data_uri(heatmap), *image.size)


def _data_uri(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=_QUALITY, alpha_quality=_QUALITY, method=4)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def moment(created: str) -> str:
    """An ISO 8601 time to the minute, with its time zone; any other text unchanged."""
    try:
        parsed = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{parsed:%Y-%m-%d %H:%M} {parsed.tzname() or ''}".rstrip()


def p_value_text(p_value: float, smallest: float) -> str:
    """The p-value, rounded up so that it never claims too much; the smallest possible one is shown as a bound."""
    if p_value <= smallest * (1 + 1e-9):
        return f"≤\N{NO-BREAK SPACE}{rounded_up(smallest)}"
    return rounded_up(p_value)


def rounded_up(share: float) -> str:
    exact = Decimal(f"{share:.12g}")  # 0.07 is not 0.07000000000000001
    return f"{_ROUND_UP.plus(exact).normalize():f}"


def score_format(scores: NDArray[np.float64]) -> Callable[[float], str]:
    """A function that formats a score with the decimals that distinguish these scores."""
    low, high = np.quantile(np.clip(scores, -1e100, 1e100), [0.05, 0.95]) if scores.size else (0, 0)
    scale = float(high - low) or float(abs(high)) or 1.0
    decimals = 2 - floor(log10(scale))

    def text(score: float) -> str:
        readable = decimals <= 8 and abs(score) < 1e9
        return f"{score:z.{max(decimals, 0)}f}" if readable else f"{score:z.6g}"

    return text
