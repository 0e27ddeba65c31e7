"""A run scores every image with every method once, continues where it stopped, and sums up the stored scores."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from discopatch.bench.baselines import CLASSES
from discopatch.bench.baselines.distances import KNN, MDS
from discopatch.bench.dataset import BenchPlan, CorruptionPool, ImageFile, ImageSet, Suite
from discopatch.bench.networks.base import PENULTIMATE, Array
from discopatch.bench.runner import BenchRun
from discopatch.bench.summary import add_arrays, read_scores, stored_keys
from discopatch.corruptions import corrupt
from discopatch.encoders import DiscriminatorEncoder
from discopatch.errors import ImageError
from discopatch.heads import LogitHead
from discopatch.images import Transform
from discopatch.metrics import auroc
from tests.bench.bench_samples import METHODS, Thumbnail, make_plan, make_run
from tests.samples import tiny_weights

REFERENCE = "discopatch/combined"


@pytest.fixture(scope="module")
def finished(suite: Suite, pool: CorruptionPool, tmp_path_factory: pytest.TempPathFactory) -> BenchRun:
    runner = make_run(make_plan(suite), tmp_path_factory.mktemp("run"), pool)
    runner.score()
    return runner


@pytest.fixture
def copied(finished: BenchRun, tmp_path: Path) -> Path:
    """A copy of the finished run's folder."""
    return Path(shutil.copytree(finished.folder, tmp_path / "run"))


def scores_of(run: BenchRun, name: str, protocol: str = "matched") -> dict[str, Array]:
    return read_scores(run.scores / protocol, name)


def extracted_by_thumbnail(runner: BenchRun) -> int:
    network = runner.encoders["thumbnail"].network
    assert isinstance(network, Thumbnail)
    return network.extracted


def assert_same_scores(one: BenchRun, other: BenchRun, *names: str, rtol: float = 0) -> None:
    for name in names:
        expected, found = (scores_of(each, name) for each in (one, other))
        assert found.keys() == expected.keys()
        for key in found:
            np.testing.assert_allclose(found[key], expected[key], rtol=rtol)


def test_a_score_is_that_of_the_encoder_and_head_for_the_same_image(finished: BenchRun, suite: Suite) -> None:
    image = Transform(size=64)(np.asarray(Image.open(suite.test[3].path)))
    shifted = corrupt(image, "gaussian_noise", 5, seed=3)
    by_hand = LogitHead().score(DiscriminatorEncoder(tiny_weights()).extract_pixels(shifted[None]))[0]
    assert scores_of(finished, "gaussian_noise/5")["0:discopatch/logit"][3] == pytest.approx(by_hand)


def test_a_finished_run_extracts_nothing_again_and_one_without_scores_gets_the_same(
    finished: BenchRun, pool: CorruptionPool, copied: Path
) -> None:
    second = make_run(finished.plan, finished.folder, pool)
    second.score()
    assert extracted_by_thumbnail(second) == 0
    shutil.rmtree(copied / "scores")
    third = make_run(finished.plan, copied, pool)
    third.score()
    assert extracted_by_thumbnail(third) <= 3 * 51, "only timed on one image"
    assert_same_scores(finished, third, "test", "coins", "contrast/1", "control coins")


def test_a_run_that_is_stopped_midway_continues(
    suite: Suite, pool: CorruptionPool, finished: BenchRun, tmp_path: Path
) -> None:
    class Stopped(Exception):  # noqa: N818 - not an error
        pass

    def stop(activity: str, done: int, total: int) -> None:
        if activity == "scoring (matched): contrast/1":
            raise Stopped

    first = make_run(make_plan(suite), tmp_path, pool, progress=stop)
    with pytest.raises(Stopped):
        first.score()
    assert extracted_by_thumbnail(first) > 0
    second = make_run(first.plan, tmp_path, pool)
    second.score()
    assert extracted_by_thumbnail(second) < extracted_by_thumbnail(finished), "stored features are not extracted again"
    assert_same_scores(finished, second, "contrast/5")


def test_what_is_added_or_changed_later_is_scored_in_the_same_folder(
    finished: BenchRun, pool: CorruptionPool, copied: Path
) -> None:
    methods = [*METHODS, "thumbnail/mahalanobis"]
    more = make_run(finished.plan, copied, pool, methods=methods, seed=1)
    more.score()
    before, after = (scores_of(each, "test") for each in (finished, more))
    assert "0:thumbnail/mahalanobis" in after
    assert extracted_by_thumbnail(more) < 60, "only timed on one image"
    assert not np.allclose(before["0:discopatch/logit"], after["0:discopatch/logit"]), "other weights"


def test_seeds_fit_on_other_images_and_test_on_the_same(suite: Suite, pool: CorruptionPool, tmp_path: Path) -> None:
    plan = make_plan(suite, seeds=(0, 1), protocols=("matched",), corruptions=("contrast",), severities=(5,), fit=20)
    runner = make_run(plan, tmp_path, pool)
    runner.score()
    assert plan.fit_set("matched", 0).files != plan.fit_set("matched", 1).files
    test, scores = (scores_of(runner, name) for name in ("test", "contrast/5"))
    assert not np.allclose(scores["0:thumbnail/knn"], scores["1:thumbnail/knn"])
    assert np.array_equal(scores["0:discopatch/logit"], scores["1:discopatch/logit"]), "it has nothing to fit"
    results = runner.summarise()["protocols"]["matched"]
    mean, spread = results["seeds"]["covariate"]["thumbnail/knn"]["auroc"]
    values = [auroc(test[key], scores[key]) for key in ("0:thumbnail/knn", "1:thumbnail/knn")]
    assert [mean, spread] == pytest.approx([np.mean(values), np.std(values, ddof=1)], abs=1e-5)


def test_results_are_those_of_the_stored_scores(finished: BenchRun) -> None:
    for protocol in ("matched", "paper"):
        for images in finished.plan.sets(protocol):
            scores = scores_of(finished, images.name, protocol)
            assert scores.keys() == {f"0:{name}" for name in METHODS}
            assert all(each.shape == (len(images),) and np.isfinite(each).all() for each in scores.values())
    results = finished.summarise()["protocols"]["matched"]
    test, coins, control = (scores_of(finished, name) for name in ("test", "coins", "control coins"))
    for name in METHODS:
        found, key = results["sets"]["coins"]["methods"][name], f"0:{name}"
        assert found["auroc"][0] == pytest.approx(auroc(test[key], coins[key]), abs=1e-5)
        assert found["control"][0] == pytest.approx(auroc(test[key], control[key]), abs=1e-5)
        assert found["route_matched"][0] == pytest.approx(auroc(control[key], coins[key]), abs=1e-5)
        levels = [results["corruptions"][c][s][name]["auroc"][0] for c in ("gaussian_noise", "contrast") for s in "15"]
        mean = results["means"]["covariate"][name]["auroc"]
        assert mean[0] == pytest.approx(np.mean(levels), abs=2e-5)
        assert mean[1] <= mean[0] <= mean[2]
        assert results["control"][name][0] == 0.5
        if name != REFERENCE:
            gap = results["means"]["covariate"][REFERENCE]["auroc"][0] - mean[0]
            assert results["differences"]["covariate"][name]["auroc"][0] == pytest.approx(gap, abs=2e-5)


def test_a_stored_file_that_was_cut_short_counts_as_none_and_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "features.safetensors"
    for left in (0, 5, 40):
        add_arrays(path, {"logits": np.ones((100, 1))}, {"logits": ""})
        assert stored_keys(path) == {"logits": ""}
        path.write_bytes(path.read_bytes()[:left])
        assert stored_keys(path) == {}


def test_an_image_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.raises(ImageError, match=r"bad\.png"):
        ImageSet("bad", (ImageFile("bad.png", tmp_path / "bad.png"),), ()).load()


def with_classes(suite: Suite) -> Suite:
    """Each image belongs to one of three classes."""
    return replace(suite, fit_classes=tuple(f"class {number % 3}" for number in range(len(suite.fit))))


def small_plan(suite: Suite, **changes: object) -> BenchPlan:
    return make_plan(suite, protocols=("matched",), corruptions=("contrast",), severities=(5,), **changes)


def score_thumbnails(plan: BenchPlan, folder: Path, pool: CorruptionPool, method: str, name: str) -> dict[str, Array]:
    """The scores of a set by a method of thumbnails."""
    run = make_run(plan, folder, pool, methods=[f"thumbnail/{method}"])
    run.score()
    return scores_of(run, name)


def test_scores_of_another_default_are_never_taken_for_those_of_this_one(
    suite: Suite, pool: CorruptionPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = score_thumbnails(small_plan(suite), tmp_path, pool, "knn", "coins")
    monkeypatch.setattr(KNN, "n_neighbours", lambda self, images: 9)
    after = score_thumbnails(small_plan(suite), tmp_path, pool, "knn", "coins")
    assert not np.allclose(before["0:thumbnail/knn"], after["0:thumbnail/knn"])


def test_classes_of_the_images_to_fit_on_reach_the_methods_in_their_order(
    suite: Suite, pool: CorruptionPool, tmp_path: Path
) -> None:
    plan = small_plan(with_classes(suite), seeds=(0, 1), fit=25)
    scores, backbone = score_thumbnails(plan, tmp_path, pool, "mds", "test"), Thumbnail()
    new = backbone.extract(plan.sets("matched")[0].load(), [PENULTIMATE])
    by_file = dict(zip(plan.suite.fit, plan.suite.fit_classes, strict=True))
    for seed in (0, 1):
        images = plan.fit_set("matched", seed)
        numbers = np.array([int(by_file[file][-1]) for file in images.files], np.float64)
        normal = {**backbone.extract(images.load(), [PENULTIMATE]), CLASSES: numbers}
        expected = MDS(Thumbnail.classifier).fit(normal).score(new)
        np.testing.assert_allclose(scores[f"{seed}:thumbnail/mds"], expected, rtol=1e-6)


@pytest.mark.parametrize("classes", [0, 1, 25])
def test_classes_that_are_missing_or_too_many_to_fit_on_have_a_reason(suite: Suite, classes: int) -> None:
    names = tuple(str(number % classes) for number in range(len(suite.fit))) if classes else ()
    assert "classes" in small_plan(replace(suite, fit_classes=names)).without_classes()
    assert not small_plan(with_classes(suite)).without_classes()
