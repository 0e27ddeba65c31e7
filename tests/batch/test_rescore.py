"""Stored scores at another false-alarm rate: the decisions of the detector at that rate."""

from pathlib import Path

import pytest

from discopatch import Detector
from discopatch.batch import open_scores, read_scores, rescore, score_to
from discopatch.batch.output import OutputFolder
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


def test_decisions_are_replaced_in_place_and_continued_after_an_interruption(
    tiny: Detector, scores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, write = tiny.with_rate(0.4), OutputFolder.write

    def stop_at_second(self: OutputFolder, name: str, content: bytes) -> None:
        if name == part_files(scores)[1].name:
            raise InterruptedError
        write(self, name, content)

    monkeypatch.setattr(OutputFolder, "write", stop_at_second)
    with pytest.raises(InterruptedError):
        rescore(scores, other)
    monkeypatch.undo()
    with pytest.raises(RunError, match="rescore"):
        read_scores(scores)
    with pytest.raises(RunError, match="rescore"):
        score_to(other, tmp_path / "in", scores)
    rescore(scores, other)
    score_to(other, tmp_path / "in", tmp_path / "expected", per_part=4)
    assert contents(scores) == contents(tmp_path / "expected")
    assert open_scores(scores).summary().refusals.count == 1


def test_another_detector_is_refused(tiny: Detector, scores: Path) -> None:
    before = contents(scores)
    with pytest.raises(RunError, match="detector"):
        rescore(scores, new_detector(head="logit").fit(one_camera(40), workers=1))
    assert contents(scores) == before
