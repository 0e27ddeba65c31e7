"""Numbers are printed as the paper prints them, and the best of a column is known."""

import pytest

from discopatch.bench.tables import Heading, Number, Row, Table, mark_best, percentage
from discopatch.errors import ParameterError


def places(rows):
    return [[0 if number is None else number.place for number in row[1]] if row[1] else [] for row in rows]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Number(97.24), "97.2"),
        (Number(6_218_753, digits=0), "6,218,753"),
        (Number(-0.04), "0.0"),
        (Number(0.44, signed=True), "+0.4"),
        (Number(-0.44, signed=True), "-0.4"),
    ],
)
def test_a_number_is_printed_with_its_digits(number: Number, text: str) -> None:
    assert number.text == text


def test_an_interval_or_a_spread_stands_beside_it() -> None:
    assert Number(97.2, interval=(96.81, 97.5)).around == "[96.8, 97.5]"
    assert Number(97.2, spread=0.31).around == "± 0.3"
    assert Number(97.2).around == ""


def test_a_percentage_scales_all_three() -> None:
    number = percentage([0.5, 0.25, 0.75], interval=True)
    assert number is not None
    assert (number.value, number.interval) == (50, (25, 75))
    assert percentage(None) is None


def test_higher_and_lower_are_ranked_apart_in_one_cell() -> None:
    rows = [(name, (Number(a, better=1), Number(b, better=-1))) for name, a, b in (("x", 97, 20), ("y", 95, 10))]
    assert places(mark_best(rows)) == [[1, 2], [2, 1]]


def test_what_is_printed_alike_shares_a_place() -> None:
    rows = [("x", (Number(97.61, better=1),)), ("y", (Number(97.64, better=1),)), ("z", (Number(90, better=1),))]
    assert places(mark_best(rows)) == [[1], [1], [2]]


def test_gaps_and_numbers_without_a_better_are_not_ranked() -> None:
    rows: list[Row] = [("x", (Number(1),)), ("y", ""), ("z", (Number(2),))]
    assert mark_best(rows) == tuple(rows)


def test_a_number_alone_is_not_the_best() -> None:
    assert places(mark_best([("x", (Number(97, better=1),)), ("y", "")])) == [[0], []]


def test_a_row_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ParameterError, match="2 cells under 1 headings"):
        Table("t", "T", "", (Heading("a"),), (("x", "y"),))
