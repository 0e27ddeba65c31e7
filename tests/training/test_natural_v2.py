"""The recipe of natural-v2 with tiny networks: it learns, resumes to the bit, and leaves the network alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from discopatch.bench.networks import load_backbone
from discopatch.bench.networks.efficientnet import convert_efficientnet
from discopatch.bench.networks.fetch import KIND, backbone_path
from discopatch.bench.networks.resnet50 import convert_keras
from discopatch.errors import ParameterError, WeightsError
from discopatch.images import Transform
from discopatch.images.tensors import to_unit
from discopatch.model import Discriminator, Networks, Weights, write_safetensors
from discopatch.model.discriminator import channel_statistics
from discopatch.training import RunOptions, TrainingConfig, TrainingResult, get_preset, train
from discopatch.training.augment import CropBatch
from discopatch.training.auxiliary import AuxiliaryOutput
from discopatch.training.distill import Teachers, begin_as_teacher, load_backbones, load_teachers
from discopatch.training.logging import COLUMNS, read_losses
from discopatch.training.losses import kept_loss
from tests.bench.networks.samples import efficientnet_state, keras_variables, sample_pixels
from tests.samples import TINY, TINY_INVERTED, TINY_RESIDUAL

STOP_AT_ONCE = RunOptions(max_minutes=1e-9)
BACKBONES = ("resnet50", "efficientnet-lite0")


@pytest.fixture(scope="module", autouse=True)
def fetched(tmp_path_factory: pytest.TempPathFactory):
    """Small backbones with random weights, where those that were fetched lie."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("user-cache")))
        for name, converted in (
            ("resnet50", convert_keras(keras_variables())),
            ("efficientnet-lite0", convert_efficientnet(efficientnet_state())),
        ):
            header = {"parameters": converted.parameters, "classes": []}
            write_safetensors(backbone_path(name), converted.tensors, kind=KIND, header=header)
        yield


@pytest.fixture(scope="module")
def discriminator() -> Weights:
    return Weights(Networks.from_seed(TINY, seed=8).discriminator, Transform(size=64))


@pytest.fixture(scope="module")
def config(discriminator: Weights) -> TrainingConfig:
    """The preset with a tiny network on small images, and these teachers."""
    digests = {name: load_backbone(name).digest for name in BACKBONES}
    return replace(
        get_preset("natural-v2"),
        architecture=TINY_RESIDUAL,
        transform=Transform(size=64),
        images=6,
        patches=2,
        min_scale=0.8,
        teachers={"discriminator": discriminator.digest, **digests},
    )


@pytest.fixture
def go(photos: Path, cache: Path, tmp_path: Path, config: TrainingConfig, discriminator: Weights):
    def run(
        name: str,
        *,
        resume: bool = False,
        options: RunOptions = RunOptions(),  # noqa: B008 - frozen
        teacher: Weights | None = discriminator,
        **changes,
    ) -> TrainingResult:
        return train(
            str(photos),
            tmp_path / name,
            replace(config, **changes),
            cache=cache,
            resume=resume,
            options=options,
            console=Console(quiet=True),
            teacher=teacher,
        )

    return run


def losses(result: TrainingResult) -> dict[str, np.ndarray]:
    table = np.array(read_losses(result.weights.with_name("losses.csv")))
    return dict(zip(COLUMNS, table.T, strict=True))


def test_a_run_that_was_stopped_again_and_again_equals_one_in_one_go(go) -> None:
    whole = go("whole", steps=3)
    for attempt in range(3):
        parts = go("parts", steps=3, resume=attempt > 0, options=STOP_AT_ONCE)
        assert parts.step == attempt + 1
    assert whole.weights.with_name("losses.csv").read_text() == parts.weights.with_name("losses.csv").read_text()
    assert Weights.load(whole.weights).digest == Weights.load(parts.weights).digest


def test_what_is_saved_is_the_network_alone_and_names_its_teachers(go, config) -> None:
    weights = Weights.load(go("run", steps=1).weights)
    assert weights.discriminator.state_dict().keys() == Discriminator(TINY_RESIDUAL).state_dict().keys()
    assert weights.origin["config"]["teachers"] == config.teachers
    assert weights.origin["config"]["preset"] == "natural-v2"


@pytest.mark.parametrize(
    "architecture",
    [
        TINY_INVERTED,
        TINY_RESIDUAL,
        pytest.param(replace(TINY_RESIDUAL, normalisation="patch"), marks=pytest.mark.slow),
    ],
    ids=["inverted", "batch", "patch"],
)
def test_every_part_of_the_loss_falls(go, architecture) -> None:
    found = losses(go("run", steps=48, learning_rate=5e-3, warm_up=0.1, architecture=architecture))
    for name in ("distilled", "classified", "degraded", "reconstruction"):
        assert found[name][-10:].mean() < 0.9 * found[name][:10].mean(), name


def test_what_begins_as_its_teacher_is_to_stay_so_where_nothing_is_degraded(config) -> None:
    """At first it is what it began as, and nothing is to be kept; degraded cells do not count."""
    teachers = load_backbones({"efficientnet-lite0": config.teachers["efficientnet-lite0"]})
    discriminator = Networks.from_seed(get_preset("natural-v2").architecture, 0).discriminator
    left = begin_as_teacher(discriminator, teachers)
    assert left.keys() == {"beginning"}
    images = to_unit(torch.from_numpy(sample_pixels("cat", "coffee")[:, :64, :64].copy())).permute(0, 3, 1, 2)
    real = torch.ones(2, 1, 64, 64)
    real[..., 32:] = 0
    targets = Teachers(left, {}, {})(images)
    assert targets.keys() == {f"beginning/{number}" for number in range(5)}
    kept = replace(config, weight_kept=2.0)

    def loss(features: list[torch.Tensor]) -> float:
        output = AuxiliaryOutput(torch.zeros(2, 4, 4), features=features)
        return kept_loss(output, CropBatch(images, real, torch.zeros(2, 12), targets), kept).item()

    layers = [targets[f"beginning/{number}"].clone() for number in range(5)]
    assert loss(layers) == 0
    layers[0][..., 32 // 2 :] += 100.0
    assert loss(layers) == 0
    layers[0][..., :2] += 1.0
    assert loss(layers) > 0


def test_without_teachers_and_without_a_vae_it_learns_from_degraded_crops_alone(go) -> None:
    found = losses(go("run", steps=2, teacher=None, teachers={}, weight_distilled=0.0, vae=False))
    assert not found["vae"].any()
    assert not found["distilled"].any()
    np.testing.assert_array_equal(found["discriminator"], found["degraded"])


def test_the_teachers_outputs_are_those_of_the_benchmark_in_standard_deviations(config, discriminator) -> None:
    crops = torch.from_numpy(sample_pixels("cat", "coffee", "rocket", "camera")[:, 16:240, 16:240].copy())
    images = to_unit(crops).permute(0, 3, 1, 2)
    teachers = Teachers.measured(load_teachers(config, discriminator), [images[:3], images[3:]])
    found = teachers(images)
    assert found.keys() == {
        "discriminator/statistics",
        *(f"{name}/{kind}" for name in BACKBONES for kind in ("statistics", "pooled")),
        "resnet50/map8",
        "resnet50/map16",
    }
    assert found["resnet50/map8"].shape[2:] == (28, 28)
    assert found["resnet50/map16"].shape[2:] == (14, 14)
    for name in BACKBONES:
        backbone = load_backbone(name)
        whole = np.pad(crops.numpy(), ((0, 0), (16, 16), (16, 16), (0, 0)))
        features = backbone.extract(whole, ["statistics", "penultimate"])
        for kind, values in (("statistics", features["statistics"]), ("pooled", features["penultimate"])):
            expected = (values - values.mean(0)) / (values.std(0, ddof=1) + 0.01)
            np.testing.assert_allclose(found[f"{name}/{kind}"], expected, rtol=0.01, atol=0.01)
    map16 = found["resnet50/map16"]
    assert map16.mean((0, 2, 3)).abs().max() < 1e-3
    assert map16.transpose(0, 1).flatten(1).std(1).max() < 1.01
    own = discriminator.discriminator(images, 1, statistics=True).statistics
    expected = ((own - own.mean(0)) / (own.std(0) + 0.01)).detach()
    torch.testing.assert_close(found["discriminator/statistics"], expected, rtol=0.01, atol=0.01)
    assert channel_statistics([map16]).shape[1] == 2 * teachers.channels["resnet50/map16"]


def test_teachers_never_change(config, discriminator) -> None:
    networks = load_teachers(config, discriminator)
    assert not any(parameter.requires_grad for each in networks.values() for parameter in each.parameters())
    norms = [each for network in networks.values() for each in network.modules() if isinstance(each, nn.BatchNorm2d)]
    assert not any(norm.training for norm in norms)


def test_a_released_teacher_need_not_be_given(config) -> None:
    alone = {"discriminator": get_preset("natural-v2").teachers["discriminator"]}
    networks = load_teachers(replace(config, teachers=alone), None)
    found = networks["discriminator"](torch.zeros(1, 3, 64, 64))
    assert found["statistics"].shape == (1, 3840)
    assert "logits" not in found, "they stand at other places than the student's"


def test_a_missing_backbone_is_an_error_with_the_command_and_another_one_is_refused(
    go, tmp_path, monkeypatch, config, discriminator
) -> None:
    other = {**config.teachers, "resnet50": "0123456789abcdef"}
    with pytest.raises(ParameterError, match="resnet50 is 0123456789abcdef"):
        go("run", steps=1, teachers=other)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    with pytest.raises(WeightsError, match="discopatch data fetch resnet50 efficientnet-lite0"):
        go("run", steps=1)
    assert not (tmp_path / "run").exists()
