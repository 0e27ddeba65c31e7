"""The figure of speeds shows every way at its length, the slowest on top, others in grey."""

from typing import Any

import pytest

from discopatch.benchmark.figures.speed import speed_figure
from discopatch.benchmark.figures.style import GREY

FOUND = {"natural-v1, torch": 140.0, "natural-small-v1, torch": 19.0, "ResNet-50, onnxruntime": 146.0}


def test_bars_are_as_long_as_they_took_with_the_slowest_on_top() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.colors import to_hex

    figure = speed_figure(FOUND, others={"ResNet-50, onnxruntime"}, threads=2)
    (axis,) = figure.axes
    bars: list[Any] = list(axis.patches)
    assert [bar.get_width() for bar in bars] == [19.0, 140.0, 146.0]
    assert [label.get_text() for label in axis.get_yticklabels()][-1] == "ResNet-50, onnxruntime"
    small, large, other = (to_hex(bar.get_facecolor()) for bar in bars)
    assert other == GREY
    assert len({small, large, other}) == 3
