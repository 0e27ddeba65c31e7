import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from discopatch.baselines.method import Features
from discopatch.benchmark import benchplan, runner
from discopatch.benchmark.benchplan import BenchPlan
from discopatch.benchmark.eyes import ClassifierEye
from discopatch.benchmark.methods import MethodName
from discopatch.benchmark.metrics import auroc
from discopatch.benchmark.pool import Pool
from discopatch.benchmark.report import measure, protocol_report
from discopatch.benchmark.runner import Runner, prepare
from discopatch.benchmark.storage import Storage
from discopatch.benchmark.suites.suite import Suite
from discopatch.images import Pixels, Transform
from discopatch.images.corrupt import corrupt
from discopatch.scoring import Scorer
from tests.benchmark.bench_samples import METHODS, Thumbnail, make_eyes, make_plan, make_runner, make_suite
from tests.scoring.samples import tiny_weights


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(1, frost=False) as pool:
        yield pool


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    return make_suite(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def finished(suite: Suite, pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    runner = make_runner(make_plan(suite), tmp_path_factory.mktemp("run"), pool)
    runner.run()
    return runner


def seen_by_thumbnail(runner: Runner) -> int:
    eye = runner.eyes["thumbnail"]
    assert isinstance(eye, ClassifierEye)
    assert isinstance(eye.backbone, Thumbnail)
    return eye.backbone.seen


def again(runner: Runner, folder: Path, pool: Pool, plan: BenchPlan | None = None) -> Runner:
    """A new process would begin like this: the same folder, networks that have seen nothing."""
    return make_runner(plan or runner.plan, folder, pool)


def test_every_set_has_a_score_for_every_image_of_every_method(finished: Runner) -> None:
    names = {f"0:{name}" for name in METHODS}
    for protocol in ("matched", "paper"):
        for planned in finished.plan.sets(finished.plan.protocol(protocol)):
            scores = finished.scores.read(protocol, planned.name)
            assert scores.keys() == names
            assert all(each.shape == (len(planned.images),) and np.isfinite(each).all() for each in scores.values())


def test_a_score_is_what_the_scorer_gives_for_the_same_picture(finished: Runner, suite: Suite) -> None:
    picture = Transform(size=64)(np.asarray(Image.open(suite.test[3].path)))
    shifted = corrupt(picture, "gaussian_noise", 5, seed=3)
    by_hand = Scorer(tiny_weights(), sampling="dense").score_pixels(shifted[None])[0]
    assert finished.scores.read("matched", "gaussian_noise/5")["0:discopatch/logit"][3] == pytest.approx(by_hand)


def test_a_finished_run_looks_at_nothing_again(finished: Runner, pool: Pool) -> None:
    second = again(finished, finished.folder, pool)
    second.run()
    assert seen_by_thumbnail(second) == 0


def test_a_run_that_lost_its_scores_takes_the_features_and_gives_the_same(
    finished: Runner, pool: Pool, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    shutil.rmtree(folder / "scores")
    second = again(finished, folder, pool)
    second.run()
    assert seen_by_thumbnail(second) <= 3 * 51, "timed on one image, never looked at the sets again"
    for name in ("test", "coins", "contrast/1", "control coins"):
        before, after = (each.scores.read("matched", name) for each in (finished, second))
        assert {key: each.tolist() for key, each in before.items()} == {
            key: each.tolist() for key, each in after.items()
        }


def test_a_run_that_is_stopped_midway_goes_on(suite: Suite, pool: Pool, finished: Runner, tmp_path: Path) -> None:
    class Stopped(Exception):  # noqa: N818 - not an error
        pass

    def stop(what: str, done: int, total: int) -> None:
        if what == "matched: contrast/1":
            raise Stopped

    first = make_runner(make_plan(suite), tmp_path, pool)
    first.tell = stop
    with pytest.raises(Stopped):
        first.run()
    looked = seen_by_thumbnail(first)
    second = again(first, tmp_path, pool)
    second.run()
    assert looked > 0
    assert seen_by_thumbnail(second) < seen_by_thumbnail(finished), "what was seen before is not seen again"
    expected = finished.scores.read("matched", "contrast/5")
    found = second.scores.read("matched", "contrast/5")
    assert {key: each.tolist() for key, each in found.items()} == {key: each.tolist() for key, each in expected.items()}


def test_a_method_that_is_added_later_costs_no_second_look(finished: Runner, pool: Pool, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    eyes = make_eyes()
    methods = [*METHODS, MethodName("thumbnail", "mahalanobis")]
    more = Runner(finished.plan, eyes, methods, folder, finished.cache, pool)
    more.run()
    assert "0:thumbnail/mahalanobis" in more.scores.read("matched", "test")
    assert seen_by_thumbnail(more) < 60, "only timed on one image"


def test_other_weights_in_the_same_folder_are_never_taken_for_the_old_ones(
    finished: Runner, pool: Pool, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    other = make_runner(finished.plan, folder, pool, eyes=make_eyes(seed=1))
    other.run()
    before, after = (each.scores.read("matched", "test")["0:discopatch/logit"] for each in (finished, other))
    assert not np.allclose(before, after)


def test_seeds_fit_on_other_images_and_test_on_the_same(suite: Suite, pool: Pool, tmp_path: Path) -> None:
    plan = make_plan(suite, seeds=(0, 1), protocols=("matched",), corruptions=("contrast",), severities=(5,), fit=20)
    runner = make_runner(plan, tmp_path, pool)
    runner.run()
    protocol = plan.protocol("matched")
    assert plan.fit_set(protocol, 0).files != plan.fit_set(protocol, 1).files
    scores = runner.scores.read("matched", "contrast/5")
    assert not np.allclose(scores["0:thumbnail/knn"], scores["1:thumbnail/knn"])
    assert np.array_equal(scores["0:discopatch/logit"], scores["1:discopatch/logit"]), (
        "learns nothing, so cannot differ"
    )
    report = protocol_report(
        plan, measure(plan, "matched", runner.scores, pool), [str(each) for each in METHODS], "discopatch/combined"
    )
    mean, spread = report["seeds"]["covariate"]["thumbnail/knn"]["auroc"]
    values = [
        auroc(runner.scores.read("matched", "test")[f"{seed}:thumbnail/knn"], scores[f"{seed}:thumbnail/knn"])
        for seed in (0, 1)
    ]
    assert [mean, spread] == pytest.approx([np.mean(values), np.std(values, ddof=1)], abs=1e-5)


def test_figures_are_those_of_the_stored_scores(finished: Runner, pool: Pool) -> None:
    plan, names = finished.plan, [str(name) for name in METHODS]
    report = protocol_report(plan, measure(plan, "matched", finished.scores, pool), names, "discopatch/combined")
    test, coins, along = (finished.scores.read("matched", name) for name in ("test", "coins", "control coins"))
    for name in names:
        found = report["sets"]["coins"]["methods"][name]
        assert found["auroc"][0] == pytest.approx(auroc(test[f"0:{name}"], coins[f"0:{name}"]), abs=1e-5)
        assert found["control"][0] == pytest.approx(auroc(test[f"0:{name}"], along[f"0:{name}"]), abs=1e-5)
        assert found["route_matched"][0] == pytest.approx(auroc(along[f"0:{name}"], coins[f"0:{name}"]), abs=1e-5)
        cells = [report["corruptions"][c][s][name]["auroc"][0] for c in ("gaussian_noise", "contrast") for s in "15"]
        mean = report["means"]["covariate"][name]["auroc"]
        assert mean[0] == pytest.approx(np.mean(cells), abs=2e-5)
        assert mean[1] <= mean[0] <= mean[2]
        assert report["control"][name] == [0.5, 0.5, 0.5] or report["control"][name][0] == 0.5
        if name != "discopatch/combined":
            gap = report["means"]["covariate"]["discopatch/combined"]["auroc"][0] - mean[0]
            assert report["differences"]["covariate"][name]["auroc"][0] == pytest.approx(gap, abs=2e-5)


def test_the_papers_protocol_has_a_control_that_is_not_one_half_by_construction(finished: Runner) -> None:
    test, severity_0 = (finished.scores.read("paper", name) for name in ("test", "control corrupted"))
    assert not np.array_equal(test["0:discopatch/logit"], severity_0["0:discopatch/logit"])
    one, other = (finished.scores.read("matched", name)["0:discopatch/logit"] for name in ("test", "control corrupted"))
    assert np.array_equal(one, other)


def test_each_method_is_timed(finished: Runner) -> None:
    found = finished.latencies()
    assert found.keys() == {str(name) for name in METHODS}
    assert all(0 < each < 60_000 for each in found.values())


def test_an_image_that_cannot_be_read_is_an_error_that_names_it(suite: Suite, tmp_path: Path) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no picture")
    file = type(suite.test[0])("bad.png", bad)
    with pytest.raises(ValueError, match=r"bad\.png in .* cannot be read .*: copy it again"):
        prepare([file], (), 0)


def test_a_method_that_an_eye_cannot_feed_is_refused_at_once(suite: Suite, pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="thumbnail does not show what rankfeat needs"):
        Runner(make_plan(suite), make_eyes(), [MethodName("thumbnail", "rankfeat")], tmp_path, None, pool)  # type: ignore[arg-type]


def test_scores_do_not_hang_on_how_many_images_are_held_at_once(
    finished: Runner, pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "TOGETHER", 4)
    held: list[int] = []
    original = Thumbnail.look

    def look(self: Thumbnail, pixels: Pixels, kinds: Collection[str]) -> Features:
        held.append(len(pixels))
        return original(self, pixels, kinds)

    monkeypatch.setattr(Thumbnail, "look", look)
    small = make_runner(finished.plan, tmp_path, pool)
    small.run()
    assert max(held) == 4
    for name in ("test", "coins", "contrast/5"):
        expected, found = (each.scores.read("matched", name) for each in (finished, small))
        assert found.keys() == expected.keys()
        for key in found:
            np.testing.assert_allclose(found[key], expected[key], rtol=1e-9)


def test_the_control_of_a_large_set_is_stored_as_some_of_its_files_are(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchplan, "MOST_READ", 2)
    files = suite.others[0].files
    benchplan.storages_of.cache_clear()
    found = benchplan.storages_of(files)
    benchplan.storages_of.cache_clear()
    assert len(files) > 2
    assert found == tuple(Storage.of(file.read()) for file in benchplan.drawn(files, 2))
