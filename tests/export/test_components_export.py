"""A detector of components in every format: its graph tells what the detector tells, of each component and place."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import fuzz_files
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

import discopatch
from discopatch import Detector, Runtime
from discopatch.encoders import Features
from discopatch.export import export_detector
from discopatch.export.engines import GraphOutput
from discopatch.export.exporter import open_graph
from discopatch.export.metadata import Metadata
from discopatch.heads import ComponentsHead, components
from discopatch.heads.parts import COMPONENTS
from discopatch.images import Pixels
from discopatch.results import Prediction, as_dict
from tests.export.samples import SIZE, camera_pixels, run_without_torch
from tests.heads.test_graphs import log_distance
from tests.samples import new_detector, one_camera, inverted_weights, save_images
from tests.test_components_detector import head_of, place_detector

FEW = one_camera(8, seed=5)


@cache
def residual_detector() -> Detector:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("discopatch.heads.trials.EARNING", -100.0)
        patch.setattr("discopatch.heads.trials.PLAIN_LOSS", 1.0)
        return new_detector(inverted_weights(), head="components").fit(one_camera(60), workers=1)


def acquisition_detector() -> Detector:
    """One of which only the first three parts count: the logit, early layers and probes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(components, "choose_parts", lambda normal, *_, must_earn: np.arange(normal.shape[1]) < 3)
        return new_detector(head="components").fit(one_camera(60), workers=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The export of the detector whose parts all count, in that format; made once."""
    base = tmp_path_factory.mktemp("components")

    @cache
    def exported(format: str) -> Path:
        export_detector(place_detector(), base / format, format=format, reference=FEW)
        return base / format

    return exported


@pytest.fixture(scope="module")
def runtime(folder: Callable[[str], Path]) -> Runtime:
    return Runtime.load(folder("onnx"), threads=1)


def new_and_changed() -> Pixels:
    """New images of the camera; one with noise in a corner, one of noise, one flat."""
    pixels = camera_pixels(6)
    rng = np.random.default_rng(0)
    pixels[3, 44:, 44:] = rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)
    pixels[4] = rng.integers(0, 256, pixels[4].shape, dtype=np.uint8)
    pixels[5] = 200
    return pixels


def z_of(predictions: list[Prediction]) -> NDArray[np.float64]:
    return np.array([[component.z for component in each.components] for each in predictions])


@pytest.mark.parametrize("format", ["onnx", pytest.param("openvino", marks=pytest.mark.slow), "torch-export"])
def test_every_format_gives_what_the_detector_gives(format: str, folder: Callable[[str], Path]) -> None:
    detector, path = place_detector(), folder(format)
    runtime = Runtime(Metadata.read(path), open_graph(format, path))
    images = list(new_and_changed())
    expected, found = detector.predict(images, workers=1), runtime.predict(images, workers=1)
    assert [each.p_value for each in found] == [each.p_value for each in expected]
    assert [each.is_ood for each in found] == [each.is_ood for each in expected]
    tolerance = 1e-3 * detector.calibration_scores_.std()
    np.testing.assert_allclose(found.scores, expected.scores, rtol=0, atol=tolerance)
    np.testing.assert_allclose(z_of(list(found)), z_of(list(expected)), rtol=0, atol=1e-3)
    speaking, due = (
        [[each.name for each in one.significant] for one in predictions] for predictions in (found, expected)
    )
    assert speaking == due
    for image in images[3:]:
        np.testing.assert_allclose(
            runtime.explain(image).anomaly_map, detector.explain(image).anomaly_map, rtol=0, atol=1e-3
        )


# What is in the graph, against plain numpy


HALVES = 0.02  # z-scores: places are float16, and one that is rounded the other way moves by 5e-4 of its size


def stored(head: ComponentsHead) -> dict[str, NDArray[np.float64]]:
    return {name: value.double().numpy() for name, value in head.to_tensors().items()}


def place_distances(places: NDArray[np.floating], kept: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """(images, positions): from the nearest of all stored places, root mean square over the dimensions."""
    standard = (places.astype(np.float64) - kept["memory.mean"]) / kept["memory.scale"]
    nearest = [cdist(image, kept["memory.vectors"]).min(1) for image in standard]
    found: NDArray[np.float64] = np.stack(nearest) / standard.shape[2] ** 0.5
    return found


def part_values(head: ComponentsHead, features: Features) -> dict[str, NDArray[np.float64]]:
    """What each part is by its definition, from the stored tensors."""
    kept, early = stored(head), len(head.early.mean)
    units = features.pooled / np.linalg.norm(features.pooled.astype(np.float64), axis=1, keepdims=True)
    gaps = np.linalg.norm(units[:, None] - kept["neighbours.bank"], axis=2)
    responses = (features.statistics - kept["mean"]) @ kept["filters"].T
    return {
        "logit": -features.logits.astype(np.float64).mean(1),
        "early": log_distance(head.early, features.statistics[:, :early]),
        "probes": ((responses - kept["probe_centres"]) / kept["probe_spreads"]).max(1),
        "deep": log_distance(head.deep, features.statistics[:, early:]),
        "neighbours": np.sort(gaps, axis=1)[:, 4],
        "places": np.sort(place_distances(features.places, kept), axis=1)[:, -8:].mean(1),
    }


@pytest.mark.parametrize("made", [place_detector, pytest.param(residual_detector, marks=pytest.mark.slow)])
def test_score_components_and_places_are_what_plain_numpy_makes_of_the_stored_tensors(
    made: Callable[[], Detector], folder: Callable[[str], Path], tmp_path: Path
) -> None:
    detector, path = made(), tmp_path / "residual"
    if made is residual_detector:
        assert export_detector(detector, path, reference=FEW).caution is None
    else:
        path = folder("onnx")
    head, pixels = head_of(detector), new_and_changed()
    features, kept = detector.extract_features(list(pixels), workers=1), stored(head)
    values = part_values(head, features)
    assert tuple(values) == head.parts
    z = {
        part: (value - kept["centres"][column]) / kept["spreads"][column]
        for column, (part, value) in enumerate(values.items())
    }
    joined = np.stack([logsumexp([z[part] for part in parts], axis=0) for parts in COMPONENTS.values()], 1)
    found = open_graph("onnx", path)(pixels, anomaly_map=True)
    np.testing.assert_allclose(found.score, logsumexp(list(z.values()), axis=0), rtol=0, atol=1e-3)
    assert found.components is not None
    expected = (joined - kept["component_centres"]) / kept["component_spreads"]
    np.testing.assert_allclose(found.components, expected, rtol=0, atol=HALVES)
    far = (place_distances(features.places, kept) - kept["place_centres"]) / kept["place_spreads"] - kept["place_level"]
    assert found.place_map is not None
    np.testing.assert_allclose(found.place_map.reshape(far.shape), far, rtol=0, atol=HALVES)


def test_any_number_of_images_passes_and_each_depends_on_itself_alone(folder: Callable[[str], Path]) -> None:
    engine, pixels = open_graph("onnx", folder("onnx")), new_and_changed()
    together = engine(pixels, anomaly_map=True)
    for index in range(len(pixels)):
        for one, many in zip(engine(pixels[index : index + 1], anomaly_map=True), together, strict=True):
            assert one is not None
            assert many is not None
            np.testing.assert_allclose(one[0], many[index], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_parts_that_do_not_count_are_not_in_the_graph(tmp_path: Path, folder: Callable[[str], Path]) -> None:
    detector = acquisition_detector()
    assert head_of(detector).parts == ("logit", "early", "probes")
    export_detector(detector, tmp_path / "out", reference=FEW)
    content = Metadata.read(tmp_path / "out").content
    assert content["components"]["names"] == list(detector.component_names) == ["acquisition"]
    assert "place_map" not in content["outputs"]
    operators = {}
    for name, path in (("all", folder("onnx")), ("few", tmp_path / "out")):
        graph = onnx.load(path / "detector.onnx").graph
        operators[name] = [node.op_type for node in graph.node]
        assert [each.name for each in graph.output][:3] == ["score", "at_least", "anomaly_map"]
        for part in ("memory", "neighbours", "deep"):
            assert any(f"head.{part}." in each.name for each in graph.initializer) == (name == "all")
    assert (operators["all"].count("TopK"), operators["few"].count("TopK")) == (2, 0)
    image = camera_pixels(1)[0]
    found, expected = Runtime.load(tmp_path / "out").explain(image), detector.explain(image)
    assert [each.name for each in found.prediction.components] == [each.name for each in expected.prediction.components]
    np.testing.assert_allclose(found.anomaly_map, expected.anomaly_map, rtol=0, atol=1e-3)


# The runtime


def test_changed_exports_are_refused_with_one_error_or_load_and_are_sound(
    folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = fuzz_files.Kind(lambda place: shutil.copytree(folder("onnx"), place / "export"), fuzz_files.load_export)
    monkeypatch.setitem(fuzz_files.KINDS, "export", kind)
    found = fuzz_files.fuzz("export", 60, seed=2)
    assert found.other == []
    assert found.most_bytes < fuzz_files.MOST_BYTES


def test_an_explanation_tells_which_component_stands_out_and_where(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a level that some exceed: so small a network hears little."""
    detector, changed = place_detector(), new_and_changed()[3]
    monkeypatch.setattr(head_of(detector), "significance_level", -0.3)
    low = {
        **runtime.metadata.content,
        "components": {**runtime.metadata.content["components"], "significance_level": -0.3},
    }
    found = Runtime(Metadata(low), runtime._engine).explain(changed)
    expected = detector.explain(changed)
    assert [each.name for each in found.components] == [each.name for each in expected.components]
    texts = {each.name: each.text for each in found.components}
    assert texts["place"] == next(each.text for each in expected.components if each.name == "place")
    assert found.prediction.significant
    assert found.reasons == ()


def test_predictions_have_the_fields_of_the_detectors(runtime: Runtime) -> None:
    image = camera_pixels(1)[0]
    (found,), (expected,) = (each.predict([image], workers=1) for each in (runtime, place_detector()))
    assert runtime.component_names == place_detector().component_names == ("acquisition", "content", "place")
    assert list(as_dict(found)) == list(as_dict(expected))
    assert runtime.with_rate(0.3).predict([image], workers=1)[0].components == found.components


def test_components_are_told_where_there_is_no_torch(folder: Callable[[str], Path], tmp_path: Path) -> None:
    paths = save_images(tmp_path / "new", one_camera(2, size=80, seed=1))
    code = f"import discopatch\nruntime = discopatch.load({str(folder('onnx'))!r})\n"
    code += f"print([[each.name for each in one.components] for one in runtime.predict({[str(p) for p in paths]!r})])"
    assert run_without_torch(code, "openvino").strip() == str([list(place_detector().component_names)] * 2)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_an_image_without_a_finite_score_is_refused_and_has_no_components(runtime: Runtime, number: float) -> None:
    def broken(pixels: Pixels, *, anomaly_map: bool = False) -> GraphOutput:
        return GraphOutput(np.array([number]), np.array([0]), None, np.full((1, 3), np.nan))

    (found,) = Runtime(runtime.metadata, broken).predict(list(camera_pixels(1)), workers=1)
    assert str(found.error).startswith("not_finite")
    assert found.components == ()


@st.composite
def wild_images(draw: st.DrawFn) -> Pixels:
    """Flat, striped, noisy and saturated images, of any levels, and mixtures of them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    image = np.full((SIZE, SIZE, 3), draw(st.integers(0, 255)), np.uint8)
    if draw(st.booleans()):
        image[:: draw(st.integers(1, 9)), :: draw(st.integers(1, 9))] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        rows, columns = draw(st.tuples(st.integers(1, SIZE), st.integers(1, SIZE)))
        image[:rows, :columns] = rng.integers(0, draw(st.integers(1, 256)), (rows, columns, 3), dtype=np.uint8)
    return image


@given(wild_images())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_of_any_image_at_all_the_runtime_says_what_the_detector_says(runtime: Runtime, image: Pixels) -> None:
    """Far out, where z-scores are in the hundreds, to as many digits."""
    (expected,), (found,) = (each.predict([image], workers=1) for each in (place_detector(), runtime))
    assert found.p_value == expected.p_value
    assert found.score == pytest.approx(expected.score, rel=1e-4, abs=1e-3)
    for one, other in zip(found.components, expected.components, strict=True):
        # In a flat image variances are at their floor, and their logarithms show the last digits.
        assert one.z == pytest.approx(other.z, rel=1e-3, abs=1e-2)


# 8 bits, and released weights


@pytest.mark.slow
def test_released_weights_export_with_components_and_in_8_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discopatch.fitting.N_PROBED", 2)
    monkeypatch.setattr("discopatch.heads.trials.EARNING", -100.0)
    detector = Detector("natural-small-v1", head="components", false_alarm_rate=0.1, device="cpu")
    detector.fit(one_camera(40, size=256))
    assert "places" in head_of(detector).parts
    new: list[Any] = one_camera(3, size=256, seed=10)
    for int8 in (False, True):
        references = one_camera(24, size=256, seed=9)
        done = export_detector(detector, tmp_path / f"{int8}", int8=int8, reference=references)
        assert done.parity.max_component_difference is not None
        assert done.parity.max_component_difference < (1.0 if int8 else 1e-3)
        found = discopatch.load(tmp_path / f"{int8}").predict(new)
        tolerance = 1.0 if int8 else 1e-3
        np.testing.assert_allclose(z_of(list(found)), z_of(list(detector.predict(new))), rtol=0, atol=tolerance)
