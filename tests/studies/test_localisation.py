"""The study of heatmaps counts what it says."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from common import write_between
from discopatch.corruptions.places import PLACE_CHANGES, SIZES
from discopatch.explain.anomaly_map import GRID
from discopatch.pretrained import SMALL_WEIGHTS
from localisation import (
    Quiet,
    change_places,
    hot_regions,
    localisation_table,
    quiet_table,
    speaking_table,
    summary,
)
from tests.samples import new_detector, one_camera


def square(row: int, column: int) -> np.ndarray:
    mask = np.zeros((64, 64), np.bool_)
    mask[row : row + 8, column : column + 8] = True
    return mask


def test_a_hit_is_a_hottest_point_inside_and_a_cold_map_is_none() -> None:
    heat = np.random.default_rng(0).random((64, 64)).astype(np.float32)
    heat[3, 3] = 9
    cold = np.zeros((64, 64), np.float32)
    pairs = [(heat, square(0, 0)), (heat, square(20, 20)), (cold, square(0, 0)), (heat, square(2, 2))]
    found = summary(pairs)
    assert found.hit == 0.5
    assert found.chance == pytest.approx(1 / 64)
    maps, masks = (np.stack(each).ravel() for each in zip(*pairs, strict=True))
    assert found.pixel_auroc == pytest.approx(roc_auc_score(masks, maps))


def test_maps_are_enlarged_to_the_pixels_of_the_image() -> None:
    heat = np.zeros((16, 16), np.float32)
    heat[1, 14] = 1
    mask = np.zeros((64, 64), np.bool_)
    mask[4:8, 56:60] = True
    assert summary([(heat, mask)]).hit == 1


def test_regions_are_counted_as_hot_by_their_score_where_there_are_no_places() -> None:
    detector = new_detector(head="combined").fit(one_camera(40), workers=1)
    image = one_camera(1, seed=1)[0].pixels
    excess = detector.regions_.excess(detector.encoder_.extract_regions(image, GRID**2))
    assert hot_regions(detector, image) == (excess > 0).mean()


def test_tables_have_a_row_for_all_for_each_kind_and_each_size_and_draws_are_joined(tmp_path: Path) -> None:
    pixels = np.stack([each.pixels for each in one_camera(3)])
    made = change_places(pixels, 2, seed=0)
    assert set(made) == {(name, size) for name in PLACE_CHANGES for size in SIZES}
    right = {key: [(one.mask.astype(np.float32), one.mask) for one in each] for key, each in made.items()}
    wrong = {key: [(1 - one.mask.astype(np.float32), one.mask) for one in each] for key, each in made.items()}
    tables = [("combined", wrong, Quiet(0.1, 0.0)), ("components", right, Quiet(0.08, 0.04))]
    tables += [("components", wrong, Quiet(0.12, 0.0))]
    lines = localisation_table(tables).splitlines()
    assert len(lines) == 2 + 1 + len(PLACE_CHANGES) + len(SIZES)
    assert lines[2].endswith("| 0% | 0.0 | 50% | 50.0 |")
    assert quiet_table(tables).splitlines()[-1] == "| components | 10.0% | 2.0% |"
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a -->\nold\n<!-- end -->\nafter\n")
    write_between(page, "a", "new")
    assert page.read_text() == "before\n<!-- a -->\nnew\n<!-- end -->\nafter\n"


def test_heads_are_fitted_again_and_again_to_count_how_often_components_speak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localisation.FITTED", (21, 25))
    pixels = np.stack([each.pixels for each in one_camera(30, size=256)])
    lines = speaking_table(pixels, SMALL_WEIGHTS, draws=2, device="cpu").splitlines()
    shares = [float(line.split("|")[2].split("%")[0]) for line in lines[2:]]
    assert len(shares) == 2
    assert all(0 <= share <= 60 for share in shares)
