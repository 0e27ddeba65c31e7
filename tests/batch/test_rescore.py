"""Another rate or another head over what is stored, without the images."""

import json
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from discopatch import Detector, ParameterError, ScoresError
from discopatch.batch import open_scores, open_store, read_features, read_scores, rescore, score_to
from discopatch.batch.features import Column, Layout
from discopatch.encoders import Features
from discopatch.export import export_detector
from tests.export.samples import tiny_detector
from tests.samples import one_camera, tiny_weights

from .samples import contents, image_folder, part_files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = image_folder(tmp_path_factory.mktemp("images") / "in", 21)
    (folder / "005-text.png").write_text("no image")
    return folder


@pytest.fixture(scope="module")
def scores(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("scores") / "scores"
    score_to(tiny_detector(), folder, out, per_part=8, features=True)
    return out


@cache
def fitted(head: str, *, seed: int = 0) -> Detector:
    return Detector(tiny_weights(), head=head, false_alarm_rate=0.1, device="cpu", seed=seed).fit(
        one_camera(60, seed=3), workers=1
    )


def test_another_rate_leaves_the_scores_as_they_are(folder: Path, scores: Path, tmp_path: Path) -> None:
    other = tiny_detector().with_rate(0.35)
    rescore(scores, other, tmp_path / "new")
    score_to(other, folder, tmp_path / "expected", per_part=8)
    found, expected = (contents(tmp_path / name) for name in ("new", "expected"))
    parts = [name for name in expected if name.startswith("part-")]
    assert {name: found[name] for name in parts} == {name: expected[name] for name in parts}
    before, after = (
        read_scores(each).to_table()["is_ood"].drop_null().to_pylist() for each in (scores, tmp_path / "new")
    )
    assert sum(before) < sum(after)


def test_another_rate_needs_no_features(folder: Path, tmp_path: Path) -> None:
    score_to(tiny_detector(), folder, tmp_path / "plain", per_part=8)
    run = rescore(tmp_path / "plain", tiny_detector().with_rate(0.35), tmp_path / "new")
    assert run.counts.images == 22
    manifest = json.loads((tmp_path / "new" / "_manifest.json").read_text())
    old = json.loads((tmp_path / "plain" / "_manifest.json").read_text())
    assert manifest["rescored"] == {"of": "scores", "detector": old["detector"]["digest"]}


@pytest.mark.parametrize("head", ["combined", "statistics", "logit", "sigmoid"])
def test_another_head_over_features_is_near_its_scores_of_the_images(
    head: str, folder: Path, scores: Path, tmp_path: Path
) -> None:
    other = fitted(head, seed=1)
    rescore(scores, other, tmp_path / "new")
    table, expected = read_scores(tmp_path / "new").to_table(), other.predict(folder)
    assert table["name"].to_pylist() == list(expected.names)
    assert table["error"].to_pylist() == list(expected.errors)
    found = table["score"].to_numpy(zero_copy_only=False)
    spread = other.calibration_scores_.std()
    assert np.nanmax(np.abs(found - expected.scores)) < 0.02 * spread
    assert (np.isnan(found) == np.isnan(expected.scores)).all()
    manifest = json.loads((tmp_path / "new" / "_manifest.json").read_text())
    assert manifest["rescored"]["of"] == "features in float16"
    assert manifest["features"] is None


def test_decisions_are_those_of_the_rescored_scores(scores: Path, tmp_path: Path) -> None:
    other = fitted("combined", seed=1).with_rate(0.3)
    rescore(scores, other, tmp_path / "new")
    table = read_scores(tmp_path / "new").to_table().to_pylist()
    for row in table:
        if row["error"] is None:
            decision = other._decide(row["name"], row["score"])
            assert (row["p_value"], row["is_ood"]) == (decision.p_value, decision.is_ood)
        else:
            assert row["score"] is row["p_value"] is row["is_ood"] is None


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_number_of_threads_does_not_show(threads: int, scores: Path, tmp_path: Path) -> None:
    other = fitted("combined", seed=1)
    rescore(scores, other, tmp_path / "one", threads=1)
    rescore(scores, other, tmp_path / "many", threads=threads)
    assert contents(tmp_path / "one") == contents(tmp_path / "many")


def test_it_goes_on_where_it_was_and_takes_what_is_new(folder: Path, tmp_path: Path) -> None:
    source, out, new = tmp_path / "in", tmp_path / "scores", tmp_path / "new"
    shutil.copytree(folder, source)
    other = tiny_detector().with_rate(0.35)
    score_to(tiny_detector(), source, out, per_part=8, rank=0, world=2)
    assert rescore(out, other, new).parts == 2
    image_folder(source, 3, first="later", seed=7)
    score_to(tiny_detector(), source, out)
    part_files(new)[0].unlink()
    assert rescore(out, other, new).parts == 3
    assert read_scores(new).count_rows() == 25
    rescore(out, other, tmp_path / "at once")
    assert contents(new) == contents(tmp_path / "at once")


def test_ranks_share_the_work(scores: Path, tmp_path: Path) -> None:
    other = tiny_detector().with_rate(0.35)
    assert [rescore(scores, other, tmp_path / "new", rank=rank, world=2).parts for rank in (1, 0)] == [1, 2]
    rescore(scores, other, tmp_path / "expected")
    assert contents(tmp_path / "new") == contents(tmp_path / "expected")


def test_other_networks_are_refused(scores: Path, tmp_path: Path) -> None:
    other = Detector(tiny_weights(seed=5), head="statistics", false_alarm_rate=0.1, device="cpu")
    other.fit(one_camera(60), workers=1)
    with pytest.raises(ScoresError, match="other networks"):
        rescore(scores, other, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_head_needs_features_that_are_there(
    folder: Path, scores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score_to(tiny_detector(), folder, tmp_path / "plain")
    with pytest.raises(ScoresError, match="--features"):
        rescore(tmp_path / "plain", fitted("statistics"), tmp_path / "new")
    by_places = fitted("combined", seed=1)
    monkeypatch.setattr(by_places.head_, "needs", ("logits", "statistics", "pooled", "places"))
    with pytest.raises(ScoresError, match="--places"):
        rescore(scores, by_places, tmp_path / "new")


def test_two_folders_are_needed(scores: Path, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="another folder"):
        rescore(scores, tiny_detector(), scores)
    with pytest.raises(ParameterError, match="threads"):
        rescore(scores, tiny_detector(), tmp_path / "new", threads=0)
    rescore(scores, tiny_detector().with_rate(0.35), tmp_path / "new")
    with pytest.raises(ScoresError, match="false-alarm rate"):
        rescore(scores, tiny_detector().with_rate(0.3), tmp_path / "new")


@pytest.mark.slow
def test_an_export_is_rescored_at_another_rate_alone(folder: Path, scores: Path, tmp_path: Path) -> None:
    import discopatch

    export_detector(tiny_detector(), tmp_path / "export")
    runtime = discopatch.load(tmp_path / "export")
    with pytest.raises(ParameterError, match="the detector that was exported"):
        score_to(runtime, folder, tmp_path / "scores", features=True)
    score_to(runtime, folder, tmp_path / "scores", per_part=8)
    table = read_scores(tmp_path / "scores").to_table()
    expected = runtime.predict(folder)
    assert table["score"].to_pylist() == [each.score for each in expected]
    other = runtime.with_rate(0.35)
    rescore(tmp_path / "scores", other, tmp_path / "new")
    assert read_scores(tmp_path / "new").to_table()["is_ood"].to_pylist() == [
        each.is_ood for each in other.predict(folder)
    ]
    with pytest.raises(ScoresError, match="an export"):
        rescore(scores, runtime, tmp_path / "other")


def test_features_come_back_but_for_rounding(folder: Path, scores: Path) -> None:
    found = Features.concatenate(list(read_features(scores)))
    images = [str(path) for path in sorted(folder.iterdir()) if "text" not in path.name]
    expected = tiny_detector().extract_features(images)
    for kind in ("logits", "statistics"):
        stored, exact = getattr(found, kind), getattr(expected, kind)
        assert stored.shape == exact.shape
        assert np.abs(stored - exact).max() < 1e-3 * np.abs(exact).max()
    deviation = expected.statistics - tiny_detector().head_.get_submodule("statistics.gaussian").mean.numpy()  # type: ignore[operator]
    assert np.abs(found.statistics - expected.statistics).max() < 1e-3 * np.abs(deviation).max()
    assert found.pooled.shape == (21, 16)
    assert [len(each.logits) for each in read_features(scores, kinds=["statistics"])] == [7, 8, 6]


def test_places_are_stored_where_they_are_asked_for(folder: Path, tmp_path: Path) -> None:
    score_to(tiny_detector(), folder, tmp_path / "scores", places=True)
    layout = open_scores(open_store(tmp_path / "scores")).manifest.features
    assert layout is not None
    assert layout.kinds == ("logits", "statistics", "pooled", "places")
    encoder = tiny_detector().scorer_with(["places"]).encoder
    (expected,) = (each.features for each in encoder.extract(folder / "000.png"))  # type: ignore[union-attr]
    found = next(read_features(tmp_path / "scores"))
    assert (found.places[0] == expected.places[0]).all()  # encoders give them in float16


def test_scores_are_the_same_with_features_and_without(folder: Path, scores: Path, tmp_path: Path) -> None:
    score_to(tiny_detector(), folder, tmp_path / "plain")
    plain = read_scores(tmp_path / "plain").to_table()
    assert read_scores(scores).to_table(columns=plain.column_names) == plain


def test_a_statistic_far_from_zero_keeps_its_digits_and_one_beyond_the_range_is_clipped() -> None:
    values = np.array([[1000.25, -2000.5, 1e9]], np.float32)
    column = Column(kind="statistics", shape=(3,), centre=(1000.0, -2000.0, 0.0), scale=(0.5, 1.0, 1.0))
    assert column.decode(column.encode(values)).tolist() == [[1000.25, -2000.5, 65504.0]]
    plain = Column(kind="statistics", shape=(3,))
    assert plain.decode(plain.encode(values)).tolist()[0][:2] == [1000.0, -2000.0]
    assert Layout((column,)).row_bytes == 6


def test_a_damaged_part_is_told_by_name(scores: Path, tmp_path: Path) -> None:
    shutil.copytree(scores, tmp_path / "scores")
    part = part_files(tmp_path / "scores")[1]
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(ScoresError, match=part.name):
        rescore(tmp_path / "scores", tiny_detector().with_rate(0.35), tmp_path / "new")


def test_a_score_that_is_no_number_is_a_refusal(scores: Path, tmp_path: Path) -> None:
    shutil.copytree(scores, tmp_path / "scores")
    part = part_files(tmp_path / "scores")[0]
    table = pyarrow.parquet.read_table(part)
    rows = table["logits"].to_pylist()
    rows[0] = [float("nan")] * len(rows[0])
    logits = pyarrow.array([None if row is None else np.array(row, np.float16) for row in rows], table["logits"].type)
    pyarrow.parquet.write_table(table.set_column(table.column_names.index("logits"), "logits", logits), part)
    run = rescore(tmp_path / "scores", fitted("logit"), tmp_path / "new")
    assert {reason.value: count for reason, count in run.counts.refusals.refused.items()} == {
        "not_finite": 1,
        "not_an_image": 1,
    }
