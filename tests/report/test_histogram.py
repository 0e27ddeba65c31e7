"""The histogram counts every image, and any scores can be drawn."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discopatch.report.histogram import Histogram
from discopatch.report.page import render_report

from .samples import content, scored

SCORES = st.floats(allow_nan=False, allow_infinity=False)


def drawings(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(each) for each in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)]


@settings(max_examples=100, deadline=None)
@given(st.lists(SCORES, max_size=8), st.lists(SCORES, max_size=8), st.floats(allow_nan=False))
def test_any_scores_can_be_drawn(calibration: list[float], scores: list[float], threshold: float) -> None:
    predictions = [scored("a.png", score, is_ood=score > threshold) for score in scores]
    page = render_report(content(predictions, calibration_scores=np.array(calibration), threshold=threshold))
    assert "nan" not in re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)
    for drawing in drawings(page):
        for number in re.findall(r' (?:x|y|width|height)="([^"]*)"', ElementTree.tostring(drawing, encoding="unicode")):
            assert -1 <= float(number) <= 1000


@settings(max_examples=200, deadline=None)
@given(
    st.lists(SCORES, max_size=20),
    st.lists(SCORES, max_size=20),
    st.floats(allow_nan=False),
    st.sampled_from([340, 960]),
)
def test_every_image_is_in_one_bar(normal: list[float], new: list[float], threshold: float, width: int) -> None:
    predictions = [scored("a.png", score) for score in new]
    report = content(predictions, calibration_scores=np.array(normal), threshold=threshold)
    drawing = Histogram(report, width=width)
    assert (np.diff(drawing.edges) > 0).all()
    counted = [sum(bar.images for bar in panel.bars) for panel in drawing.panels]
    assert counted == [len(normal), len(new)]
    if drawing.threshold is not None and abs(threshold) < 1e100:
        flagged = sum(bar.images for bar in drawing.panels[1].bars if bar.flagged)
        assert flagged == sum(score > threshold for score in new), "no bar is half flagged"


@pytest.mark.parametrize("scale", [1e3, 1e300])
def test_outliers_do_not_squeeze_the_bulk(scale: float) -> None:
    rng = np.random.default_rng(0)
    normal, new = rng.normal(size=500), np.append(rng.normal(size=100), [scale, 2 * scale, -scale])
    report = content([scored(f"{score}", score) for score in new], calibration_scores=normal, threshold=2.3)
    drawing = Histogram(report, width=960)
    assert len(drawing.panels[0].bars) > 3
    assert drawing.panels[1].beyond == 2
    assert drawing.threshold == 2.3


@pytest.mark.parametrize(("threshold", "arrow"), [(1e9, "→"), (-1e9, "←")])
def test_a_threshold_off_the_axis_is_pointed_to(threshold: float, arrow: str) -> None:
    report = content([scored(f"{n}", n / 10) for n in range(9)], threshold=threshold)
    for drawing in drawings(render_report(report)):
        assert any(arrow in "".join(text.itertext()) for text in drawing.iter("text"))


def test_it_is_drawn_for_wide_and_narrow_pages_and_can_be_read_aloud() -> None:
    predictions = [scored(f"{n}.png", n / 60, is_ood=n > 59) for n in range(67)]
    wide, narrow = drawings(render_report(content(predictions)))
    for drawing in (wide, narrow):
        ids = {each.get("id"): each.text for each in drawing if each.tag in ("title", "desc")}
        labels = drawing.attrib["aria-labelledby"].split()
        assert list(ids) == labels
        assert {"199", "67", "7"} <= set(re.findall("[0-9.]*[0-9]", ids[labels[1]] or ""))
        bars = [
            int(each[0].text.split(": ")[1].split()[0]) for each in drawing.iter("rect") if len(each) and each[0].text
        ]
        assert sum(bars) == 199 + 67
    assert not set(wide.attrib["aria-labelledby"].split()) & set(narrow.attrib["aria-labelledby"].split())
