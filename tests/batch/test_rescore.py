"""Stored scores at another false-alarm rate: the decisions of the detector at that rate."""

from pathlib import Path

import pytest

from discopatch import Detector
from discopatch.batch import rescore, score_to
from discopatch.errors import RunError
from tests.samples import new_detector, one_camera

from .samples import contents, image_folder, part_files


@pytest.fixture
def scores(tiny: Detector, tmp_path: Path) -> Path:
    folder = image_folder(tmp_path / "in", 8)
    (folder / "bad.png").write_text("no image")
    score_to(tiny, folder, tmp_path / "scores", per_part=4)
    return tmp_path / "scores"


def test_a_new_folder_has_the_decisions_at_the_new_rate(tiny: Detector, scores: Path, tmp_path: Path) -> None:
    other, before = tiny.with_rate(0.4), contents(scores)
    rescore(scores, other, tmp_path / "new")
    score_to(other, tmp_path / "in", tmp_path / "expected", per_part=4)
    assert contents(tmp_path / "new") == contents(tmp_path / "expected")
    assert contents(scores) == before
    part_files(tmp_path / "new")[1].unlink()
    assert len(rescore(scores, other, tmp_path / "new").done()) == 3
    with pytest.raises(RunError, match="new"):
        rescore(scores, tiny.with_rate(0.3), tmp_path / "new")
    with pytest.raises(RunError, match="scores"):
        rescore(scores, other, scores)
    assert contents(scores) == before


def test_another_detector_is_refused(scores: Path, tmp_path: Path) -> None:
    before = contents(scores)
    with pytest.raises(RunError, match="detector"):
        rescore(scores, new_detector(head="logit").fit(one_camera(40), workers=1), tmp_path / "new")
    assert contents(scores) == before
