"""The scripts that time something, in their smallest form, and the card, the work curve and the contact sheet."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import contact_sheet
import decode_speed
import fit_speed
import gpu_bench
import gpu_speed
import model_card
import scaling
import score_speed
import train_speed
import work_curve
from discopatch.bench.plots.style import GREY, save_figure
from discopatch.corruptions import CORRUPTIONS
from discopatch.encoders import discriminator
from discopatch.model import Weights, fast
from discopatch.model.fast import FastPass
from discopatch.pretrained import DEFAULT_WEIGHTS, FIRST_WEIGHTS, PRETRAINED, SMALL_WEIGHTS, load_pretrained
from discopatch.training import PRESETS
from tests.bench.bench_samples import write_shard
from tests.bench.sample_results import Results, make_results
from tests.model.plain_stages import PlainStages
from tests.samples import natural_detector, one_camera, residual_weights, tiny_weights

NATURAL, SOLAR = make_results(seed=0), make_results(seed=1)
CALIBRATION: Results = {
    "made": {"weights digest": NATURAL["made"]["weights digest"]},
    "false alarms": {
        suite: {head: {"0.01": {"pooled": share}, "0.05": {"pooled": 5 * share}} for head in ("logit", "components")}
        for suite, share in (("solar", 0.0098), ("natural", 0.008))
    },
}
HEADS = ("combined", "statistics", "logit")


def test_the_card_has_the_means_of_the_matched_protocol_with_their_intervals() -> None:
    found = model_card.card_figures(SOLAR, NATURAL, CALIBRATION)
    for suite, results in (("solar", SOLAR), ("natural", NATURAL)):
        means = results["protocols"]["matched"]["means"]["covariate"]
        expected = {head: means[f"discopatch/{head}"]["auroc"] for head in HEADS}
        assert found[f"{suite}, 19 corruptions x 5 severities"] == expected
    assert found["false alarms, components"]["solar"] == {"0.01": 0.0098, "0.05": 0.049}
    steel = NATURAL["protocols"]["matched"]["sets"]["steel"]["methods"]["discopatch/combined"]
    assert steel["auroc"] in [each.get("steel") for each in found.values() if isinstance(each, dict)]
    assert steel["control"] in [each.get("steel") for each in found.values() if isinstance(each, dict)]
    assert json.loads(json.dumps(found)) == found


def test_corruptions_unlike_any_degradation_of_the_training_stand_apart() -> None:
    corruptions = NATURAL["protocols"]["matched"]["corruptions"]
    assert model_card.TRAINED_AGAINST.issubset(CORRUPTIONS)
    values = [
        level["discopatch/logit"]["auroc"][0]
        for name in CORRUPTIONS
        if name not in model_card.TRAINED_AGAINST
        for level in corruptions[name].values()
    ]
    assert model_card.unlike_degradations(NATURAL)["logit"] == pytest.approx(np.mean(values), abs=1e-5)


def test_the_cards_of_older_weights_have_corruptions_and_near_sets_of_both_suites() -> None:
    found = model_card.work_figures(SOLAR, NATURAL)
    for suite, results in (("solar", SOLAR), ("natural", NATURAL)):
        means = results["protocols"]["matched"]["means"]
        for title, group in (("19 corruptions at severity 3", "covariate"), ("near sets", "near")):
            assert found[f"{suite}, {title}"]["combined"] == means[group]["discopatch/combined"]["auroc"]


def test_the_cards_can_be_written_from_the_stored_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_card, "CARDS", tmp_path)
    model_card.main()
    for name in PRETRAINED:
        card = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
        assert card["weights_digest"] == load_pretrained(name).digest
        assert card["figures"]


def test_points_are_ordered_by_their_work_and_carry_the_figures_of_the_results() -> None:
    found = work_curve.work_points(NATURAL, PRESETS["paper"].architecture, size=256, dense="dense")
    assert [point.gmac for point in found] == sorted(point.gmac for point in found)
    dense = {point.name: point for point in found}["dense"]
    means = NATURAL["protocols"]["matched"]["means"]
    assert dense.gmac == pytest.approx(3.68, abs=0.01)
    assert not dense.of_patches
    assert dense.corrupted == {head: means["covariate"][f"discopatch/{head}"]["auroc"] for head in HEADS}
    assert dense.near == means["near"]["discopatch/combined"]["auroc"]


def test_the_stored_results_of_all_weights_can_be_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work_curve.main(out=tmp_path / "work")
    assert (tmp_path / "work.png").stat().st_size > 10_000
    assert capsys.readouterr().out.count("| solar |") == 6


def test_bars_are_as_long_as_they_took_with_the_slowest_on_top(tmp_path: Path) -> None:
    from matplotlib.colors import to_hex

    found = {"natural-v1, torch": 140.0, "natural-small-v1, torch": 19.0, "ResNet-50, onnxruntime": 146.0}
    figure = score_speed.speed_figure(found, others={"ResNet-50, onnxruntime"}, threads=2)
    (axis,) = figure.axes
    bars: list[Any] = list(axis.patches)
    assert [bar.get_width() for bar in bars] == [19.0, 140.0, 146.0]
    assert [label.get_text() for label in axis.get_yticklabels()][-1] == "ResNet-50, onnxruntime"
    small, large, other = (to_hex(bar.get_facecolor()) for bar in bars)
    assert other == GREY
    assert len({small, large, other}) == 3
    save_figure(figure, tmp_path / "speed", ["png"])


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("detector") / "camera"
    natural_detector().save(path)
    return path


@pytest.mark.slow
def test_a_saved_detector_is_timed_with_and_without_its_heatmap(
    detector: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for heatmap in (False, True):
        score_speed.main([detector], threads=1, repeats=1, heatmap=heatmap, out=tmp_path / "speed.json")
        assert json.loads((tmp_path / "speed.json").read_text())["milliseconds"][str(detector)] > 0


@pytest.mark.slow
def test_images_of_a_shard_are_scored_again_and_again(
    detector: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_shard(tmp_path / "photos.tar", one_camera(3, size=80), "JPEG")
    scaling.main(detector, tmp_path / "photos.tar", images=[4], device="cpu", workers=1)
    assert "| 4 |" in capfd.readouterr().out


@pytest.mark.slow
def test_fits_and_decoders_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    fit_speed.main(fit=120, score=1, weights=SMALL_WEIGHTS)
    decode_speed.main(side=128, files=2, normal=40, weights=SMALL_WEIGHTS, repeats=1)
    shown = capsys.readouterr().out
    assert "load the weights" in shown
    assert "scaled to the square" in shown


def test_mosaics_have_the_side_that_is_asked_for() -> None:
    assert [image.shape for image in decode_speed.mosaics(2, 200)] == [(200, 200, 3)] * 2


def test_training_steps_are_timed_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    train_speed.main(preset="tiny", images=1, patches=2, device="cpu", repeats=1)
    assert "naive eager" in capsys.readouterr().out


@pytest.mark.parametrize("weights", [DEFAULT_WEIGHTS, FIRST_WEIGHTS, "residual"])
def test_the_parts_of_the_gpu_benchmark_run_without_one(
    weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu_speed.main(weights, device="cpu", tiny=True, profile=True, out=tmp_path / "gpu.json")
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert {"machine", "rates", "latency", "throughput"} <= set(found)
    assert all(table["rows"] for part in ("rates", "latency", "throughput") for table in found[part])
    assert "failed" not in capsys.readouterr().out


def test_the_gpu_benchmark_takes_a_file_and_shows_that_the_fast_pass_agrees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With plain stages in place of the kernels, which only a GPU has."""
    plain_pass = partial(FastPass, stages=PlainStages())
    monkeypatch.setattr(fast, "FastPass", plain_pass)
    monkeypatch.setattr(gpu_bench, "FastPass", plain_pass)
    monkeypatch.setattr(discriminator, "check_precision", lambda *_, **__: None)
    monkeypatch.setattr(gpu_bench.GpuBench, "has_kernels", True)
    residual_weights().save(tmp_path / "weights.safetensors")
    parts = "check,latency,throughput,stream"
    gpu_speed.main(
        str(tmp_path / "weights.safetensors"), device="cpu", tiny=True, only=parts, out=tmp_path / "gpu.json"
    )
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert "failed" not in capsys.readouterr().out
    checked = {row["of"]: row["relative"] for table in found["check"] for row in table["rows"]}
    assert {"logits", "layer 4, log-variances", "places of the fast pass", "pooled of the fast pass"} <= set(checked)
    assert max(checked.values()) < 0.05
    streamed = [row for table in found["stream"] for row in table["rows"]]
    assert {(row["features"], row["pass"]) for row in streamed} == {("logits and statistics", "fast"), ("all", "fast")}
    assert "bfloat16, all kinds of features" in {row["pass"] for table in found["latency"] for row in table["rows"]}


def test_what_fails_in_the_gpu_benchmark_is_said_and_the_rest_is_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_bench.GpuBench, "has_kernels", True)  # which is not so
    gpu_speed.main("residual", device="cpu", tiny=True, only="check,latency,stream", out=tmp_path / "gpu.json")
    shown, found = capsys.readouterr().out, json.loads((tmp_path / "gpu.json").read_text())
    assert all(f"!! {part} failed" in shown for part in ("check, dense", "fast", "bfloat16, fast", "all, 2"))
    assert [[row["pass"] for row in table["rows"]] for table in found["latency"]] == [
        ["eager float32"],
        ["float32"],
    ] * 2


@pytest.mark.parametrize("patches", [None, 3])
@pytest.mark.parametrize("weights", [tiny_weights, residual_weights])
@torch.inference_mode()
def test_every_stage_of_the_fast_pass_can_be_timed_by_itself(
    weights: Callable[[], Weights], patches: int | None
) -> None:
    corners = None if patches is None else torch.zeros(patches, 2, dtype=torch.int64)
    fast_pass = FastPass(weights().discriminator.eval(), corners, size=64, stages=PlainStages())
    images = torch.zeros(2, 64, 64, 3, dtype=torch.uint8)
    names = []
    for name, call, _, _ in gpu_speed.stages_of(fast_pass, images):
        call()
        names.append(name)
    assert names[0] == "moments"
    assert "classify" in names


@pytest.mark.slow
def test_the_contact_sheet_has_a_tile_for_every_corruption_and_severity(tmp_path: Path) -> None:
    contact_sheet.main(tmp_path / "sheet.png", tile=20)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (118 + 6 * 22, 20 + len(CORRUPTIONS) * 22)
