"""The fast pass sees what the plain one sees; without a GPU, by its plain stages."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from typer.testing import CliRunner

from discopatch import Detector
from discopatch.cli import app
from discopatch.images import Pixels, Refusal, Transform
from discopatch.model import Architecture, Discriminator, Pair
from discopatch.model.blocks import Block
from discopatch.model.fast import Look, Network, Plain, choose
from discopatch.model.fast.layers import in_halves
from discopatch.model.fast.stages import Affine, Stages
from discopatch.model.weights import Weights, read_safetensors, write_safetensors
from discopatch.patches import cut, scoring_corners, to_unit
from discopatch.scoring import CombinedHead, Evidence, Scorer, scorer
from discopatch.scoring.fastpass import FastPass
from discopatch.scoring.scorer import Inspected

from .samples import TINY, of_one_camera, save_pictures, some_pictures, tiny_weights

CPU = torch.device("cpu")
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

# Channels that fill no block, a side that is odd after two layers, a picture that is none of its multiples, one layer.
ARCHITECTURES = [
    (TINY, 64),
    (Architecture(patch_size=16, hidden=(5, 24, 40), latent=8), 44),
    (Architecture(patch_size=8, hidden=(20,), latent=8), 23),
    (Architecture(patch_size=64, hidden=(128, 256), latent=8), 64),
]


def network_of(architecture: Architecture) -> Discriminator:
    """As if trained a little: no scale is 1, no shift 0."""
    network = Pair.from_seed(architecture, 0).discriminator.eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return network


def corners_of(patches: int | None, *, size: int, patch: int) -> Tensor | None:
    return None if patches is None else scoring_corners("random", patches, size=size, patch_size=patch, seed=2)


def pictures_of(size: int, count: int = 6, *, seed: int = 0) -> Pixels:
    """Smooth as photos are, some bright with little contrast; made up: a machine with a GPU may have no photos."""
    walks = np.random.default_rng(seed).normal(size=(count, size, size, 3)).cumsum(1).cumsum(2)
    squares: Pixels = np.clip(128 + 50 * walks / walks.std((1, 2, 3), keepdims=True), 0, 255).astype(np.uint8)
    squares[::3] = 200 + squares[::3] // 16
    return squares


def seen_plainly(network: Discriminator, corners: Tensor | None, pixels: Pixels) -> Evidence:
    """By `Discriminator.inspect`, in float64, one picture at a time."""
    network, found = Discriminator(network.architecture).double().eval(), network
    network.load_state_dict(found.state_dict())
    seen = []
    for picture in torch.from_numpy(pixels).split(1):
        patches = picture.permute(0, 3, 1, 2)
        if corners is not None:
            patches = cut(picture, corners[None], network.architecture.patch_size)
        with torch.no_grad():
            inspection = network.inspect(to_unit(patches).double())
        seen.append(Evidence(inspection.logits.reshape(1, -1).numpy(), inspection.statistics.numpy()))
    return Evidence.concatenate(seen)


def relative_difference(found: Any, expected: Any) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("patches", [None, 1, 3])
@pytest.mark.parametrize(("architecture", "size"), ARCHITECTURES)
def test_moments_are_the_sums_of_products_of_unfolded_windows(
    architecture: Architecture, size: int, patches: int | None
) -> None:
    pixels, patch = torch.from_numpy(pictures_of(size)), architecture.patch_size
    corners = corners_of(patches, size=size, patch=patch)
    found = Plain().moments(pixels, Look.at(corners, patch=patch, size=size, device=CPU))
    for picture, moments in zip(pixels.split(1), found, strict=True):
        cut_out = picture.permute(0, 3, 1, 2) if corners is None else cut(picture, corners[None], patch)
        unfolded = F.unfold(2.0 * cut_out.double() - 255, 3, padding=1, stride=2)  # (patches, 3 x 9, pixels)
        rows = unfolded.unflatten(1, (3, 9)).permute(0, 3, 2, 1).flatten(2).flatten(0, 1)
        assert torch.equal(moments[:27, :27], rows.T @ rows)
        assert torch.equal(moments[27, :27], rows.sum(0))
        assert moments[27, 27] == len(rows)
        assert not moments[28:].any()


@pytest.mark.parametrize("patches", [None, 3])
def test_the_statistics_of_the_first_layer_are_known_before_it_is_computed(patches: int | None) -> None:
    network, pixels = network_of(TINY), torch.from_numpy(pictures_of(64))
    corners = corners_of(patches, size=64, patch=32)
    look = Look.at(corners, patch=32, size=64, device=CPU)
    layer = Network.of(network, torch.float32).first
    sums, squares = (Plain().moments(pixels, look).flatten(1) @ layer.forms).view(len(pixels), 2, -1).unbind(1)
    first = network.blocks[0]
    assert isinstance(first, Block)
    for picture, total, square in zip(pixels.split(1), sums, squares, strict=True):
        cut_out = picture.permute(0, 3, 1, 2) if corners is None else cut(picture, corners[None], 32)
        values = F.conv2d(cut_out.double() / 127.5 - 1, first.conv.weight.double(), stride=2, padding=1)
        mean, variance = values.mean((0, 2, 3)), values.var((0, 2, 3), unbiased=False)
        torch.testing.assert_close(total / look.pixels(1), mean, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(square / look.pixels(1) - mean.square(), variance, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("patches", [None, 1, 3])
@pytest.mark.parametrize(("architecture", "size"), ARCHITECTURES)
def test_in_float32_it_sees_what_the_discriminator_sees(
    architecture: Architecture, size: int, patches: int | None
) -> None:
    network, pixels = network_of(architecture), pictures_of(size)
    corners = corners_of(patches, size=size, patch=architecture.patch_size)
    expected = seen_plainly(network, corners, pixels)
    logits, statistics = FastPass(network, corners, size=size, dtype=torch.float32)(torch.from_numpy(pixels))
    assert logits.dtype == statistics.dtype == torch.float32
    np.testing.assert_allclose(statistics, expected.statistics, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(logits, expected.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("patches", [None, 3])
def test_in_bfloat16_it_sees_nearly_the_same(patches: int | None) -> None:
    network, pixels = network_of(TINY), pictures_of(64)
    corners = corners_of(patches, size=64, patch=32)
    expected = seen_plainly(network, corners, pixels)
    (found,) = FastPass(network, corners, size=64).stream([pixels])
    assert relative_difference(found.statistics, expected.statistics) < 1e-2
    assert relative_difference(found.logits, expected.logits) < 1e-2
    layer = 2 * TINY.hidden[0]
    np.testing.assert_allclose(found.statistics[:, :layer], expected.statistics[:, :layer], rtol=1e-5, atol=1e-5)


def test_in_bfloat16_the_order_of_scores_is_nearly_kept() -> None:
    pixels = np.stack([picture.pixels for picture in of_one_camera(80)])
    pixels[60:] = pixels[60:] // 2 + 64
    plain = Scorer(tiny_weights(), sampling="dense").inspect_pixels(pixels)
    (found,) = FastPass(tiny_weights().discriminator, None, size=64, batch_size=80).stream([pixels])
    ranks: list[NDArray[np.intp]] = []
    for evidence in (plain, found):
        head = CombinedHead().fit(evidence.of(slice(40)), {})
        ranks.append(head.score(evidence.of(slice(40, None))).argsort().argsort())
    assert np.corrcoef(ranks[0], ranks[1])[0, 1] > 0.99


def test_pictures_that_pass_together_do_not_mix() -> None:
    fast, pixels = FastPass(network_of(TINY), None, size=64, dtype=torch.float32), pictures_of(64)
    (together,) = fast.stream([pixels])
    for place, alone in enumerate(fast.stream(np.split(pixels, len(pixels)))):
        np.testing.assert_allclose(alone.logits[0], together.logits[place], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(alone.statistics[0], together.statistics[place], rtol=1e-4, atol=1e-5)


def test_a_flat_picture_has_finite_evidence() -> None:
    (found,) = FastPass(network_of(TINY), None, size=64).stream([np.full((1, 64, 64, 3), 128, np.uint8)])
    assert np.isfinite(found.logits).all()
    assert np.isfinite(found.statistics).all()


def test_two_halves_in_bfloat16_have_the_digits_of_both() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    high, low = in_halves(values)
    assert high.dtype == low.dtype == torch.bfloat16
    torch.testing.assert_close(high.float() + low.float(), values, rtol=2**-16, atol=0)


def test_the_next_batch_is_on_its_way_before_one_is_waited_for() -> None:
    drawn: list[int] = []

    def batches() -> Iterator[Pixels]:
        for number in range(4):
            drawn.append(number)
            yield pictures_of(64)[number : number + 1]

    fast = FastPass(network_of(TINY), None, size=64, dtype=torch.float32)
    stream = fast.stream(batches())
    first = next(stream)
    assert drawn == [0, 1]
    found = Evidence.concatenate([first, *stream])
    assert np.array_equal(found.logits, Evidence.concatenate(list(fast.stream(batches()))).logits)
    assert len(found.logits) == 4


def test_more_pictures_than_there_is_room_for_are_refused() -> None:
    fast = FastPass(network_of(TINY), None, size=64, dtype=torch.float32, batch_size=3)
    with pytest.raises(ValueError, match="4 pictures at once: send at most 3"):
        fast.start(pictures_of(64)[:4])


def test_stages_that_see_something_else_are_found_out() -> None:
    class Wrong(Plain):
        def activate(self, x: Tensor, affine: Affine) -> Tensor:
            return super().activate(x, Affine(affine.shift, affine.scale))

    network = Network.of(network_of(ARCHITECTURES[1][0]), torch.float32)
    look = Look.at(None, patch=16, size=44, device=CPU)
    choose.check_agreement(network, look, Plain())
    with pytest.raises(ArithmeticError, match=r"the statistics are .* away from those of the plain pass"):
        choose.check_agreement(network, look, Wrong())


# The scorer and the detector


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 is refused without a GPU since it would be slow, not since it would be wrong."""
    monkeypatch.setattr(scorer, "check_precision", lambda *_: None)


def test_bfloat16_without_a_gpu_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="'bfloat16' needs a GPU, and the device is cpu: choose precision='float32'"):
        Scorer(tiny_weights(), precision="bfloat16", device="cpu")


def test_an_unknown_precision_names_the_choices() -> None:
    with pytest.raises(ValueError, match="unknown precision 'float16': choose one of float32, bfloat16"):
        Scorer(tiny_weights(), precision="float16")  # type: ignore[arg-type]


@pytest.mark.usefixtures("anywhere")
def test_a_discriminator_without_patch_normalisation_is_refused_with_the_remedy() -> None:
    plain = Architecture(patch_size=32, hidden=(8, 16), latent=8, normalisation="group")
    weights = Weights(Pair.from_seed(plain, 0).discriminator, Transform(size=64))
    with pytest.raises(ValueError, match=r"has the normalisation 'group': use precision='float32'"):
        Scorer(weights, precision="bfloat16")


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_images_and_refusals_keep_their_order(tmp_path: Path, batch_size: int) -> None:
    paths = save_pictures(tmp_path, some_pictures())
    for bad in (0, 1, 2, 6):
        paths[bad].write_bytes(b"no image at all")
    plain, fast = (
        list(Scorer(tiny_weights(), sampling="dense", batch_size=batch_size, precision=precision).inspect(paths))
        for precision in ("float32", "bfloat16")
    )
    assert [item.name for item in fast] == [str(path) for path in paths]
    for found, expected in zip(fast, plain, strict=True):
        if isinstance(expected, Refusal):
            assert found == expected
        else:
            assert isinstance(found, Inspected)
            assert np.array_equal(found.pixels, expected.pixels)
            assert relative_difference(found.evidence.statistics, expected.evidence.statistics) < 1e-2


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("batch_size", "drawn_at_most"), [(1, 1), (2, 4)])
def test_an_image_that_comes_alone_is_scored_at_once_and_a_batch_one_batch_later(
    batch_size: int, drawn_at_most: int
) -> None:
    drawn: list[int] = []

    def endless() -> Iterator[Pixels]:
        while True:
            drawn.append(1)
            yield np.full((64, 64, 3), len(drawn) % 256, np.uint8)

    stream = Scorer(tiny_weights(), patches=2, batch_size=batch_size, precision="bfloat16").score(endless(), workers=1)
    next(stream)
    assert len(drawn) <= drawn_at_most
    stream.close()  # type: ignore[attr-defined]  # a generator


@pytest.mark.usefixtures("anywhere")
def test_pixels_beyond_a_batch_pass_in_several() -> None:
    pixels = pictures_of(64)
    few, many = (
        Scorer(tiny_weights(), patches=2, batch_size=size, precision="bfloat16").inspect_pixels(pixels)
        for size in (4, 100)
    )
    assert relative_difference(few.statistics, many.statistics) < 1e-3


def test_a_detector_says_in_which_precision_it_was_fitted(tmp_path: Path) -> None:
    found = Detector(tiny_weights(), head="logit", false_alarm_rate=0.1, sampling="dense")
    found.fit(of_one_camera(30), workers=1).save(tmp_path / "detector")
    assert read_safetensors(tmp_path / "detector", kind="detector")[0]["precision"] == "float32"
    assert Detector.load(tmp_path / "detector").precision == "float32"


def rewritten(folder: Path, **changes: Any) -> Path:
    """A detector's file with another header; a None is left out."""
    found = Detector(tiny_weights(), head="logit", false_alarm_rate=0.1).fit(of_one_camera(30), workers=1)
    found.save(folder / "before")
    header, tensors = read_safetensors(folder / "before", kind="detector")
    header = {name: value for name, value in (header | changes).items() if value is not None}
    del header["format"], header["kind"]
    write_safetensors(folder / "after", tensors, kind="detector", header=header)
    return folder / "after"


def test_a_detector_of_an_earlier_version_is_one_in_float32(tmp_path: Path) -> None:
    assert Detector.load(rewritten(tmp_path, precision=None)).precision == "float32"


def test_a_detector_fitted_in_bfloat16_is_refused_without_a_gpu_with_the_remedy(tmp_path: Path) -> None:
    path = rewritten(tmp_path, precision="bfloat16")
    with pytest.raises(ValueError, match=r"load .*after where there is a GPU, or fit again with precision='float32'"):
        Detector.load(path, device="cpu")


def test_bfloat16_without_a_gpu_is_refused_before_any_training(tmp_path: Path) -> None:
    new = Detector(tiny_weights(), precision="bfloat16", device="cpu")
    with pytest.raises(ValueError, match="needs a GPU"):
        new.fit(tmp_path / "not even there", adapt_steps=1)


def test_the_command_refuses_bfloat16_without_a_gpu_before_it_looks_at_an_image(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    words = ["fit", str(tmp_path), "--out", str(tmp_path / "out"), "--precision", "bfloat16", "--device", "cpu"]
    assert "'bfloat16' needs a GPU" in str(CliRunner().invoke(app, words).exception)


def test_the_estimator_has_a_precision_too() -> None:
    from discopatch.estimator import ImageOutlierDetector

    assert ImageOutlierDetector(precision="bfloat16").get_params()["precision"] == "bfloat16"


# On a GPU


@on_a_gpu
@pytest.mark.parametrize("patches", [None, 3])
@pytest.mark.parametrize(("architecture", "size"), ARCHITECTURES)
@torch.inference_mode()
def test_each_kernel_computes_its_plain_stage(architecture: Architecture, size: int, patches: int | None) -> None:
    from discopatch.model.fast.launch import Kernels

    device = torch.device("cuda")
    network = Network.of(network_of(architecture).to(device), torch.bfloat16)
    corners = corners_of(patches, size=size, patch=architecture.patch_size)
    look = Look.at(corners, patch=architecture.patch_size, size=size, device=device)
    pictures, plain, fast = torch.from_numpy(pictures_of(size)).to(device), Plain(), Kernels()
    images, layer, found = len(pictures), network.first, torch.empty(2, len(pictures), network.width(look)).to(device)

    both: list[tuple[Stages, Tensor]] = [(plain, found[0]), (fast, found[1])]

    moments = plain.moments(pictures, look)
    assert torch.equal(fast.moments(pictures, look), moments)
    sums = (moments.flatten(1) @ layer.forms).view(images, 1, 2, -1)
    affine, other = (each.settle(sums, None, layer.norm, rows, pixels=look.pixels(1)) for each, rows in both)
    torch.testing.assert_close(other, affine, rtol=1e-4, atol=1e-4)
    x = plain.first(pictures, look, layer, affine, torch.bfloat16)
    torch.testing.assert_close(fast.first(pictures, look, layer, affine, torch.bfloat16), x, rtol=1e-2, atol=1e-3)
    sums = plain.sums(x, images)
    torch.testing.assert_close(fast.sums(x, images).sum(1), sums.sum(1), rtol=1e-4, atol=1e-2)
    affine, other = (each.settle(sums, x, layer.norm, rows, pixels=look.pixels(1)) for each, rows in both)
    torch.testing.assert_close(other, affine, rtol=1e-4, atol=1e-4)
    written = slice(2 * architecture.hidden[0])
    torch.testing.assert_close(found[1, :, written], found[0, :, written], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fast.activate(x.clone(), affine), plain.activate(x, affine), rtol=1e-2, atol=1e-3)


@on_a_gpu
@pytest.mark.parametrize("patches", [None, 3])
@pytest.mark.parametrize(("architecture", "size"), [ARCHITECTURES[0], ARCHITECTURES[2]])
@pytest.mark.parametrize("normalised", [False, True])
@torch.inference_mode()
def test_the_judging_kernels_compute_their_plain_stage(
    architecture: Architecture, size: int, patches: int | None, normalised: bool
) -> None:
    from discopatch.model.fast.launch import Kernels

    network = Network.of(network_of(architecture).to("cuda"), torch.bfloat16)
    corners = corners_of(patches, size=size, patch=architecture.patch_size)
    look = Look.at(corners, patch=architecture.patch_size, size=size, device=torch.device("cuda"))
    generator, side = torch.Generator("cuda").manual_seed(0), look.side(len(architecture.hidden))
    shape = 3 * look.patches, side, side, architecture.hidden[-1]
    x = torch.randn(shape, generator=generator, device="cuda").bfloat16()
    scale, shift = torch.randn(2, 3, shape[3], generator=generator, device="cuda")
    found = torch.full((2, 3, network.places(look)), torch.nan, device="cuda")
    both: list[tuple[Stages, Tensor]] = [(Plain(), found[0]), (Kernels(), found[1])]
    for stages, rows in both:
        stages.judge(x, None if normalised else Affine(scale, shift), network.judge, rows, first=0)
    torch.testing.assert_close(found[1], found[0], rtol=1e-2, atol=float(found[0].std()) / 100)


@on_a_gpu
@pytest.mark.parametrize("patches", [None, 3])
@pytest.mark.parametrize(("architecture", "size"), ARCHITECTURES)
def test_on_a_gpu_it_sees_nearly_what_a_cpu_sees(architecture: Architecture, size: int, patches: int | None) -> None:
    network, pixels = network_of(architecture), pictures_of(size)
    corners = corners_of(patches, size=size, patch=architecture.patch_size)
    expected = seen_plainly(network, corners, pixels)
    fast = FastPass(network.to("cuda"), corners, size=size)
    assert type(fast.stages).__name__ == "Kernels"
    (found,) = fast.stream([pixels])
    assert relative_difference(found.statistics, expected.statistics) < 1e-2
    assert relative_difference(found.logits, expected.logits) < 3e-2
    logits, statistics = fast(torch.from_numpy(pixels).to("cuda"))
    assert relative_difference(statistics.cpu().numpy(), found.statistics) < 1e-3
    assert relative_difference(logits.cpu().numpy(), found.logits) < 1e-2


@on_a_gpu
def test_on_a_gpu_neighbours_batches_and_time_never_change_what_is_seen() -> None:
    fast, pixels = FastPass(network_of(TINY).to("cuda"), None, size=64, batch_size=5), pictures_of(64)[:5]
    whole, few, turned, again = fast.stream([pixels, pixels[:2], pixels[::-1].copy(), pixels])
    assert all(map(np.array_equal, again, whole))
    assert all(map(np.array_equal, few, whole.of(slice(2))))
    assert relative_difference(turned.statistics[::-1], whole.statistics) < 1e-3


@on_a_gpu
def test_on_a_gpu_pictures_may_lie_in_memory_channel_by_channel() -> None:
    fast, pixels = FastPass(network_of(TINY).to("cuda"), None, size=64), torch.from_numpy(pictures_of(64)).to("cuda")
    otherwise = pixels.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    with torch.inference_mode():
        assert torch.equal(fast.run(otherwise), fast.run(pixels))


@on_a_gpu
def test_two_streams_of_one_pass_do_not_mix_and_one_may_be_left() -> None:
    fast, pixels = FastPass(network_of(TINY).to("cuda"), None, size=64, batch_size=1), pictures_of(64)
    ahead, back = list(pixels[:, None]), list(pixels[::-1, None])
    expected = list(fast.stream(ahead))
    left = fast.stream(ahead)
    next(left)
    del left
    both = list(zip(fast.stream(ahead), fast.stream(back), strict=True))
    for (one, other), first, last in zip(both, expected, expected[::-1], strict=True):
        assert all(map(np.array_equal, one, first))
        assert all(map(np.array_equal, other, last))


@on_a_gpu
def test_where_the_kernels_fail_plain_stages_take_their_place_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from discopatch.model.fast.launch import Kernels

    def fail(*_: Any) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(Kernels, "sums", fail)
    with pytest.warns(
        RuntimeWarning, match=r"the fast kernels do not work on .* \(RuntimeError: no such instruction\)"
    ):
        fast = FastPass(network_of(TINY).to("cuda"), None, size=64)
    assert isinstance(fast.stages, Plain)
    (found,) = fast.stream([pictures_of(64)])
    assert np.isfinite(found.logits).all()


@on_a_gpu
def test_a_detector_in_bfloat16_scores_what_it_was_calibrated_with(tmp_path: Path) -> None:
    found = Detector(tiny_weights(), false_alarm_rate=0.1, precision="bfloat16", device="cuda")
    found.fit(pictures_of(64, 60), workers=1).save(tmp_path / "detector")
    again, new = Detector.load(tmp_path / "detector", device="cuda"), pictures_of(64, 9, seed=1)
    assert again.precision == "bfloat16"
    assert np.array_equal(again.score(new), found.score(new))
    np.testing.assert_allclose(found.score(new), found.fitted.head.score(found.scorer.inspect_pixels(new)), rtol=1e-6)
