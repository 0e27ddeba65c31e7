"""ONNX files as encoders: the outputs that a user names are the layers."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from discopatch.encoders import Kind, NetworkEncoder, OutsideNetwork, load_networks
from discopatch.errors import WeightsError
from discopatch.images import Transform
from tests.encoders.outside_samples import SmallNetwork, change_json, reference_statistics
from tests.samples import one_camera

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

ALL: tuple[Kind, ...] = ("statistics", "pooled", "places")


def pixels(count: int = 3, size: int = 64) -> NDArray[np.uint8]:
    return np.stack([image.pixels for image in one_camera(count, size=size)])


def load(path: Path, outputs: str = "layer1,layer2,pooled") -> OutsideNetwork:
    return load_networks(f"onnx={path}:{outputs}" if outputs else f"onnx={path}").outside[0]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return SmallNetwork().save(tmp_path / "small.onnx")


@pytest.mark.parametrize("side", ["side", 64])
def test_maps_become_statistics_and_places_and_the_pooled_output_is_pooled(side: int | str, tmp_path: Path) -> None:
    network = SmallNetwork()
    found = load(network.save(tmp_path / "small.onnx", side=side))
    encoder, images = NetworkEncoder(found, transform=Transform(size=64), kinds=ALL), pixels()
    features, outputs = encoder.extract_pixels(images), network.outputs(images)
    expected = reference_statistics([outputs["layer1"], outputs["layer2"]])
    np.testing.assert_allclose(features.statistics, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(features.pooled, outputs["pooled"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        features.places[..., 4:], outputs["layer2"].reshape(3, 6, 256).transpose(0, 2, 1), rtol=1e-2, atol=1e-2
    )
    assert encoder.layer_sizes == (8, 12)
    assert features.logits.shape == (3, 0)
    assert features.are_finite


def test_tokens_are_the_maps_that_they_stand_for(file: Path) -> None:
    of_tokens, of_maps = (
        NetworkEncoder(load(file, outputs), transform=Transform(size=64), kinds=ALL).extract_pixels(pixels())
        for outputs in ("layer1,tokens", "layer1,layer2")
    )
    for one, other in zip(of_tokens, of_maps, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    pooled = SmallNetwork().outputs(pixels())["pooled"]
    np.testing.assert_allclose(of_maps.pooled, pooled, rtol=1e-4, atol=1e-5, err_msg="the last layer, averaged")


def test_the_json_may_name_outputs_and_side(tmp_path: Path) -> None:
    file = SmallNetwork().save(tmp_path / "small.onnx", outputs=["layer2"], size=32)
    network = load(file, "")
    assert network.side == 32
    assert network.channels == (6,)
    assert load(file, "layer1").channels == (4,), "the user's own come first"


def test_regions_pass_as_they_are_where_any_side_is_taken(file: Path) -> None:
    network, image = SmallNetwork(), pixels(1, 128)[0]
    found = NetworkEncoder(load(file), transform=Transform(size=128)).extract_regions(image, 4)
    crops = np.stack([image[top : top + 32, left : left + 32] for top in (0, 96) for left in (0, 96)])
    outputs = network.outputs(crops)
    expected = reference_statistics([outputs["layer1"], outputs["layer2"]])
    np.testing.assert_allclose(found.statistics, expected, rtol=1e-3, atol=1e-4)


def test_the_digest_stands_for_file_outputs_and_normalisation(tmp_path: Path) -> None:
    files = [SmallNetwork(seed=seed).save(tmp_path / f"{seed}.onnx") for seed in (0, 1)]
    first = load(files[0]).digest
    other_names = {load(files[1]).digest, load(files[0], "layer1").digest}
    change_json(files[0].with_suffix(".json"), image_mean=[0, 0, 0])
    assert len({first, load(files[0]).digest, *other_names}) == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_computes_the_same(file: Path) -> None:
    encoder = NetworkEncoder(load(file), transform=Transform(size=64))
    expected = encoder.extract_pixels(pixels()).statistics
    child = os.fork()
    if not child:
        signal.alarm(60)
        os._exit(0 if np.array_equal(encoder.extract_pixels(pixels()).statistics, expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


def refer_to_other_files(file: Path) -> None:
    model = onnx.load(file)
    onnx.save(model, file, save_as_external_data=True, location="weights.bin", size_threshold=0)


def two_inputs(file: Path) -> None:
    model = onnx.load(file)
    model.graph.input.append(onnx.helper.make_tensor_value_info("more", onnx.TensorProto.FLOAT, [1]))
    onnx.save(model, file)


def input_of(shape: list[int | str], kind: int = onnx.TensorProto.FLOAT) -> Callable[[Path], object]:
    def change(file: Path) -> None:
        model = onnx.load(file)
        model.graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("image", kind, shape))
        onnx.save(model, file)

    return change


def break_numbers(file: Path) -> None:
    model = onnx.load(file)
    values = np.full((4, 3, 3, 3), np.nan, np.float32)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(values, "first"))
    onnx.save(model, file)


def description(**changes: object) -> Callable[[Path], object]:
    return lambda file: change_json(file.with_suffix(".json"), **changes)


@pytest.mark.parametrize(
    ("damage", "outputs"),
    [
        (lambda file: None, ""),
        (lambda file: None, "nothing"),
        (lambda file: None, "layer1,layer1"),
        (lambda file: None, "number"),
        (lambda file: None, "pooled"),
        (lambda file: None, "layer1,number"),
        (lambda file: file.unlink(), "layer1"),
        (lambda file: file.write_bytes(b"nothing"), "layer1"),
        (lambda file: file.with_suffix(".json").unlink(), "layer1"),
        (lambda file: file.with_suffix(".json").write_text("{"), "layer1"),
        (refer_to_other_files, "layer1"),
        (two_inputs, "layer1"),
        (break_numbers, "layer1"),
        (input_of([2, 3, 64, 64]), "layer1"),
        (input_of([1, 3, 64, 32]), "layer1"),
        (input_of([1, 3, 100_000, 100_000]), "layer1"),
        (input_of([1, 3, 64, 64], onnx.TensorProto.UINT8), "layer1"),
        (description(image_std=[0, 1, 1]), "layer1"),
        (description(image_mean=[0, 0]), "layer1"),
        (description(size=10**6), "layer1"),
    ],
)
def test_files_that_cannot_be_used_are_refused(damage: Callable[[Path], object], outputs: str, file: Path) -> None:
    damage(file)
    with pytest.raises(WeightsError):
        load(file, outputs)
