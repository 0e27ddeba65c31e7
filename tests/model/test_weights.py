"""Weights are one file with all that scoring needs, and a file with anything wrong about it is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from discopatch.errors import WeightsError
from discopatch.images import Transform
from discopatch.model import Discriminator, Weights, read_safetensors, write_safetensors
from discopatch.model.weights import FORMATS
from tests.model.samples import a_discriminator, patches_of
from tests.samples import TINY, TINY_EMBEDDED, TINY_INVERTED, with_header, with_tensors


def some_weights(*, seed: int = 0) -> Weights:
    return Weights(a_discriminator(seed=seed), Transform(size=64, fit="squash"), {"step": 7, "images": "photos"})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "discriminator.safetensors"
    some_weights().save(path)
    return path


@torch.no_grad()
@pytest.mark.parametrize("architecture", [TINY, replace(TINY, normalisation="batch"), TINY_INVERTED, TINY_EMBEDDED])
def test_a_round_trip_is_equal_to_the_bit(architecture, tmp_path: Path) -> None:
    network, x = a_discriminator(architecture).train(), patches_of(8)
    network(x)  # moves the running statistics of a BatchNorm
    before = Weights(network.eval(), Transform(size=64), {"step": 7})
    before.save(tmp_path / "file")
    after = Weights.load(tmp_path / "file")
    assert (after.transform, after.origin, after.digest) == (before.transform, before.origin, before.digest)
    assert after.discriminator.architecture == architecture
    assert not after.discriminator.training
    found, expected = (each(x, 4, statistics=True) for each in (after.discriminator, network))
    assert torch.equal(found.logits, expected.logits)
    assert torch.equal(found.statistics, expected.statistics)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_digest_covers_every_weight_and_no_memory_order() -> None:
    weights = some_weights()
    assert weights.digest == some_weights().digest != some_weights(seed=1).digest
    network = Discriminator(TINY)
    before = Weights(network, Transform()).digest
    assert Weights(network.to(memory_format=torch.channels_last), Transform()).digest == before  # type: ignore[call-overload]
    with torch.no_grad():
        weights.discriminator.head.weight[0, -1] += 1e-6
    assert weights.digest != some_weights().digest


def test_a_changed_byte_is_refused_wherever_it_is(saved: Path) -> None:
    content = saved.read_bytes()
    for place in np.random.default_rng(0).choice(len(content), 150, replace=False):
        changed = bytearray(content)
        changed[place] ^= 1
        saved.write_bytes(changed)
        with pytest.raises(WeightsError):
            Weights.load(saved)
    saved.write_bytes(content)
    assert Weights.load(saved).digest == some_weights().digest


@pytest.mark.parametrize("content", [b"", b"these are not weights, and never were", None])
def test_another_file_is_refused(saved: Path, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "other.safetensors"
    if content is None:
        save_file({"layer.weight": torch.zeros(3)}, path)
    else:
        path.write_bytes(content)
    for other in (path, tmp_path, tmp_path / "nowhere.safetensors"):
        with pytest.raises(WeightsError, match=other.name):
            Weights.load(other)
    saved.write_bytes(saved.read_bytes()[:-1])
    with pytest.raises(WeightsError):
        Weights.load(saved)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda header: header.update(format=99), "99"),
        (lambda header: header.pop("format"), "format"),
        (lambda header: header.update(kind="checkpoint"), "checkpoint"),
        (lambda header: header["transform"].update(size=128), "transform"),
        (lambda header: header["architecture"].update(depth=3), "depth"),
        (lambda header: header["architecture"].update(latent=None), "latent"),
        (lambda header: header["architecture"].update(hidden=[8, 24]), "shape"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(
    saved: Path, change: Callable[[dict[str, Any]], Any], named: str
) -> None:
    assert Weights.load(with_header(saved, lambda header: None)).digest == some_weights().digest
    with_header(saved, change)
    with pytest.raises(WeightsError, match=named):
        Weights.load(saved)


@pytest.mark.parametrize("value", [float("nan"), 1e7])
def test_a_weight_that_no_training_finds_is_refused(saved: Path, value: float) -> None:
    with_tensors(saved, lambda tensors: tensors["head.bias"].fill_(value))
    with pytest.raises(WeightsError, match="head"):
        Weights.load(saved)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_kind_of_file_is_read_as_that_kind_alone(tmp_path: Path, kind: str) -> None:
    path, tensors = tmp_path / "file", {"a": torch.arange(3.0), "b": torch.ones(2, 3).T, "c": torch.tensor(True)}
    write_safetensors(path, tensors, kind=kind, header={"step": 7})
    header, found = read_safetensors(path, kind=kind)
    assert header == {"format": FORMATS[kind], "kind": kind, "step": 7}
    assert all(torch.equal(found[name], tensors[name]) for name in tensors | found)
    for other in FORMATS.keys() - {kind}:
        with pytest.raises(WeightsError, match=kind):
            read_safetensors(path, kind=other)


def test_half_precision_rounds_everything_but_running_statistics(tmp_path: Path) -> None:
    network = a_discriminator(replace(TINY, normalisation="batch"))
    network.get_buffer("blocks.0.norm.running_var").fill_(123_456.0)
    Weights(network, Transform()).save(tmp_path / "half", dtype=torch.float16)
    for name, value in Weights.load(tmp_path / "half").discriminator.state_dict().items():
        expected = network.state_dict()[name]
        assert torch.equal(value, expected if "running" in name or "tracked" in name else expected.half().float()), name
