"""The curve over steps: figures as measured, and extrapolations that say what they are."""

from typing import Any

import numpy as np
import pytest

import paper_curve


def curve(values: dict[int, float]) -> dict[str, Any]:
    """The same AUROC for every score and group."""
    return {
        str(step): {
            "auroc": {
                group: {name: [value, value - 0.01, value + 0.01] for name in paper_curve.METHODS}
                for group in paper_curve.GROUPS
            }
        }
        for step, value in values.items()
    }


def at_the_papers_length(found: dict[str, Any]) -> list[float]:
    both = paper_curve.extrapolated(found, "discopatch-64/sigmoid", "far", [paper_curve.PAPERS_STEPS])
    return [float(value) for value in both[:, 0]]


def test_what_rises_with_every_doubling_goes_on_rising_on_the_line() -> None:
    line, _ = at_the_papers_length(curve({1000: 0.5, 2000: 0.52, 4000: 0.54, 8000: 0.56}))
    assert line == pytest.approx(0.56 + 0.02 * np.log2(paper_curve.PAPERS_STEPS / 8000))


def test_what_comes_to_rest_stays_there_by_the_power_law_and_nothing_exceeds_one() -> None:
    steps = (1000, 2000, 4000, 8000)
    resting = {step: 0.8 - 0.2 * (1000 / step) ** 1.0 for step in steps}
    assert at_the_papers_length(curve(resting))[1] == pytest.approx(0.8, abs=0.01)
    steep, _ = at_the_papers_length(curve({step: 0.2 * place + 0.3 for place, step in enumerate(steps)}))
    assert steep == 1.0


def test_the_table_has_every_step_and_both_ends_of_what_is_extrapolated() -> None:
    text = paper_curve.curve_table(curve({1000: 0.5, 2000: 0.52, 4000: 0.54, 8000: 0.56}))
    lines = text.splitlines()
    assert len(lines) == 2 + len(paper_curve.METHODS) * len(paper_curve.GROUPS)
    assert "| 1,000 | 2,000 | 4,000 | 8,000 | 573,657, extrapolated |" in lines[0]
    assert "56.0 [55.0, 57.0]" in lines[2]
    assert " to " in lines[2].split("|")[-2]
