"""The study of the monitor, in its smallest form."""

import json
from pathlib import Path

import numpy as np
import pytest

import monitoring
from discopatch.monitor.evidence import DIRECTIONS
from monitored import figures, real, rivals, streams


@pytest.mark.slow
def test_normal_streams_and_changes_are_simulated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(monitoring, "CALIBRATED", (99, 199))
    monkeypatch.setattr(monitoring, "AFTERS", (0, 40))
    monkeypatch.setattr(monitoring, "MOST", 150)
    out = tmp_path / "results.json"
    monitoring.simulate(out=out, streams=250, delayed=20, images=40)
    found = json.loads(out.read_text())
    assert found["false/99/tied/0"]["streams"] == 250
    assert found["delays/199/40"]["2 sd higher"]["found"] == 1
    assert found["delays/199/0"]["frozen"]["median"] <= 10
    before = capsys.readouterr().out
    monitoring.simulate(out=out, streams=250, delayed=20, images=40)
    assert before
    assert capsys.readouterr().out == "", "what is there is not made again"
    monitoring.tables(out=out)
    assert "2 sd higher" in capsys.readouterr().out
    assert set(figures.draw(found)) == {"delays"}


def test_the_textbook_martingale_is_worse_on_the_same_streams() -> None:
    found = streams.highest_evidence(19, 600, 0, streams=200)
    assert (found["textbook"] >= np.log(100)).sum() > (found["monitor"] >= np.log(100)).sum()


def test_a_window_is_compared_as_scipy_does() -> None:
    from scipy.stats import ks_2samp

    rng = np.random.default_rng(0)
    known, given = rng.normal(size=(3, 99)), rng.normal(size=(3, 220)) + 0.3
    found = rivals.ks_statistics(known, given)
    for stream in range(3):
        window = given[stream, 120:220]
        assert found[stream, 219] == pytest.approx(ks_2samp(known[stream], window).statistic)
    assert rivals.first_above(found, 1.0).tolist() == [np.inf] * 3


def made_scores(*, shift: float) -> dict[str, object]:
    rng = np.random.default_rng(3)
    found: dict[str, object] = {"calibration": rng.normal(size=199), "components": np.array(["acquisition", "content"])}
    names = ["normal"] + [f"{each}/{level}" for each in real.CORRUPTIONS for level in real.SEVERITIES]
    for name in names:
        by = 0.0 if name == "normal" else shift * int(name[-1])
        images = 400 if name == "normal" else 100
        found[name] = rng.normal(size=images) + by
        found[f"{name}/z"] = rng.normal(size=(images, 2)) + np.array([by, 0.0])
    return found


@pytest.mark.slow
def test_corrupted_images_are_found_and_described(tmp_path: Path) -> None:
    scores = made_scores(shift=0.8)
    changes = dict(real.changes(scores))  # type: ignore[arg-type]
    assert len(changes) == 4 * len(real.CORRUPTIONS)
    row = monitoring.real_row(real, scores, changes["defocus_blur, severity 2"], 20)
    assert row["found"] == 1
    assert row["median"] < 60
    assert row["component"] == "acquisition"
    assert set(row["directions"]) <= set(DIRECTIONS)
    assert row["inside"] >= 7
    trace = monitoring.real_trace(real, scores)
    content = {"trace/solar": trace, "images/solar/defocus_blur, severity 2": row}
    assert "defocus blur, severity 2" in monitoring.make_tables(content)["solar"]
    assert set(figures.draw(content)) == {"stream"}


def test_shares_are_told_with_their_interval() -> None:
    assert monitoring.binomial_text(0, 100) == "0.00% (0.00% to 3.62%)"
    assert monitoring.binomial_text(100, 100) == "100.00% (96.38% to 100.00%)"
