"""What is said about images: a score or the reason why there is none, one by one, as arrays or as a table."""

from typing import Any

import numpy as np
import pytest

from discopatch import Prediction, Predictions
from discopatch.errors import ParameterError
from discopatch.results import (
    COMPONENT_WORDS,
    UNUSUAL_SHAPE,
    ComponentScore,
    Reason,
    as_row,
    column_types,
    explain_components,
    from_row,
    position_of,
    shape_caution,
)

NORMAL = Prediction("a.jpg", 1.5, 0.4, False)
FLAGGED = Prediction("b.jpg", 7.25, 0.01, True)
REFUSED = Prediction("c.jpg", None, None, None, "truncated: copy it again")
UNCALIBRATED = Prediction("d.jpg", 2.5, None, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"score": None, "p_value": None, "is_ood": None},
        {"score": 1.0, "p_value": 0.5, "is_ood": False, "error": "truncated"},
        {"score": None, "p_value": 0.5, "is_ood": None, "error": "truncated"},
        {"score": None, "p_value": None, "is_ood": False, "error": "truncated"},
    ],
)
def test_a_prediction_is_a_score_or_an_error_never_both_never_neither(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=r"a\.jpg"):
        Prediction("a.jpg", **wrong)


def test_predictions_are_a_sequence() -> None:
    found = Predictions(iter([NORMAL, FLAGGED, REFUSED]))
    assert list(found) == [NORMAL, FLAGGED, REFUSED]
    assert (len(found), found[0], found[-1]) == (3, NORMAL, REFUSED)
    assert found[1:] == Predictions([FLAGGED, REFUSED])
    assert isinstance(found[1:], Predictions)
    assert FLAGGED in found
    assert found.index(REFUSED) == 2
    assert found != Predictions([NORMAL, FLAGGED])
    assert hash(found) == hash(Predictions([NORMAL, FLAGGED, REFUSED]))
    with pytest.raises(IndexError):
        found[3]


def test_predictions_as_arrays_have_no_numbers_for_what_was_refused() -> None:
    found = Predictions([NORMAL, FLAGGED, REFUSED, UNCALIBRATED])
    assert found.names.tolist() == ["a.jpg", "b.jpg", "c.jpg", "d.jpg"]
    np.testing.assert_array_equal(found.scores, [1.5, 7.25, np.nan, 2.5])
    np.testing.assert_array_equal(found.p_values, [0.4, 0.01, np.nan, np.nan])
    assert found.is_ood.tolist() == [False, True, None, None]
    assert found.is_ood.sum() == 1
    assert found.errors.tolist() == [None, None, "truncated: copy it again", None]
    kinds = [found.names.dtype.kind, found.scores.dtype, found.p_values.dtype, found.is_ood.dtype, found.errors.dtype]
    assert kinds == ["U", np.float64, np.float64, np.bool_, np.object_]
    assert found.scores is found.scores, "made once"


def test_predictions_as_a_table_have_a_row_an_image() -> None:
    table = Predictions([NORMAL, FLAGGED, REFUSED]).to_pandas()
    assert list(table.columns) == ["name", "score", "p_value", "is_ood", "error", "caution"]
    assert table["name"].tolist() == ["a.jpg", "b.jpg", "c.jpg"]
    assert table["score"].tolist()[:2] == [1.5, 7.25]
    assert np.isnan(table["score"][2])
    assert table["is_ood"].isna().tolist() == [False, False, True]
    assert table["is_ood"].sum() == 1
    assert table["error"][2] == "truncated: copy it again"


@pytest.mark.parametrize(
    ("size", "expected"),
    [((100, 150), None), ((100, 220), None), ((100, 221), UNUSUAL_SHAPE), ((221, 100), UNUSUAL_SHAPE)],
)
def test_a_shape_beyond_those_of_normal_images_is_a_caution(size: tuple[int, int], expected: str | None) -> None:
    assert shape_caution(size, (0.6, 2.0)) == expected
    assert shape_caution(size, None) is None
    prediction = Prediction.make("a.jpg", 1.0, None, caution=expected)
    assert as_row(prediction)["caution"] == expected
    assert from_row(as_row(prediction)) == prediction


SIGNIFICANT = Prediction(
    "e.jpg",
    9.5,
    0.02,
    True,
    components=(
        ComponentScore("acquisition", 4.5, True),
        ComponentScore("content", 1.25, False),
        ComponentScore("place", 9.0, True),
    ),
)


def test_components_are_plain_values_and_columns_and_those_that_are_significant_come_strongest_first() -> None:
    assert [each.name for each in SIGNIFICANT.significant] == ["place", "acquisition"]
    expected = {"z_acquisition": 4.5, "z_content": 1.25, "z_place": 9.0, "significant": "place,acquisition"}
    row = {"name": "e.jpg", "score": 9.5, "p_value": 0.02, "is_ood": True, "error": None, "caution": None, **expected}
    assert as_row(SIGNIFICANT, tuple(COMPONENT_WORDS)) == row
    refused = as_row(REFUSED, tuple(COMPONENT_WORDS))
    assert list(refused) == list(row) == list(column_types(tuple(COMPONENT_WORDS)))
    assert {name for name, value in refused.items() if value is not None} == {"name", "error"}
    table = Predictions([SIGNIFICANT, REFUSED]).to_pandas()
    assert list(table.columns) == list(row)
    assert table["z_place"][0] == 9.0
    assert np.isnan(table["z_place"][1])


def test_each_significant_component_has_words_of_its_own() -> None:
    places = np.zeros((16, 16))
    places[2, 1] = 5
    reasons = [Reason("blur", 7.0, "less fine detail than normal"), Reason("haze", 6.0, "hazier than normal")]
    found = explain_components(SIGNIFICANT, reasons, places)
    assert [(each.name, each.z) for each in found] == [("place", 9.0), ("acquisition", 4.5)]
    assert [each.text for each in found] == ["a place in it: upper left", "how it was taken: less fine detail"]
    assert explain_components(SIGNIFICANT, [], places)[1].text == COMPONENT_WORDS["acquisition"]
    assert explain_components(NORMAL, reasons, None) == ()


@pytest.mark.parametrize("shape", [(16, 16), (7, 40), (24, 4)])
def test_nine_positions_have_nine_names(shape: tuple[int, int]) -> None:
    found, (rows, columns) = {}, shape
    for row, column in np.ndindex(shape):
        values = np.zeros(shape)
        values[row, column] = 1
        found[row, column] = position_of(values)
    assert len(set(found.values())) == 9
    assert found[0, 0] == "upper left"
    assert found[rows - 1, columns // 2] == "lower middle"
    assert found[rows // 2, columns - 1] == "middle right"
    assert found[rows // 2, columns // 2] == "centre"
    assert position_of(np.full(shape, 1.1)) not in found.values(), "no single place, where most differ"
    for (row, column), name in found.items():
        assert ("left" in name) == (column < columns / 3 - 0.5)
        assert ("lower" in name) == (row > 2 * rows / 3 - 0.5)
