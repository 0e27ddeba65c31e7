"""A heatmap shows where an image is anomalous, and hides nothing elsewhere."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from discopatch.demo import sample_photos
from discopatch.errors import ParameterError
from discopatch.explain import colour_layer, overlay, save_heatmap
from discopatch.images import Pixels


@pytest.fixture(scope="module")
def photo() -> Pixels:
    return sample_photos(["coffee"])["coffee"][:256, :200]


def spot(shape: tuple[int, int] = (8, 8), *, value: float = 5.0) -> np.ndarray:
    """An anomaly map with one anomalous region, in the upper left corner."""
    found = np.zeros(shape, np.float32)
    found[0, 0] = value
    return found


def changed(photo: Pixels, anomaly_map: np.ndarray) -> np.ndarray:
    """The change of each pixel, in grey levels."""
    shown = np.asarray(overlay(photo, anomaly_map)).astype(int)
    change: np.ndarray = np.abs(shown - photo.astype(int)).max(axis=2)
    return change


def test_the_image_is_unchanged_where_nothing_is_anomalous(photo: Pixels) -> None:
    change = changed(photo, spot())
    assert change[:20, :15].min() > 0
    assert change[100:, 100:].max() == 0
    for nothing in (np.zeros((8, 8), np.float32), spot(value=1), np.ones((8, 8), np.float32)):
        assert changed(photo, nothing).max() == 0, "1 is what normal images reach"
    assert overlay(photo, spot(value=4)) == overlay(photo, spot(value=1e30)), "relative to the maximum"


def test_the_image_shows_through_the_most_anomalous_part(photo: Pixels) -> None:
    shown = np.asarray(overlay(photo, np.full((4, 4), 2, np.float32))).astype(float)
    for channel in range(3):
        inside = np.s_[40:-40, 40:-40, channel]  # of the outline
        assert np.corrcoef(shown[inside].ravel(), photo[inside].ravel())[0, 1] > 0.99


@pytest.mark.parametrize(("shape", "cells"), [((96, 256), (3, 8)), ((256, 96), (64, 64)), ((128, 224), (128, 224))])
def test_maps_and_images_of_any_shape_fit_together(
    photo: Pixels, shape: tuple[int, int], cells: tuple[int, int]
) -> None:
    image = np.asarray(Image.fromarray(photo).resize(shape[::-1]))
    values = np.zeros(cells, np.float32)
    values[-cells[0] // 3 :, : cells[1] // 4] = 2  # lower left
    change = changed(image, values)
    assert change.shape == shape
    assert change[-shape[0] // 5 :, : shape[1] // 8].min() > 0
    assert change[: shape[0] // 3, shape[1] // 2 :].max() == 0


def test_regions_are_outlined(photo: Pixels) -> None:
    values = np.zeros(photo.shape[:2], np.float32)
    values[100:140, 60:120] = 2
    layer = np.asarray(colour_layer(values, size=(200, 256)))
    white = np.argwhere((layer == 255).all(axis=2))
    for found, expected in ((white.min(0), (100, 60)), (white.max(0), (140, 120))):
        assert found == pytest.approx(expected, abs=2)
    assert not (layer[105:135, 65:115] == 255).all(axis=2).any()


def test_wrong_maps_and_images_are_refused(photo: Pixels) -> None:
    for wrong in (np.zeros((2, 2, 1), np.float32), np.full((2, 2), np.nan, np.float32)):
        with pytest.raises(ParameterError):
            overlay(photo, wrong)
    with pytest.raises(ParameterError):
        overlay(photo[..., 0], spot())


@settings(max_examples=60, deadline=None)
@given(
    arrays(
        np.float32,
        st.tuples(st.integers(1, 9), st.integers(1, 9)),
        elements=st.floats(allow_nan=False, allow_infinity=False, width=32),
    )
)
def test_any_finite_map_can_be_shown(anomaly_map: np.ndarray) -> None:
    assert overlay(np.zeros((12, 10, 3), np.uint8), anomaly_map).size == (10, 12)


@pytest.mark.parametrize(("height", "width"), [(256, 200), (32, 32), (96, 256)])
def test_the_file_holds_image_overlay_and_legend(tmp_path: Path, height: int, width: int) -> None:
    image = np.asarray(Image.fromarray(sample_photos(["cat"])["cat"]).resize((width, height)))
    save_heatmap(tmp_path / "new" / "heatmap.png", image, spot())
    with Image.open(tmp_path / "new" / "heatmap.png") as saved:
        assert saved.format == "PNG"
        sheet = np.asarray(saved)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["heatmap.png"]
    gap = max(8, width // 32)
    left = (sheet.shape[1] - 2 * width - gap) // 2
    assert np.array_equal(sheet[:height, left : left + width], image)
    expected = np.asarray(overlay(image, spot()))
    assert np.array_equal(sheet[:height, left + width + gap :][:, :width], expected)
    legend = sheet[height:]
    assert 20 < len(legend) < 0.2 * max(height, 200)
    assert legend.min() < 100, "labels"
    assert len(np.unique(legend.reshape(-1, 3), axis=0)) > 50, "colours"
