"""Features in bfloat16: through the fast pass on a GPU, and through the plain one where its kernels do not work."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discopatch import Detector, detector
from discopatch.encoders import DiscriminatorEncoder, Features, Kind, discriminator
from discopatch.errors import ParameterError
from discopatch.images import Refusal
from discopatch.model import kernels
from tests.model.plain_stages import PlainStages
from tests.samples import camera_pixels, inverted_weights, new_detector, tiny_weights, with_header

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def _fast_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 is refused without a GPU since it would be slow, not since it would be wrong."""
    for module in (discriminator, detector):
        monkeypatch.setattr(module, "check_precision", lambda *_, **__: None)
    monkeypatch.setattr(kernels, "FastPass", partial(kernels.FastPass, stages=PlainStages()))


def encoder(**options: Any) -> DiscriminatorEncoder:
    return DiscriminatorEncoder(inverted_weights(), **{"precision": "bfloat16", **options})


def assert_near(found: Features, expected: Features, *, within: float = 0.01) -> None:
    for one, other in zip(found, expected, strict=True):
        assert np.linalg.norm(one - other) <= within * np.linalg.norm(other)


def test_a_precision_that_is_unknown_or_needs_a_gpu_is_refused(detector_file: Path, tmp_path: Path) -> None:
    for precision in ("bfloat16", "float16"):
        with pytest.raises(ParameterError, match=precision):
            encoder(device="cpu", precision=precision)
    with pytest.raises(ParameterError, match="bfloat16"):
        Detector(tiny_weights(), precision="bfloat16", device="cpu").fit(tmp_path / "not even there")
    path = tmp_path / "file"
    path.write_bytes(detector_file.read_bytes())
    with_header(path, lambda header: header.update(precision="bfloat16"))
    with pytest.raises(ParameterError, match="bfloat16"):
        Detector.load(path, device="cpu")


@pytest.mark.usefixtures("_fast_on_a_cpu")
def test_a_plain_network_has_no_fast_pass_and_is_computed_in_half_precision() -> None:
    pixels, own = camera_pixels(4), partial(DiscriminatorEncoder, tiny_weights())
    found, expected = own(precision="bfloat16").extract_pixels(pixels), own().extract_pixels(pixels)
    assert_near(found, expected, within=0.05)
    assert not np.array_equal(found.logits, expected.logits)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_a_gpu)])
@pytest.mark.parametrize("patches", ["dense", 3])
@pytest.mark.parametrize("kinds", [("pooled", "places", "tones")])
def test_an_inverted_network_gives_all_kinds_of_features(
    kinds: tuple[Kind, ...], patches: Any, device: str, request: pytest.FixtureRequest
) -> None:
    if device == "cpu":
        request.getfixturevalue("_fast_on_a_cpu")
    pixels = camera_pixels(6)
    new = partial(DiscriminatorEncoder, inverted_weights(), patches=patches, kinds=kinds, device=device)
    fast_encoder = new(precision="bfloat16", batch_size=4)
    found, expected = fast_encoder.extract_pixels(pixels), new().extract_pixels(pixels)
    assert [each.shape for each in found] == [each.shape for each in expected]
    assert [each.dtype for each in found] == [each.dtype for each in expected]
    assert_near(found, expected, within=0.02)
    assert not np.array_equal(found.logits, expected.logits), "or it is not the fast pass"
    assert fast_encoder.prefetched == 1
    streamed = [each[1] for each in fast_encoder.extract(list(pixels), workers=1) if not isinstance(each, Refusal)]
    assert all(map(np.array_equal, Features.concatenate(streamed), found))


@pytest.mark.usefixtures("_fast_on_a_cpu")
@pytest.mark.parametrize("failure", [RuntimeError("no such instruction"), ImportError()])
def test_where_the_kernels_fail_the_plain_pass_is_used_with_a_warning(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise failure

    pixels, expected = camera_pixels(4), encoder(precision="float32").extract_pixels(camera_pixels(4))
    monkeypatch.setattr(kernels, "FastPass", fail)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "some GPU")
    with pytest.warns(RuntimeWarning, match=f"some GPU .*{type(failure).__name__}"):
        found = encoder(batch_size=3)
    features = found.extract_pixels(pixels)
    assert_near(features, expected, within=0.05)
    assert features.logits.dtype == features.statistics.dtype == np.float32
    assert found.prefetched == 0
    streamed = [each[1] for each in found.extract(list(pixels), workers=1) if not isinstance(each, Refusal)]
    assert all(map(np.array_equal, Features.concatenate(streamed), features))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_a_gpu)])
def test_a_detector_in_bfloat16_scores_what_it_was_calibrated_with(
    device: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if device == "cpu":
        request.getfixturevalue("_fast_on_a_cpu")
    images, new = camera_pixels(60), camera_pixels(9, seed=1)
    found = new_detector(inverted_weights(), precision="bfloat16", device=device).fit(images, workers=1)
    found.save(tmp_path / "detector")
    again = Detector.load(tmp_path / "detector", device=device)
    assert again.precision == "bfloat16"
    np.testing.assert_allclose(again.encoder_.start(new)().scores[:, 0], found.score(new), rtol=1e-9)
    assert np.array_equal(again.score(new), found.score(new))
    expected = found.head_.score(found.encoder_.extract_pixels(new))  # in deviations of normal images, some near zero
    np.testing.assert_allclose(found.score(new), expected, rtol=1e-6, atol=1e-6)
    assert found.explain(new[0]).prediction == found.predict(new[:1])[0]


@pytest.mark.usefixtures("_fast_on_a_cpu")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_images_that_are_a_tensor_already_have_the_same_features(precision: str) -> None:
    pixels, found = camera_pixels(4), encoder(precision=precision, device="cpu", batch_size=4)
    for one, other in zip(found.start(torch.from_numpy(pixels))(), found.start(pixels)(), strict=True):
        assert np.array_equal(one, other)
