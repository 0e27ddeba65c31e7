"""A run scores every image with every method once, continues where it stopped, and sums up the stored scores."""

import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from discopatch.bench.pool import CorruptionPool
from PIL import Image

from discopatch.bench import plan as plan_module
from discopatch.bench import runner as runner_module
from discopatch.bench.baselines import CLASSES, PENULTIMATE, FeatureDict
from discopatch.bench.baselines.distances import MDS
from discopatch.bench.baselines.neighbours import KNN
from discopatch.bench.dataset import ImageFile, ImageSet, sample_files
from discopatch.bench.methods import WITHOUT_PLACES, ClassifierBenchEncoder, MethodName
from discopatch.bench.plan import BenchPlan
from discopatch.bench.preprocessing import Storage
from discopatch.bench.runner import BenchRunner, run_bench
from discopatch.bench.store import FeatureStore
from discopatch.bench.suites import Suite
from discopatch.corruptions import corrupt
from discopatch.encoders import DiscriminatorEncoder
from discopatch.errors import ImageError, ParameterError
from discopatch.fitting import N_SAMPLED
from discopatch.heads import LogitHead
from discopatch.images import Pixels, Transform
from discopatch.metrics import auroc
from tests.bench.bench_samples import (
    METHODS,
    Thumbnail,
    make_encoders,
    make_plan,
    make_runner,
    tiny_weights,
)

NAMES = [str(name) for name in METHODS]
REFERENCE = "discopatch/combined"


@pytest.fixture(scope="module")
def finished(suite: Suite, pool: CorruptionPool, tmp_path_factory: pytest.TempPathFactory) -> BenchRunner:
    runner = make_runner(make_plan(suite), tmp_path_factory.mktemp("run"), pool)
    runner.run()
    return runner


@pytest.fixture
def copied(finished: BenchRunner, tmp_path: Path) -> Path:
    """A copy of the finished run's folder."""
    return Path(shutil.copytree(finished.folder, tmp_path / "run"))


def extracted_by_thumbnail(runner: BenchRunner) -> int:
    encoder = runner.encoders["thumbnail"]
    assert isinstance(encoder, ClassifierBenchEncoder)
    assert isinstance(encoder.backbone, Thumbnail)
    return encoder.backbone.extracted


def assert_same_scores(one: BenchRunner, other: BenchRunner, *names: str, rtol: float = 0) -> None:
    for name in names:
        expected, found = (each.scores.read("matched", name) for each in (one, other))
        assert found.keys() == expected.keys()
        for key in found:
            np.testing.assert_allclose(found[key], expected[key], rtol=rtol)


def test_every_set_has_a_score_for_every_image_of_every_method(finished: BenchRunner) -> None:
    names = {f"0:{name}" for name in METHODS}
    for protocol in ("matched", "paper"):
        for planned in finished.plan.sets(finished.plan.protocol(protocol)):
            scores = finished.scores.read(protocol, planned.name)
            assert scores.keys() == names
            assert all(each.shape == (len(planned.images),) and np.isfinite(each).all() for each in scores.values())


def test_a_score_is_that_of_the_encoder_and_head_for_the_same_image(finished: BenchRunner, suite: Suite) -> None:
    image = Transform(size=64)(np.asarray(Image.open(suite.test[3].path)))
    shifted = corrupt(image, "gaussian_noise", 5, seed=3)
    by_hand = LogitHead().score(DiscriminatorEncoder(tiny_weights()).extract_pixels(shifted[None]))[0]
    assert finished.scores.read("matched", "gaussian_noise/5")["0:discopatch/logit"][3] == pytest.approx(by_hand)


def test_a_finished_run_extracts_nothing_again(finished: BenchRunner, pool: CorruptionPool) -> None:
    second = make_runner(finished.plan, finished.folder, pool)
    second.run()
    assert extracted_by_thumbnail(second) == 0


def test_a_run_that_lost_its_scores_computes_the_same_from_its_features(
    finished: BenchRunner, pool: CorruptionPool, copied: Path
) -> None:
    shutil.rmtree(copied / "scores")
    second = make_runner(finished.plan, copied, pool)
    second.run()
    assert extracted_by_thumbnail(second) <= 3 * 51, "only timed on one image"
    assert_same_scores(finished, second, "test", "coins", "contrast/1", "control coins")


def test_a_run_that_is_stopped_midway_continues(
    suite: Suite, pool: CorruptionPool, finished: BenchRunner, tmp_path: Path
) -> None:
    class Stopped(Exception):  # noqa: N818 - not an error
        pass

    def stop(activity: str, done: int, total: int) -> None:
        if activity == "scoring (matched): contrast/1":
            raise Stopped

    first = make_runner(make_plan(suite), tmp_path, pool)
    first.progress = stop
    with pytest.raises(Stopped):
        first.run()
    assert extracted_by_thumbnail(first) > 0
    second = make_runner(first.plan, tmp_path, pool)
    second.run()
    assert extracted_by_thumbnail(second) < extracted_by_thumbnail(finished), "stored features are not extracted again"
    assert_same_scores(finished, second, "contrast/5")


def test_a_method_that_is_added_later_needs_no_second_extraction(
    finished: BenchRunner, pool: CorruptionPool, copied: Path
) -> None:
    methods = [*METHODS, MethodName("thumbnail", "mahalanobis")]
    more = BenchRunner(finished.plan, make_encoders(), methods, copied, finished.features, pool)
    more.run()
    assert "0:thumbnail/mahalanobis" in more.scores.read("matched", "test")
    assert extracted_by_thumbnail(more) < 60, "only timed on one image"


def test_kept_images_serve_other_weights_and_damaged_ones_are_made_anew(
    finished: BenchRunner, pool: CorruptionPool, tmp_path: Path
) -> None:
    def run(folder: str, seed: int) -> BenchRunner:
        runner = make_runner(finished.plan, tmp_path / folder, pool, encoders=make_encoders(seed))
        runner.keep_images = tmp_path / "images"
        runner.run()
        return runner

    assert_same_scores(finished, run("first", 0), "test", "coins", "contrast/5")
    kept = sorted((tmp_path / "images").rglob("*.npy"))
    before = {path: path.stat().st_mtime_ns for path in kept}
    kept[0].write_bytes(kept[0].read_bytes()[:200])
    other = run("second", 1)
    changed = [path for path in kept if path.stat().st_mtime_ns != before[path]]
    assert changed == kept[:1]
    own = make_runner(finished.plan, tmp_path / "own", pool, encoders=make_encoders(1))
    own.run()
    assert_same_scores(own, other, "test", "coins", "contrast/5")


def test_other_weights_in_the_same_folder_are_never_taken_for_the_old_ones(
    finished: BenchRunner, pool: CorruptionPool, copied: Path
) -> None:
    other = make_runner(finished.plan, copied, pool, encoders=make_encoders(seed=1))
    other.run()
    before, after = (each.scores.read("matched", "test")["0:discopatch/logit"] for each in (finished, other))
    assert not np.allclose(before, after)


def test_seeds_fit_on_other_images_and_test_on_the_same(suite: Suite, pool: CorruptionPool, tmp_path: Path) -> None:
    plan = make_plan(suite, seeds=(0, 1), protocols=("matched",), corruptions=("contrast",), severities=(5,), fit=20)
    runner = make_runner(plan, tmp_path, pool)
    runner.run()
    protocol = plan.protocol("matched")
    assert plan.fit_set(protocol, 0).files != plan.fit_set(protocol, 1).files
    test, scores = (runner.scores.read("matched", name) for name in ("test", "contrast/5"))
    assert not np.allclose(scores["0:thumbnail/knn"], scores["1:thumbnail/knn"])
    assert np.array_equal(scores["0:discopatch/logit"], scores["1:discopatch/logit"]), "it has nothing to fit"
    results = runner.summarise()["protocols"]["matched"]
    mean, spread = results["seeds"]["covariate"]["thumbnail/knn"]["auroc"]
    values = [auroc(test[key], scores[key]) for key in ("0:thumbnail/knn", "1:thumbnail/knn")]
    assert [mean, spread] == pytest.approx([np.mean(values), np.std(values, ddof=1)], abs=1e-5)


def test_results_are_those_of_the_stored_scores(finished: BenchRunner) -> None:
    results = finished.summarise()["protocols"]["matched"]
    test, coins, control = (finished.scores.read("matched", name) for name in ("test", "coins", "control coins"))
    for name in NAMES:
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


def test_others_are_compared_with_the_components_head_or_without_it_with_the_first(
    suite: Suite, pool: CorruptionPool, tmp_path: Path
) -> None:
    plan = make_plan(suite, protocols=("matched",), corruptions=("contrast",), severities=(5,), fit=20)
    store, names = FeatureStore(tmp_path / "features"), ["statistics", "logit", WITHOUT_PLACES, "components"]
    methods = [MethodName("discopatch", name) for name in names]
    for count, expected in ((4, "components"), (3, WITHOUT_PLACES), (2, "statistics")):
        runner = BenchRunner(plan, make_encoders(), methods[:count], tmp_path, store, pool)
        runner.run()
        results = runner.summarise()["protocols"]["matched"]
        assert results["reference"] == f"discopatch/{expected}"
        assert results["differences"]["covariate"].keys() == {f"discopatch/{name}" for name in names[:count]} - {
            f"discopatch/{expected}"
        }


def test_scores_of_an_earlier_run_on_other_images_do_not_enter_the_results(
    finished: BenchRunner, suite: Suite, pool: CorruptionPool, copied: Path
) -> None:
    plan = make_plan(suite, test=4, protocols=("matched",))
    fewer = BenchRunner(plan, make_encoders(), METHODS[1:2], copied, finished.features, pool)
    fewer.run()
    results = fewer.summarise()
    assert results["methods"].keys() == {NAMES[1]}
    test, coins = (fewer.scores.read("matched", name)[f"0:{NAMES[1]}"] for name in ("test", "coins"))
    found = results["protocols"]["matched"]["sets"]["coins"]["methods"][NAMES[1]]["auroc"][0]
    assert found == pytest.approx(auroc(test, coins), abs=1e-5)


def test_the_papers_protocol_has_a_control_that_is_not_one_half_by_construction(finished: BenchRunner) -> None:
    def scores(protocol: str, name: str) -> list[float]:
        return list(finished.scores.read(protocol, name)["0:discopatch/logit"])

    assert scores("paper", "test") != scores("paper", "control corrupted")
    assert scores("matched", "test") == scores("matched", "control corrupted")


def test_each_method_is_timed(finished: BenchRunner) -> None:
    latencies = finished.latencies()
    assert latencies.keys() == set(NAMES)
    assert all(0 < each < 60_000 for each in latencies.values())


def test_an_image_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.raises(ImageError, match=r"bad\.png"):
        ImageSet("bad", (ImageFile("bad.png", tmp_path / "bad.png"),), ()).load()


def test_a_method_that_an_encoder_has_no_features_for_is_refused_at_once(
    suite: Suite, pool: CorruptionPool, tmp_path: Path
) -> None:
    methods = [MethodName("thumbnail", "rankfeat")]
    with pytest.raises(ParameterError, match="thumbnail/rankfeat"):
        BenchRunner(make_plan(suite), make_encoders(), methods, tmp_path, FeatureStore(tmp_path), pool)


def with_classes(suite: Suite) -> Suite:
    """Each image belongs to one of three classes."""
    return replace(suite, fit_classes=tuple(f"class {number % 3}" for number in range(len(suite.fit))))


def small_plan(suite: Suite, **changes: object) -> BenchPlan:
    return make_plan(suite, protocols=("matched",), corruptions=("contrast",), severities=(5,), **changes)


def run_methods(plan: BenchPlan, folder: Path, pool: CorruptionPool, *methods: str) -> BenchRunner:
    names = [MethodName("thumbnail", method) for method in methods]
    runner = BenchRunner(plan, make_encoders(), names, folder, FeatureStore(folder / "features"), pool)
    runner.run()
    return runner


def test_discriminators_are_scored_by_neighbours_and_places_and_classifiers_by_our_heads(
    suite: Suite, pool: CorruptionPool, tmp_path: Path
) -> None:
    plan, encoders = small_plan(suite), make_encoders()
    names = [MethodName("discopatch", each) for each in ("knn", "knn:k=2", "local")]
    names += [MethodName("thumbnail", each) for each in ("statistics", "combined", "local")]
    names += [MethodName(each, "components") for each in ("discopatch", "discopatch-4", "thumbnail")]
    names += [MethodName(each, WITHOUT_PLACES) for each in ("discopatch", "thumbnail")]
    runner = BenchRunner(plan, encoders, names, tmp_path, FeatureStore(tmp_path / "features"), pool)
    runner.run()
    protocol = plan.protocol("matched")
    normal, sets = plan.fit_set(protocol, 0), {each.name: each.images for each in plan.sets(protocol)}
    scores = runner.scores.read("matched", "coins")
    for name in names:
        encoder = encoders[name.encoder]
        kinds = encoder.needs(name.method)
        fitted = encoder.method(name.method, normal.load()[:N_SAMPLED]).fit(encoder.extract(normal.load(), kinds))
        expected = fitted.score(encoder.extract(sets["coins"].load(), kinds))
        np.testing.assert_allclose(scores[f"0:{name}"], expected, rtol=1e-6)
    before = extracted_by_thumbnail(runner)
    runner.run()
    assert extracted_by_thumbnail(runner) == before
    results = runner.summarise()["methods"]
    assert [results[str(name)]["settings"] for name in names] == [{"k": 1}, {"k": 2}, *[{}] * 9]


def test_a_map_of_sets_is_made_of_what_neighbours_needed(
    suite: Suite, pool: CorruptionPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(folder: str, method: str) -> BenchRunner:
        names, store = [MethodName("discopatch", method)], FeatureStore(tmp_path / folder)
        runner = BenchRunner(small_plan(suite), make_encoders(), names, tmp_path / folder, store, pool)
        runner.run()
        return runner

    first, second = run("first", "logit"), run("second", "knn")
    first.store_mean_features()
    expected = runner_module.load_mean_features(first.folder)
    for runner in (first, second):
        monkeypatch.setattr(runner.encoders["discopatch"], "extract", None)
        runner.store_mean_features()
        found = runner_module.load_mean_features(runner.folder)
        assert found is not None
        assert expected is not None
        assert found.keys() == expected.keys() == {"test", "coins"}
        assert all(np.array_equal(found[name], expected[name]) for name in found)


def test_other_settings_are_another_method_and_are_recorded(suite: Suite, pool: CorruptionPool, tmp_path: Path) -> None:
    runner = run_methods(small_plan(suite), tmp_path, pool, "knn", "knn:k=7", "ash", "ash:variant=b", "energy")
    scores = runner.scores.read("matched", "coins")
    assert not np.allclose(scores["0:thumbnail/knn"], scores["0:thumbnail/knn:k=7"])
    assert not np.allclose(scores["0:thumbnail/ash"], scores["0:thumbnail/ash:variant=b"])
    results = runner.summarise()
    assert {name: each["settings"] for name, each in results["methods"].items()} == {
        "thumbnail/knn": {"k": 1},
        "thumbnail/knn:k=7": {"k": 7},
        "thumbnail/ash": {"variant": "s", "percentile": 90},
        "thumbnail/ash:variant=b": {"variant": "b", "percentile": 90},
        "thumbnail/energy": {},
    }
    assert {"thumbnail/knn", "thumbnail/knn:k=7"} <= results["protocols"]["matched"]["means"]["far"].keys()


def test_scores_of_another_default_are_never_taken_for_those_of_this_one(
    suite: Suite, pool: CorruptionPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run_methods(small_plan(suite), tmp_path, pool, "knn").scores.read("matched", "coins")
    monkeypatch.setattr(KNN, "n_neighbours", lambda self, images: 9)
    after = run_methods(small_plan(suite), tmp_path, pool, "knn").scores.read("matched", "coins")
    assert not np.allclose(before["0:thumbnail/knn"], after["0:thumbnail/knn"])


def test_classes_of_the_images_to_fit_on_reach_the_methods_in_their_order(
    suite: Suite, pool: CorruptionPool, tmp_path: Path
) -> None:
    plan = small_plan(with_classes(suite), seeds=(0, 1), fit=25)
    runner = run_methods(plan, tmp_path, pool, "mds")
    backbone = Thumbnail()
    test, scores = plan.sets(plan.protocol("matched"))[0], runner.scores.read("matched", "test")
    new = backbone.extract(test.images.load(), [PENULTIMATE])
    by_file = dict(zip(plan.suite.fit, plan.suite.fit_classes, strict=True))
    for seed in (0, 1):
        images = plan.fit_set(plan.protocol("matched"), seed)
        numbers = np.array([int(by_file[file][-1]) for file in images.files], np.float64)
        normal = {**backbone.extract(images.load(), [PENULTIMATE]), CLASSES: numbers}
        expected = MDS(Thumbnail.classifier).fit(normal).score(new)
        np.testing.assert_allclose(scores[f"{seed}:thumbnail/mds"], expected, rtol=1e-6)


def test_other_classes_of_the_same_images_are_fitted_again(suite: Suite, pool: CorruptionPool, tmp_path: Path) -> None:
    labelled = with_classes(suite)
    turned = replace(labelled, fit_classes=tuple(sorted(labelled.fit_classes)))
    first, second = (
        run_methods(small_plan(each), tmp_path, pool, "mds").scores.read("matched", "coins")["0:thumbnail/mds"]
        for each in (labelled, turned)
    )
    assert not np.allclose(first, second)


@pytest.mark.parametrize(
    ("classes", "why"), [(0, "no classes"), (1, "of 1 classes"), (25, r"of \d\d classes; two classes")]
)
def test_a_method_that_needs_classes_is_refused_where_there_are_none_or_too_many(
    suite: Suite, pool: CorruptionPool, tmp_path: Path, classes: int, why: str
) -> None:
    names = tuple(str(number % classes) for number in range(len(suite.fit))) if classes else ()
    with pytest.raises(ParameterError, match=rf"thumbnail/mds cannot be run: .*{why}"):
        run_methods(small_plan(replace(suite, fit_classes=names)), tmp_path, pool, "mds")


def test_what_cannot_be_run_is_left_out_with_a_reason_only_where_it_is_optional(
    suite: Suite, pool: CorruptionPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "load_encoder", lambda name, *args, **options: make_encoders()[name])
    names = [MethodName("thumbnail", method) for method in ("energy", "mds", "rankfeat")]
    notices: list[str] = []
    results = run_bench(small_plan(suite), names, tmp_path, tiny_weights(), pool, optional=names, notice=notices.append)
    assert results["methods"].keys() == {"thumbnail/energy"}
    assert results["left_out"].keys() == {"thumbnail/mds", "thumbnail/rankfeat"}
    assert [each.split(": ")[:2] for each in notices] == [["left out", name] for name in results["left_out"]]
    assert "feature maps" in results["left_out"]["thumbnail/rankfeat"]
    with pytest.raises(ParameterError, match="thumbnail/mds"):
        run_bench(small_plan(suite), names, tmp_path, tiny_weights(), pool, optional=names[:1])
    with pytest.raises(ParameterError, match="no method is left"):
        run_bench(small_plan(suite), names[1:], tmp_path, tiny_weights(), pool, optional=names)


def test_scores_do_not_depend_on_how_many_images_are_held_at_once(
    finished: BenchRunner, pool: CorruptionPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "TOGETHER", 4)
    held: list[int] = []
    original = Thumbnail.extract

    def extract(self: Thumbnail, pixels: Pixels, kinds: Collection[str]) -> FeatureDict:
        held.append(len(pixels))
        return original(self, pixels, kinds)

    monkeypatch.setattr(Thumbnail, "extract", extract)
    small = make_runner(finished.plan, tmp_path, pool)
    small.run()
    assert max(held) == 4
    assert_same_scores(finished, small, "test", "coins", "contrast/5", rtol=1e-9)


def test_the_control_of_a_large_set_is_stored_as_some_of_its_files_are(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_module, "MAX_STORAGES", 2)
    files = suite.others[0].files
    plan_module.read_storages.cache_clear()
    found = plan_module.read_storages(files)
    plan_module.read_storages.cache_clear()
    assert len(files) > 2
    assert found == tuple(Storage.of(file.read()) for file in sample_files(files, 2))
