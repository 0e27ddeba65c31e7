"""Slips of the authors' evaluation change what they say and nothing else, each beside its control."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.bench.methods import DiscriminatorBenchEncoder, MethodName
from discopatch.bench.plan import BenchPlan
from discopatch.bench.plots import write_plots
from discopatch.bench.pool import CorruptionPool
from discopatch.bench.preprocessing import AS_TRAINED, SLIPS, Reading, get_protocol, slipped_name
from discopatch.bench.runner import BenchRunner
from discopatch.bench.slips import away_from_the_end, effective_reading, encoder_reading
from discopatch.bench.store import FeatureStore
from discopatch.bench.suites import Suite
from discopatch.bench.tables import write_tables
from discopatch.errors import ParameterError
from discopatch.images import Transform
from discopatch.metrics import auroc
from discopatch.model import Weights
from tests.bench.bench_samples import make_encoders, make_plan, tiny_weights

ALL = slipped_name([*SLIPS])
PROTOCOLS = ("paper", "paper+pixel-range", "paper+single-patches", "paper+corners", ALL)
LOGIT, SIGMOID, DENSE, KNN = (
    MethodName(*name.split("/"))
    for name in ("discopatch-4/logit", "discopatch-4/sigmoid", "discopatch/logit", "thumbnail/knn")
)
METHODS = [LOGIT, SIGMOID, DENSE, KNN]


def runner_of(plan: BenchPlan, folder: Path, pool: CorruptionPool, methods: Any = METHODS) -> BenchRunner:
    return BenchRunner(plan, make_encoders(), methods, folder, FeatureStore(folder / "features"), pool)


@pytest.fixture(scope="module")
def finished(suite: Suite, pool: CorruptionPool, tmp_path_factory: pytest.TempPathFactory) -> BenchRunner:
    plan = make_plan(suite, protocols=PROTOCOLS, corruptions=("contrast",), severities=(5,))
    runner = runner_of(plan, tmp_path_factory.mktemp("run"), pool)
    runner.run()
    return runner


def corners() -> Tensor:
    encoder = make_encoders()["discopatch-4"]
    assert isinstance(encoder, DiscriminatorBenchEncoder)
    found = encoder.encoder.extractor.corners
    assert found is not None
    return found


@torch.no_grad()
def by_hand(pixels: NDArray[np.uint8], *, unit: bool = False, single: bool = False, at: Tensor | None = None) -> Any:
    """(images, patches): logits of patches cut out one by one, normalised together or each by itself."""
    network = tiny_weights().discriminator.eval()
    floats = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    floats = floats if unit else 2 * floats - 1
    logits = []
    for image in floats:
        patches = [
            image[:, top : top + 32, left : left + 32] for top, left in (corners() if at is None else at).tolist()
        ]
        groups = [patch[None] for patch in patches] if single else [torch.stack(patches)]
        logits.append(torch.cat([network(group).logits for group in groups]))
    return torch.stack(logits).numpy()


def pixels_of(runner: BenchRunner, protocol: str, name: str) -> Any:
    plan = runner.plan
    return next(each.images for each in plan.sets(plan.protocol(protocol)) if each.name == name).load()


def scores_of(runner: BenchRunner, protocol: str, name: str, method: MethodName = LOGIT) -> Any:
    return runner.scores.read(protocol, name)[f"0:{method}"]


@pytest.mark.parametrize("name", ["test", "coins", "control coins", "contrast/5", "slips alone"])
def test_pixel_range_gives_normal_images_in_0_to_1_and_all_others_as_they_were(
    finished: BenchRunner, name: str
) -> None:
    protocol = "paper+pixel-range"
    expected = -by_hand(pixels_of(finished, protocol, name), unit=name == "test").mean(1)
    np.testing.assert_allclose(scores_of(finished, protocol, name), expected, rtol=1e-5)
    if name not in ("test", "slips alone"):
        assert np.array_equal(scores_of(finished, protocol, name), scores_of(finished, "paper", name))


def test_single_patches_scores_each_patch_of_corrupted_images_and_of_those_beside_them(finished: BenchRunner) -> None:
    protocol = "paper+single-patches"
    for name in ("test patches", "contrast/5", "control corrupted"):
        expected = -by_hand(pixels_of(finished, protocol, name), single=True)
        found = scores_of(finished, protocol, name)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        as_probability = scores_of(finished, protocol, name, SIGMOID)
        np.testing.assert_allclose(as_probability, 1 / (1 + np.exp(-expected)), rtol=1e-4)
    for name in ("test", "coins"):
        assert np.array_equal(scores_of(finished, protocol, name), scores_of(finished, "paper", name))


def test_corners_moves_only_patches_at_the_end(finished: BenchRunner) -> None:
    moved = away_from_the_end(corners(), 32)
    for name in ("test", "coins", "contrast/5"):
        expected = -by_hand(pixels_of(finished, "paper+corners", name), at=moved).mean(1)
        np.testing.assert_allclose(scores_of(finished, "paper+corners", name), expected, rtol=1e-5)
    many = torch.randint(193, (20_000, 2), generator=torch.Generator().manual_seed(1))
    found = away_from_the_end(many, 192)
    assert (int(found.min()), int(found.max())) == (0, 191)
    assert torch.equal(found[many < 192], many[many < 192])
    counts = torch.bincount(found.flatten(), minlength=192)
    assert len(counts) == 192
    assert counts.max() < 1.4 * counts.float().mean(), "evenly, without a heap at the end"


def test_all_slips_together_are_each_of_them(finished: BenchRunner) -> None:
    moved = away_from_the_end(corners(), 32)
    for name, unit, single in (("test patches", True, True), ("contrast/5", False, True), ("test", True, False)):
        logits = by_hand(pixels_of(finished, ALL, name), unit=unit, single=single, at=moved)
        expected = -logits if single else -logits.mean(1)
        np.testing.assert_allclose(scores_of(finished, ALL, name), expected, rtol=1e-4, atol=1e-5)


def test_a_classifier_and_a_dense_pass_take_no_part_in_what_patches_do(finished: BenchRunner) -> None:
    for protocol in PROTOCOLS[1:]:
        for name in ("test", "coins", "contrast/5"):
            assert np.array_equal(scores_of(finished, protocol, name, KNN), scores_of(finished, "paper", name, KNN))
            same = np.array_equal(scores_of(finished, protocol, name, DENSE), scores_of(finished, "paper", name, DENSE))
            assert same == ("pixel-range" not in protocol or name != "test")


def test_results_name_the_slips_their_methods_and_what_they_separate_alone(finished: BenchRunner) -> None:
    results = finished.summarise()
    assert list(results["protocols"]) == list(PROTOCOLS)
    assert "slips" not in results["protocols"]["paper"]
    assert results["protocols"][ALL]["slips"] == {
        "pixel-range": [str(LOGIT), str(SIGMOID), str(DENSE)],
        "single-patches": [str(LOGIT), str(SIGMOID)],
        "corners": [str(LOGIT), str(SIGMOID)],
    }
    for protocol, slip in zip(PROTOCOLS[1:4], SLIPS, strict=True):
        found = results["protocols"][protocol]
        assert list(found["slips"]) == [slip]
        alone = found["sets"]["slips alone"]["methods"]
        expected = auroc(scores_of(finished, protocol, "test"), scores_of(finished, protocol, "slips alone"))
        assert alone[str(LOGIT)]["auroc"][0] == pytest.approx(expected, abs=1e-5)
        assert (alone[str(LOGIT)]["auroc"][0] == 0.5) == (slip != "pixel-range")
    single = results["protocols"]["paper+single-patches"]
    normal, shifted = (scores_of(finished, "paper+single-patches", name) for name in ("test patches", "contrast/5"))
    found = single["corruptions"]["contrast"]["5"][str(LOGIT)]["auroc"]
    assert found[0] == pytest.approx(auroc(normal.ravel(), shifted.ravel()), abs=1e-5)
    assert found[1] <= found[0] <= found[2]
    reading = results["data"]["paper+pixel-range"]["test"]["way"][-1]
    assert reading == {"read": {"pixels": "unit"}}
    digests = {protocol: results["data"][protocol]["test"]["digest"] for protocol in PROTOCOLS}
    assert len({digests[protocol] for protocol in ("paper", "paper+pixel-range", "paper+corners", ALL)}) == 4


@pytest.mark.slow
def test_tables_and_plots_are_made_of_them(finished: BenchRunner, tmp_path: Path) -> None:
    made = {"discopatch": "0", "weights digest": "0", "device": "CPU", "seeds": [0]}
    results = json.loads(json.dumps({"suite": "folder", "made": made, **finished.summarise()}))
    write_tables(tmp_path, results)
    assert "paper+pixel-range" in (tmp_path / "tables.md").read_text()
    drawn = {path.name for path in write_plots(tmp_path, results, finished.scores)}
    assert "roc-paper.png" in drawn
    assert f"roc-{ALL}.png" not in drawn


def test_a_run_with_slips_leaves_what_was_measured_without_them(
    finished: BenchRunner, suite: Suite, pool: CorruptionPool, tmp_path: Path
) -> None:
    plan = make_plan(suite, protocols=("paper",), corruptions=("contrast",), severities=(5,))
    plain = runner_of(plan, tmp_path, pool)
    plain.run()
    for name in ("test", "coins", "contrast/5"):
        assert np.array_equal(scores_of(plain, "paper", name), scores_of(finished, "paper", name))
    for planned in plan.sets(plan.protocol("paper")):
        assert planned.images.reading == AS_TRAINED


def test_weights_that_take_0_to_1_get_normal_images_as_they_were_trained_on() -> None:
    weights = Weights(tiny_weights().discriminator, Transform(size=64, pixels="unit"))
    encoder = DiscriminatorBenchEncoder("discopatch-4", weights, patches=4, seed=0, device="cpu", batch_size=4)
    protocol = get_protocol("paper+pixel-range", weights.transform)
    assert effective_reading(encoder, protocol.reading(normal=True)) == AS_TRAINED
    assert effective_reading(encoder, protocol.reading(normal=False)) == Reading(pixels="symmetric")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), np.uint8)
    found = encoder_reading(encoder, protocol.reading(normal=False)).extract(pixels, ["logits"])["logits"]
    np.testing.assert_allclose(found, by_hand(pixels), rtol=1e-4, atol=1e-5)


def test_what_makes_no_sense_is_refused_before_the_long_work(
    suite: Suite, pool: CorruptionPool, tmp_path: Path
) -> None:
    for name in ("paper+haste", "matched+corners", "papers"):
        with pytest.raises(ParameterError, match="choose"):
            make_plan(suite, protocols=(name,))
    plan = make_plan(suite, protocols=("paper", "paper+corners"))
    with pytest.raises(ParameterError, match="none of the methods"):
        runner_of(plan, tmp_path, pool, [DENSE, KNN])
    plan = replace(plan, protocols=("paper", "paper+single-patches"))
    with pytest.raises(ParameterError, match="discopatch-4/statistics"):
        runner_of(plan, tmp_path, pool, [LOGIT, MethodName("discopatch-4", "statistics")])


def test_the_name_of_a_protocol_does_not_depend_on_the_order_of_its_slips() -> None:
    assert slipped_name(["corners", "pixel-range", "corners"]) == "paper+pixel-range+corners"
