"""A student learns to predict its teachers, which never change and leave nothing in its file."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from discopatch.bench.networks.efficientnet import convert_efficientnet
from discopatch.bench.networks.fetch import KIND, backbone_path, is_fetched, load_backbone
from discopatch.bench.networks.resnet50 import convert_keras
from discopatch.errors import ParameterError
from discopatch.images import Transform
from discopatch.images.tensors import to_unit
from discopatch.model import Discriminator, Networks, Weights, parameters_digest, write_safetensors
from discopatch.model.config import LITE1
from discopatch.model.layers import SMALLEST_VARIANCE, Block
from discopatch.training import RunOptions, TrainingConfig, TrainingResult, get_preset, train
from discopatch.training.batches import Batch
from discopatch.training.step import kept_distance, teacher_distance
from discopatch.training.teachers import (
    AuxiliaryOutput,
    BackboneTeacher,
    DiscriminatorTeacher,
    Teacher,
    Teachers,
    begin_as_teacher,
    measure_statistics,
)
from tests.bench.networks.samples import efficientnet_state, keras_variables, sample_pixels
from tests.samples import TINY, TINY_EMBEDDED, inverted_weights
from tests.training.tiny import ARCHITECTURE, read_losses

WIDER = replace(ARCHITECTURE, hidden=(6, 12))
STATISTICS = "discriminator/statistics"
STOP_AT_ONCE = RunOptions(max_minutes=1e-9)
BACKBONES = ("resnet50", "efficientnet-lite1")


def random_images(seed: int = 1, size: int = 32) -> torch.Tensor:
    return torch.rand(6, 3, size, size, generator=torch.Generator().manual_seed(seed)) * 2 - 1


@pytest.fixture
def weights() -> Weights:
    return Weights(Networks.from_seed(WIDER, seed=8).discriminator, Transform(size=64))


@pytest.fixture
def teachers(weights: Weights) -> Teachers:
    networks = {"discriminator": DiscriminatorTeacher(weights, ARCHITECTURE)}
    return Teachers.measured(networks, [random_images(seed=2), random_images(seed=3)])


def statistics_by_hand(discriminator: Discriminator, image: torch.Tensor) -> np.ndarray:
    """Means and log-variances before each normalisation of one image, by numpy."""
    found, x = [], image[None]
    for block in discriminator.blocks:
        assert isinstance(block, Block)
        values = block.conv(x).detach().numpy()
        found += [values.mean((0, 2, 3)), np.log(values.var((0, 2, 3)) + SMALLEST_VARIANCE)]
        x = block(x, 1).features
    return np.concatenate(found)


def test_targets_are_statistics_in_standard_deviations(teachers, weights) -> None:
    first_images = torch.cat([random_images(seed=2), random_images(seed=3)])
    statistics = [statistics_by_hand(weights.discriminator, image) for image in first_images]
    centre, scale = np.mean(statistics, 0), np.std(statistics, 0, ddof=1) + 0.01
    output = teachers(random_images())
    assert output.keys() == {STATISTICS}
    for image, found in zip(random_images(), output[STATISTICS], strict=True):
        expected = (statistics_by_hand(weights.discriminator, image) - centre) / scale
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-3, atol=1e-3)


def test_an_inverted_student_learns_maps_and_the_embedding_itself() -> None:
    teacher = DiscriminatorTeacher(inverted_weights(TINY_EMBEDDED), TINY_EMBEDDED)
    teaching = Teachers.measured({"larger": teacher}, [random_images(seed=2), random_images(seed=3)])
    targets = teaching(random_images())
    assert targets.keys() == {f"larger/{kind}" for kind in ("statistics", "map8", "map16", "embedding")}
    output = teacher.discriminator(random_images(), 1, statistics=True)
    torch.testing.assert_close(targets["larger/embedding"], output.embedding)
    for kind, layer in (("map8", 2), ("map16", 3)):
        centre, scale = (part[f"larger/{kind}"].view(-1, 1, 1) for part in (teaching.centre, teaching.scale))
        torch.testing.assert_close(targets[f"larger/{kind}"] * scale + centre, output.features[layer])

    config = replace(get_preset("natural-small-v2"), weight_cosine=3.0)
    batch = Batch(random_images(), True, torch.zeros(6, 19), torch.zeros(6), {"larger/embedding": output.embedding})
    for embedding, expected in ((5 * output.embedding, 0.0), (-output.embedding, 6.0)):
        found = AuxiliaryOutput(output.logits, predictions={}, embedding=embedding)
        assert teacher_distance(found, batch, config).item() == pytest.approx(expected, abs=1e-5)


# The recipe of natural-v3 with tiny networks


@pytest.fixture(scope="module", autouse=True)
def _fetched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Small backbones with random weights in the place of the downloaded ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("user-cache")))
        for name, converted in (
            ("resnet50", convert_keras(keras_variables())),
            ("efficientnet-lite1", convert_efficientnet(efficientnet_state(LITE1))),
        ):
            header = {"parameters": converted.parameters, "classes": []}
            write_safetensors(backbone_path(name), converted.tensors, kind=KIND, header=header)
        yield


def backbone_teacher(name: str) -> BackboneTeacher:
    backbone = load_backbone(name)
    return BackboneTeacher(name, backbone.network, backbone.digest)


@pytest.fixture(scope="module")
def recipe() -> tuple[TrainingConfig, dict[str, Teacher]]:
    """The preset with a tiny network on small images, and its teachers."""
    discriminator = Weights(Networks.from_seed(TINY, seed=8).discriminator, Transform(size=64))
    teachers: dict[str, Teacher] = {name: backbone_teacher(name) for name in BACKBONES}
    teachers["discriminator"] = DiscriminatorTeacher(discriminator, TINY_EMBEDDED)
    changes: Any = {"images": 6, "patches": 2, "min_scale": 0.8, "native": 96, "architecture": TINY_EMBEDDED}
    digests = {name: each.digest for name, each in teachers.items()}
    return replace(get_preset("natural-v3"), transform=Transform(size=64), teachers=digests, **changes), teachers


@pytest.fixture
def go(photos: Path, cache: Path, tmp_path: Path, recipe):
    def run(name: str, *, resume: bool = False, options: RunOptions | None = None, **changes) -> TrainingResult:
        config = replace(recipe[0], **changes)
        teachers = recipe[1] if config.teachers else {}
        quiet, options = Console(quiet=True), options or RunOptions()
        places: Any = {"cache": cache, "resume": resume, "options": options, "console": quiet, "teachers": teachers}
        return train(str(photos), tmp_path / name, config, **places)

    return run


def losses(result: TrainingResult) -> dict[str, np.ndarray]:
    return read_losses(result.weights.with_name("losses.csv"))


def test_a_distillation_stopped_again_and_again_equals_one_in_one_go(go, recipe) -> None:
    before = [parameters_digest(each) for each in recipe[1].values()]
    whole = go("whole", steps=2)
    for attempt in range(2):
        parts = go("parts", steps=2, resume=attempt > 0, options=STOP_AT_ONCE)
        assert parts.step == attempt + 1
    assert whole.weights.with_name("losses.csv").read_text() == parts.weights.with_name("losses.csv").read_text()
    weights = Weights.load(parts.weights)
    assert Weights.load(whole.weights).digest == weights.digest
    assert weights.discriminator.state_dict().keys() == Discriminator(TINY_EMBEDDED).state_dict().keys()
    assert weights.origin["config"]["teachers"] == recipe[0].teachers
    assert [parameters_digest(each) for each in recipe[1].values()] == before


@pytest.mark.slow
def test_every_part_of_the_loss_falls(go) -> None:
    found = losses(go("run", steps=48, learning_rate=5e-3, warm_up=0.1))
    for name in ("distilled", "classified", "degraded", "reconstruction"):
        assert found[name][-10:].mean() < 0.9 * found[name][:10].mean(), name


def test_other_teachers_than_the_configs_are_refused(go, recipe, tmp_path: Path) -> None:
    for teachers in ({**recipe[0].teachers, "resnet50": "0123456789abcdef"}, {"resnet50": "0123456789abcdef"}):
        with pytest.raises(ParameterError, match="0123456789abcdef"):
            go("run", steps=1, teachers=teachers)
    assert not (tmp_path / "run").exists()


def test_a_network_that_begins_as_its_teacher_is_to_keep_its_features_where_nothing_is_degraded(recipe) -> None:
    discriminator = Networks.from_seed(get_preset("natural-v3").architecture, 0).discriminator
    left = begin_as_teacher(discriminator, {"efficientnet-lite1": recipe[1]["efficientnet-lite1"]})
    assert left.keys() == {"beginning"}
    images = to_unit(torch.from_numpy(sample_pixels("cat", "coffee")[:, :64, :64].copy())).permute(0, 3, 1, 2)
    real = torch.ones(2, 1, 64, 64)
    real[..., 32:] = 0
    targets = Teachers(left, {}, {})(images)
    assert targets.keys() == {f"beginning/{number}" for number in range(5)}

    def loss(features: list[torch.Tensor]) -> float:
        output = AuxiliaryOutput(torch.zeros(2, 4, 4), features=features)
        batch = Batch(images, real, torch.zeros(2, 12), torch.zeros(2), targets)
        return kept_distance(output, batch, recipe[0]).item()

    layers = [targets[f"beginning/{number}"].clone() for number in range(5)]
    assert loss(layers) == 0
    layers[0][..., 32 // 2 :] += 100.0
    assert loss(layers) == 0, "only degraded cells changed"
    layers[0][..., :2] += 1.0
    assert loss(layers) > 0


def test_an_embedding_begins_with_statistics_of_mean_0_and_deviation_1() -> None:
    network, batches = Networks.from_seed(TINY_EMBEDDED, seed=2).discriminator, [random_images(seed) for seed in (1, 2)]
    measure_statistics(network, batches)
    assert network.embed is not None
    found = torch.cat(network(torch.cat(batches), 1, statistics=True).layer_statistics, 1)
    torch.testing.assert_close(network.embed.centre, found.mean(0), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(network.embed.scale, found.std(0) + 0.01, rtol=1e-3, atol=1e-4)


def test_the_targets_of_backbones_are_the_features_of_the_benchmark(recipe) -> None:
    crops = torch.from_numpy(sample_pixels("cat", "coffee", "rocket", "camera")[:, 16:240, 16:240].copy())
    images = to_unit(crops).permute(0, 3, 1, 2)
    found = Teachers.measured(recipe[1], [images[:3], images[3:]])(images)
    kinds = {f"{name}/{kind}" for name in BACKBONES for kind in ("statistics", "pooled")}
    assert found.keys() == {STATISTICS, "resnet50/map8", "resnet50/map16", *kinds}
    assert found["resnet50/map8"].shape[2:] == (28, 28)
    for name in BACKBONES:
        whole = np.pad(crops.numpy(), ((0, 0), (16, 16), (16, 16), (0, 0)))
        features = load_backbone(name).extract(whole, ["statistics", "pooled"])
        for kind, values in (("statistics", features["statistics"]), ("pooled", features["pooled"])):
            expected = (values - values.mean(0)) / (values.std(0, ddof=1) + 0.01)
            np.testing.assert_allclose(found[f"{name}/{kind}"], expected, rtol=0.01, atol=0.01)
    map16 = found["resnet50/map16"]
    assert map16.mean((0, 2, 3)).abs().max() < 1e-3
    assert map16.transpose(0, 1).flatten(1).std(1).max() < 1.01


@pytest.mark.nightly
@pytest.mark.parametrize("name", BACKBONES)
def test_the_teachers_of_natural_v3_are_those_that_are_fetched(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    if not is_fetched(name):
        pytest.skip(f"no weights of {name}: get them with `discopatch data fetch {name}`")
    assert load_backbone(name).digest == get_preset("natural-v3").teachers[name]
