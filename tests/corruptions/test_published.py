"""Every corruption is as strong and as sharp as that of the published program."""

import json
from pathlib import Path

import pytest

from discopatch.corruptions import CORRUPTIONS, SEVERITIES

from .strength import measure

IMAGENET_C = json.loads((Path(__file__).parent / "published" / "imagenet_c.json").read_text())
SHARE = 1 / 4  # of the draws of the published figures: a sampling error of 0.2 dB at most
DECIBELS = 0.5
SHARPNESS = 0.15

most_nightly = pytest.mark.parametrize(
    "severity",
    [pytest.param(each, marks=pytest.mark.slow if each == 3 else pytest.mark.nightly) for each in SEVERITIES],
)


@pytest.mark.parametrize("name", CORRUPTIONS)
@most_nightly
def test_it_is_as_strong_and_as_sharp_as_that_of_imagenet_c(name: str, severity: int) -> None:
    found = measure(name, severity, share=SHARE)
    expected = {figure: by_severity[severity - 1] for figure, by_severity in IMAGENET_C[name].items()}
    assert found.psnr.mean() == pytest.approx(expected["psnr"], abs=DECIBELS)
    assert found.sharpness.mean() == pytest.approx(expected["sharpness"], rel=SHARPNESS, abs=2e-3)
