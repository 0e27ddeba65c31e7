"""What is gathered while images pass: enough for a report, or no more than counts."""

import numpy as np

from discopatch.decision import Judgement, Prediction
from discopatch.images import Reason, Refusal
from discopatch.report import Findings

PIXELS = np.zeros((8, 8, 3), np.uint8)
REFUSAL = Refusal("broken.png", Reason.EMPTY, "nothing in it")
JUDGEMENTS = [
    *(Judgement(Prediction(f"{n}.png", float(n), 0.5, n > 2), PIXELS, None) for n in range(5)),
    Judgement(Prediction(REFUSAL.name, None, None, None, REFUSAL.error), None, REFUSAL),
]


def test_every_prediction_is_handed_on_and_counted() -> None:
    for for_report in (True, False):
        findings = Findings(2, for_report=for_report)
        assert list(findings.gather(JUDGEMENTS)) == [each.prediction for each in JUDGEMENTS]
        assert (findings.flagged, findings.refusals.accepted, findings.refusals.count) == (2, 5, 1)


def test_without_a_report_nothing_is_remembered_so_that_a_million_images_need_no_memory() -> None:
    remembered, counted = Findings(2), Findings(2, for_report=False)
    for findings in (remembered, counted):
        list(findings.gather(JUDGEMENTS))
    assert len(remembered.predictions) == 6
    assert [picture.name for _, _, picture in sorted(remembered._strangest)] == ["3.png", "4.png"]
    assert counted.predictions == []
    assert counted._strangest == []
