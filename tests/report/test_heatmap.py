"""Heat shows where, and hides nothing elsewhere."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from discopatch.images.picture import Pixels
from discopatch.images.samples import sample_photos
from discopatch.report import overlay, save_heatmap
from discopatch.report.colours import css_gradient, heat_colours


@pytest.fixture(scope="module")
def photo() -> Pixels:
    return sample_photos(["coffee"])["coffee"][:256, :200]


def spot(shape: tuple[int, int] = (8, 8), *, heat: float = 1.0) -> np.ndarray:
    """Hot in the upper left corner alone."""
    found = np.zeros(shape, np.float32)
    found[0, 0] = heat
    return found


def changed(photo: Pixels, heat: np.ndarray, **options: float) -> np.ndarray:
    """How far each pixel went from the photo, in grey levels."""
    shown = np.asarray(overlay(photo, heat, **options)).astype(int)
    change: np.ndarray = np.abs(shown - photo.astype(int)).max(axis=2)
    return change


@pytest.mark.parametrize("shape", [(1, 1), (8, 8), (5, 13), (256, 200)])
def test_the_overlay_has_the_size_of_the_picture(photo: Pixels, shape: tuple[int, int]) -> None:
    shown = overlay(photo, np.ones(shape, np.float32))
    assert (shown.mode, shown.size) == ("RGB", (200, 256))


def test_the_picture_is_untouched_where_there_is_no_heat(photo: Pixels) -> None:
    change = changed(photo, spot())
    assert change[:20, :15].min() > 0
    assert change[100:, 100:].max() == 0


@pytest.mark.parametrize("heat", [np.zeros((8, 8), np.float32), -spot() - 1])
def test_without_any_heat_it_is_the_picture(photo: Pixels, heat: np.ndarray) -> None:
    assert changed(photo, heat).max() == 0


def test_the_picture_shows_through_the_hottest_part(photo: Pixels) -> None:
    shown = np.asarray(overlay(photo, np.ones((4, 4), np.float32))).astype(float)
    for channel in range(3):
        assert np.corrcoef(shown[..., channel].ravel(), photo[..., channel].ravel())[0, 1] > 0.99


def test_heat_is_relative_to_its_maximum_unless_told(photo: Pixels) -> None:
    one, other = overlay(photo, spot(heat=1e-30)), overlay(photo, spot(heat=1e30))
    assert one == other
    assert changed(photo, spot(heat=1.0), ceiling=100.0).max() == 0, "next to nothing of this ceiling"
    assert overlay(photo, spot(heat=9.0), ceiling=3.0) == overlay(photo, spot(heat=3.0))


def test_heat_is_upsampled_without_steps(photo: Pixels) -> None:
    grey = np.full((256, 256, 3), 128, np.uint8)
    ramp = np.tile(np.linspace(0, 1, 8, dtype=np.float32), (8, 1))
    row = np.asarray(overlay(grey, ramp)).astype(int)[128]
    assert np.abs(np.diff(row, axis=0)).max() <= 8


def test_lightness_of_the_colours_rises_evenly() -> None:
    """CIELAB, from scikit-image."""
    from skimage.color import rgb2lab

    colours = heat_colours(np.linspace(0, 1, 65))[:, :3] / 255
    steps = np.diff(rgb2lab(colours[None])[0, :, 0])
    assert steps.min() > 0
    assert steps.max() < 2.5 * np.median(steps)


def test_opacity_rises_from_clear() -> None:
    opacity = heat_colours(np.linspace(0, 1, 101))[:, 3].astype(int)
    assert opacity[:15].max() == 0
    assert (np.diff(opacity) >= 0).all()
    assert 150 < opacity[-1] < 230


def test_the_legend_of_the_page_has_the_same_colours() -> None:
    gradient = css_gradient()
    assert gradient.startswith("linear-gradient(to right, rgb(0 0 4 / 0.00)")
    assert gradient.endswith("rgb(252 255 164 / 0.78))")


@pytest.mark.parametrize(
    ("heat", "options", "message"),
    [
        (np.zeros((2, 2, 1), np.float32), {}, "give \\(h, w\\)"),
        (np.zeros((0, 2), np.float32), {}, "at least \\(1, 1\\)"),
        (np.full((2, 2), np.nan, np.float32), {}, "not finite"),
        (np.full((2, 2), np.inf, np.float32), {}, "not finite"),
        (spot(), {"ceiling": 0.0}, "above 0"),
        (spot(), {"ceiling": float("nan")}, "above 0"),
    ],
)
def test_what_is_no_heat_is_refused(photo: Pixels, heat: np.ndarray, options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        overlay(photo, heat, **options)


@pytest.mark.parametrize("pixels", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8)])
def test_what_is_no_picture_is_refused(pixels: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"give uint8 of shape \(H, W, 3\)"):
        overlay(pixels, spot())


@settings(max_examples=60, deadline=None)
@given(
    arrays(
        np.float32,
        st.tuples(st.integers(1, 9), st.integers(1, 9)),
        elements=st.floats(allow_nan=False, allow_infinity=False, width=32),
    )
)
def test_any_finite_heat_can_be_shown(heat: np.ndarray) -> None:
    assert overlay(np.zeros((12, 10, 3), np.uint8), heat).size == (10, 12)


@pytest.mark.parametrize(("height", "width"), [(256, 200), (32, 32), (600, 900)])
def test_the_file_holds_picture_overlay_and_legend(tmp_path: Path, height: int, width: int) -> None:
    picture = np.asarray(Image.fromarray(sample_photos(["cat"])["cat"]).resize((width, height)))
    save_heatmap(tmp_path / "new" / "heat.png", picture, spot(), ceiling=0.5)
    with Image.open(tmp_path / "new" / "heat.png") as saved:
        assert saved.format == "PNG"
        sheet = np.asarray(saved)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["heat.png"]
    gap = max(8, width // 32)
    left = (sheet.shape[1] - 2 * width - gap) // 2
    assert np.array_equal(sheet[:height, left : left + width], picture)
    hot = np.asarray(overlay(picture, spot(), ceiling=0.5))
    assert np.array_equal(sheet[:height, left + width + gap :][:, :width], hot)
    legend = sheet[height:]
    assert 20 < len(legend) < 0.2 * max(height, 200)
    assert legend.min() < 100, "words"
    assert len(np.unique(legend.reshape(-1, 3), axis=0)) > 50, "colours"
