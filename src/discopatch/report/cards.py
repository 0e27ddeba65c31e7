"""The strangest images as cards: the picture, its heat to be laid over it, and what was found."""

import base64
import io
from collections.abc import Callable

from PIL import Image

from discopatch.decision.explanation import Explanation
from discopatch.report.colours import css_gradient
from discopatch.report.content import ReportContent, Scored
from discopatch.report.heatmap import LITTLE, MOST, heat_layer, picture_of
from discopatch.report.table import verdict
from discopatch.report.words import file_name, p_value_text, safe, score_format

_LARGEST_SIDE = 320
_QUALITY = 75  # two dozen pictures of nothing but noise, and a full table, still make less than 2 MB


def close_ups(content: ReportContent) -> str:
    """The whole section, or nothing where nothing was looked at."""
    if not content.close_ups:
        return ""
    number = score_format(content.calibration_scores)
    cards = [
        _card(rank, close_up, number, smallest=content.smallest_p_value)
        for rank, close_up in enumerate(content.close_ups, start=1)
    ]
    return (
        '<section aria-labelledby="strangest"><h2 id="strangest">The strangest images</h2>'
        '<p class="note">Colour shows which regions are stranger than regions of normal images, each image on its own'
        " scale. Press a picture to see it without.</p>"
        f'<div class="tools"><p class="legend"><span>{LITTLE}</span><i style="--heat:{css_gradient()}"></i>'
        f"<span>{MOST}</span></p>"
        '<button type="button" id="all-heat" aria-pressed="true" hidden>Heatmaps</button></div>'
        f'<ol class="cards">{"".join(cards)}</ol></section>'
    )


def _card(rank: int, close_up: Explanation, number: Callable[[float], str], *, smallest: float) -> str:
    scored = Scored.of(close_up.prediction)
    name = safe(scored.name)
    picture = _thumbnail(picture_of(close_up.pixels))
    heat = heat_layer(close_up.heat, size=picture.size)
    size = f'width="{picture.width}" height="{picture.height}"'
    reasons = "".join(f"<li>{safe(reason)}</li>" for reason in close_up.reasons)
    return (
        f'<li class="card"><label class="look"><input type="checkbox" checked autocomplete="off"'
        f' aria-label="Heatmap over {name}">'
        f'<img src="{data_uri(picture)}" {size} alt="{name}, as the model saw it">'
        f'<img class="heat" src="{data_uri(heat)}" {size} alt=""><span class="switch">Heatmap</span></label>'
        f'<div class="facts"><p><span class="rank">{rank}</span> {verdict(is_ood=scored.is_ood)}</p>'
        f"<h3>{file_name(scored.name)}</h3>"
        f"<dl><div><dt>Score</dt><dd>{number(scored.score)}</dd></div>"
        f"<div><dt>p-value</dt><dd>{p_value_text(scored.p_value, smallest=smallest)}</dd></div></dl>"
        f"{f'<ul>{reasons}</ul>' if reasons else ''}</div></li>"
    )


def _thumbnail(picture: Image.Image) -> Image.Image:
    small = picture.copy()
    small.thumbnail((_LARGEST_SIDE, _LARGEST_SIDE), Image.Resampling.LANCZOS)
    return small


def data_uri(image: Image.Image) -> str:
    """The image inside the page itself, small enough to be mailed."""
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=_QUALITY, alpha_quality=_QUALITY, method=4)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"
