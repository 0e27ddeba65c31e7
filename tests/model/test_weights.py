"""Weights are one file with all that scoring needs, and a file with anything wrong about it is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from discopatch.errors import WeightsError
from discopatch.images import Transform
from discopatch.model import Discriminator, Weights, read_safetensors, write_safetensors
from discopatch.model.weights import FORMATS
from tests.model.samples import a_discriminator, patches_of
from tests.samples import TINY, residual_weights, with_header


def some_weights(*, seed: int = 0) -> Weights:
    return Weights(a_discriminator(seed=seed), Transform(size=64, fit="squash"), {"step": 7, "images": "photos"})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "discriminator.safetensors"
    some_weights().save(path)
    return path


@torch.no_grad()
def test_a_round_trip_is_equal_to_the_bit(saved: Path) -> None:
    before, after = some_weights(), Weights.load(saved)
    assert after.transform == before.transform
    assert after.origin == before.origin
    assert after.discriminator.architecture == before.discriminator.architecture
    stored = after.discriminator.state_dict()
    assert stored.keys() == before.discriminator.state_dict().keys()
    for name, tensor in before.discriminator.state_dict().items():
        assert torch.equal(stored[name], tensor), name
    x = patches_of(8)
    assert torch.equal(after.discriminator(x, 4).logits, before.discriminator.eval()(x, 4).logits)


def test_loaded_weights_are_ready_to_score(saved: Path) -> None:
    assert not Weights.load(saved).discriminator.training


def test_batch_normalisations_running_statistics_are_kept(tmp_path: Path) -> None:
    network = a_discriminator(replace(TINY, normalisation="batch")).train()
    network(patches_of(8))
    Weights(network, Transform()).save(tmp_path / "batch.safetensors")
    again = Weights.load(tmp_path / "batch.safetensors").discriminator
    for name, tensor in network.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_the_digest_outlives_the_file_and_knows_every_weight(saved: Path) -> None:
    weights = Weights.load(saved)
    assert weights.digest == some_weights().digest
    assert weights.digest != some_weights(seed=1).digest
    with torch.no_grad():
        weights.discriminator.head.weight[0, -1] += 1e-6
    assert weights.digest != some_weights().digest


def test_the_digest_does_not_depend_on_the_memory_order() -> None:
    network = Discriminator(TINY)
    before = Weights(network, Transform()).digest
    assert Weights(network.to(memory_format=torch.channels_last), Transform()).digest == before  # type: ignore[call-overload]


def test_saving_leaves_nothing_else_behind(saved: Path) -> None:
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="nowhere"):
        Weights.load(tmp_path / "nowhere.safetensors")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError):
        Weights.load(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(saved: Path, kept: int) -> None:
    saved.write_bytes(saved.read_bytes()[:kept])
    with pytest.raises(WeightsError):
        Weights.load(saved)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.safetensors"
    path.write_text("these are not weights, and never were")
    with pytest.raises(WeightsError):
        Weights.load(path)


def test_a_foreign_safetensors_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign.safetensors"
    save_file({"layer.weight": torch.zeros(3)}, path)
    with pytest.raises(WeightsError):
        Weights.load(path)


@pytest.mark.parametrize("by", [-1, 1])
def test_an_older_and_a_newer_format_are_refused(saved: Path, by: int) -> None:
    other = FORMATS["discriminator"] + by
    with_header(saved, lambda header: header.update(format=other))
    with pytest.raises(WeightsError, match=f"format {other}"):
        Weights.load(saved)


@pytest.mark.parametrize("missing", ["format", "kind"])
def test_a_header_that_does_not_say_what_the_file_is_is_refused(saved: Path, missing: str) -> None:
    with_header(saved, lambda header: header.pop(missing))
    with pytest.raises(WeightsError, match=f"lacks {missing}"):
        Weights.load(saved)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_kind_of_file_has_a_format_of_its_own(tmp_path: Path, kind: str) -> None:
    path, tensors = tmp_path / "file", {"a": torch.arange(3.0), "b": torch.ones(2, 3).T}
    write_safetensors(path, tensors, kind=kind, header={"step": 7})
    header, found = read_safetensors(path, kind=kind)
    assert len(header.pop("file_digest")) == 64
    assert header == {"format": FORMATS[kind], "kind": kind, "step": 7}
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    for other in FORMATS.keys() - {kind}:
        with pytest.raises(WeightsError, match=kind):
            read_safetensors(path, kind=other)


def test_another_kind_of_content_is_refused(saved: Path) -> None:
    with_header(saved, lambda header: header.update(kind="checkpoint"))
    with pytest.raises(WeightsError, match="checkpoint"):
        Weights.load(saved)


def test_a_transform_changed_by_hand_is_refused(saved: Path) -> None:
    with_header(saved, lambda header: header["transform"].update(size=128))
    with pytest.raises(WeightsError, match=some_weights().transform.digest):
        Weights.load(saved)


def test_an_architecture_of_another_version_is_refused(saved: Path) -> None:
    with_header(saved, lambda header: header["architecture"].update(depth=3))
    with pytest.raises(WeightsError, match="depth"):
        Weights.load(saved)


def test_a_header_rewritten_unchanged_still_loads(saved: Path) -> None:
    """Or the refusals above would prove nothing."""
    assert Weights.load(with_header(saved, lambda header: None)).digest == some_weights().digest


def test_half_the_file_is_the_same_weights_rounded(saved: Path) -> None:
    half = saved.with_name("half.safetensors")
    some_weights().save(half, dtype=torch.float16)
    assert half.stat().st_size < 0.65 * saved.stat().st_size
    rounded = Weights.load(half).discriminator.state_dict()
    for name, tensor in some_weights().discriminator.state_dict().items():
        assert rounded[name].dtype == torch.float32
        assert torch.equal(rounded[name], tensor.half().float()), name


def test_running_statistics_that_float16_cannot_hold_are_not_rounded(tmp_path: Path) -> None:
    weights, file = residual_weights(), tmp_path / "half.safetensors"
    variance = weights.discriminator.get_buffer("blocks.1.blocks.0.first.norm.running_var")
    variance.fill_(123_456.0)
    weights.save(file, dtype=torch.float16)
    assert (Weights.load(file).discriminator.state_dict()["blocks.1.blocks.0.first.norm.running_var"] == 123_456).all()
