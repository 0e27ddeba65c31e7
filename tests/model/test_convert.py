"""Checkpoints of the paper's authors become weights that compute what their network computes."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import discopatch
from discopatch.encoders import DiscriminatorEncoder
from discopatch.errors import WeightsError
from discopatch.export import export_detector
from discopatch.export.parity import MAX_DIFFERENCE
from discopatch.images import Transform
from discopatch.model import Weights
from discopatch.model.convert import MAX_PICKLE_BYTES, convert_checkpoint
from discopatch.model.weights import MAX_BYTES
from tests.model.checkpoints import PATCH, State, saved, their_network, their_state
from tests.samples import new_detector, one_camera


def converted(folder: Path, normalisation: Any = "batch", pixels: Any = "symmetric") -> Weights:
    state = their_state(their_network(normalisation))
    return convert_checkpoint(saved(state, folder), normalisation=normalisation, pixels=pixels)[0]


def an_image() -> Any:
    return one_camera(1, size=256)[0].pixels.copy()


@pytest.mark.parametrize(("normalisation", "pixels"), [("batch", "symmetric"), ("group", "unit")])
@torch.no_grad()
def test_scores_are_those_of_their_network(tmp_path: Path, normalisation: str, pixels: str) -> None:
    """From the image to each patch's probability, through the file: theirs normalises the patches of one image."""
    weights = converted(tmp_path, normalisation, pixels)
    weights.save(tmp_path / "ours.safetensors")
    encoder = DiscriminatorEncoder(Weights.load(tmp_path / "ours.safetensors"), patches=7)
    image, corners = an_image(), encoder.extractor.corners
    assert corners is not None
    floats = torch.from_numpy(image).permute(2, 0, 1) / 255
    floats = floats if pixels == "unit" else (floats - 0.5) / 0.5
    patches = torch.stack([floats[:, top : top + PATCH, left : left + PATCH] for top, left in corners.tolist()])
    expected = their_network(normalisation).train()(patches).squeeze(1)
    found = torch.from_numpy(encoder.extract_pixels(image[None]).logits[0]).sigmoid()
    assert expected.std() > 0.01
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@torch.no_grad()
def test_the_papers_own_size_is_converted_to_the_parameter(tmp_path: Path) -> None:
    network = their_network("batch", widths=(128, 256, 512, 1024), patch=64)
    path = saved(their_state(network), tmp_path)
    weights, dropped = convert_checkpoint(path, normalisation="batch", pixels="symmetric")
    kinds = ("running_mean", "running_var", "num_batches_tracked")
    assert set(dropped) == {"fc.weight", "fc.bias", *(f"encoder.{i}.1.{kind}" for i in range(4) for kind in kinds)}
    assert sum(each.numel() for each in weights.discriminator.parameters()) == 6_218_753
    assert weights.discriminator.architecture.patch_size == 64
    x = torch.rand(4, 3, 64, 64) * 2 - 1
    found = weights.discriminator(x).logits.sigmoid()
    torch.testing.assert_close(found, network.train()(x).squeeze(1), rtol=0, atol=1e-6)


def without(name: str) -> Callable[[State], Any]:
    return lambda state: {each: value for each, value in state.items() if each != name}


def having(name: str, value: Tensor) -> Callable[[State], Any]:
    return lambda state: {**state, name: value}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (without("encoder.3.bias"), "head.bias"),
        (without("encoder.0.0.weight"), "encoder.0.0.weight"),
        (having("classifier.weight", torch.ones(1)), "classifier.weight"),
        (having("encoder.0.0.weight", torch.ones(32, 4, 3, 3)), "32, 4, 3, 3"),
        (having("encoder.0.0.weight", torch.ones(1).expand(2**20, 2**15, 3, 3)), "hidden"),
        (having("encoder.3.weight", torch.ones(1, 65)), "65"),
        (having("encoder.0.1.bias", torch.full((32,), float("nan"))), "finite"),
        (having("encoder.0.1.bias", torch.ones(32).to_sparse()), "sparse"),
        (lambda state: list(state.values()), "by name"),
    ],
)
def test_wrong_keys_and_shapes_are_one_error_with_the_remedy(
    tmp_path: Path, change: Callable[[State], Any], named: str
) -> None:
    path = saved(change(their_state(their_network("batch"))), tmp_path)
    with pytest.raises(WeightsError, match=named) as error:
        convert_checkpoint(path, normalisation="batch", pixels="symmetric")
    assert str(path) in str(error.value)
    assert "authors' discriminator" in str(error.value)


def test_channels_that_do_not_divide_into_their_groups_are_refused(tmp_path: Path) -> None:
    path = saved(their_state(their_network("batch", widths=(8, 16))), tmp_path)
    with pytest.raises(WeightsError, match=r"\[8, 16\].*batch"):
        convert_checkpoint(path, normalisation="group", pixels="symmetric")


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("harmed"),))


def test_code_in_a_checkpoint_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = saved({**their_state(their_network("batch")), "extra": Harmful()}, tmp_path)
    with pytest.raises(WeightsError):
        convert_checkpoint(path, normalisation="batch", pixels="symmetric")
    assert not Path("harmed").exists()


def test_files_that_are_no_checkpoint_are_refused(tmp_path: Path) -> None:
    def refuses(path: Path, match: str) -> None:
        with pytest.raises(WeightsError, match=match):
            convert_checkpoint(path, normalisation="batch", pixels="symmetric")

    refuses(tmp_path / "nowhere.pt", "no such file")
    (tmp_path / "text.pt").write_text("no tensors")
    refuses(tmp_path / "text.pt", "archive")
    torch.save({}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    refuses(tmp_path / "old.pt", "archive")
    whole = saved(their_state(their_network("batch")), tmp_path)
    whole.write_bytes(whole.read_bytes()[:-2000])
    refuses(whole, "archive")
    with (tmp_path / "large.pt").open("wb") as file:
        file.truncate(MAX_BYTES["discriminator"] + 1)
    refuses(tmp_path / "large.pt", "bytes")


def test_an_archive_that_would_grow_in_memory_is_refused(tmp_path: Path) -> None:
    path = saved(their_state(their_network("batch")), tmp_path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with (
        zipfile.ZipFile(tmp_path / "dense.pt", "w", zipfile.ZIP_DEFLATED) as dense,
        zipfile.ZipFile(tmp_path / "short.pt", "w") as short,  # its names claim more than the file has
    ):
        for name, content in parts.items():
            dense.writestr(name, content)
            short.writestr(name, content[:4] if "/data/" in name else content)
    for file, reason in (("dense.pt", "compressed"), ("short.pt", "tensors alone")):
        with pytest.raises(WeightsError, match=reason):
            convert_checkpoint(tmp_path / file, normalisation="batch", pixels="symmetric")
    path = saved({"x" * (MAX_PICKLE_BYTES + 1): torch.ones(1)}, tmp_path)
    with pytest.raises(WeightsError, match="names"):
        convert_checkpoint(path, normalisation="batch", pixels="symmetric")


def test_the_range_of_pixels_is_in_the_digests_and_the_usual_one_changes_none(tmp_path: Path) -> None:
    unit, symmetric = (converted(tmp_path, pixels=pixels) for pixels in ("unit", "symmetric"))
    assert unit.digest != symmetric.digest
    assert unit.transform.digest != symmetric.transform.digest
    assert symmetric.transform.digest == Transform(resample="lanczos").digest
    assert "pixels" not in symmetric.transform.to_dict()
    unit.save(tmp_path / "unit.safetensors")
    again = Weights.load(tmp_path / "unit.safetensors")
    assert (again.digest, again.transform) == (unit.digest, unit.transform)


@pytest.mark.slow
def test_a_detector_and_its_export_keep_range_and_normalisation(tmp_path: Path) -> None:
    """In another range the scores are others, so that equal ones show the range."""
    images, new = one_camera(30, size=64), [image.pixels for image in one_camera(3, size=64, seed=1)]
    network = converted(tmp_path, "group").discriminator
    by_unit, by_symmetric = (
        new_detector(Weights(network, Transform(size=64, pixels=pixels)), head="statistics", false_alarm_rate=0.2).fit(
            images, workers=1
        )
        for pixels in ("unit", "symmetric")
    )
    expected = by_unit.score(new, workers=1)
    assert not np.allclose(expected, by_symmetric.score(new, workers=1), rtol=1e-3)
    by_unit.save(tmp_path / "detector.safetensors")
    assert np.array_equal(discopatch.load(tmp_path / "detector.safetensors").score(new), expected)
    export_detector(by_unit, tmp_path / "onnx")
    limit = MAX_DIFFERENCE * by_unit.calibration_scores_.std()
    assert np.abs(discopatch.load(tmp_path / "onnx").score(new) - expected).max() <= limit
    assert np.abs(by_symmetric.score(new, workers=1) - expected).max() > 10 * limit
