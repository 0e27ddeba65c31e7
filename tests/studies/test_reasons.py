"""The study of reasons counts what it says."""

import numpy as np
import pytest

from reasons import NONE, degraded_summary, plan, right_reasons, shares_table, summary, write_page


def cell(kind: str, severity: int, right: list[str], **first: int) -> dict[str, object]:
    return {"kind": kind, "severity": severity, "right": right, "first": first}


CELLS = [
    cell(kind, severity, ["blur"], blur=3, none=1)
    for kind in ("blur", "noise", "compression", "coarse pixels", "haze", "brightness", "contrast")
    for severity in (2, 3, 4)
] + [cell("colours", 4, ["warmer", "stronger"], warmer=1, stronger=1, noise=2)]


def found(given: int, draw: int, normal: dict[str, int], hot: float) -> dict[str, object]:
    return {"given": given, "draw": draw, "fitted": 21, "silent": [], "normal": normal, "hot": hot, "cells": CELLS}


def test_saturate_has_another_name_at_each_severity_and_none_on_grey() -> None:
    assert [right_reasons("colours", each, grey=False) for each in (2, 3, 4)] == [
        ("paler",),
        ("stronger",),
        ("stronger",),
    ]
    assert [right_reasons("colours", each, grey=True) for each in (2, 3)] == [(), ()]
    assert "warmer" in right_reasons("colours", 4, grey=True)


def test_an_image_without_a_reason_is_not_right_and_kinds_count_alike() -> None:
    result = degraded_summary(CELLS)
    assert result["by kind"]["blur"] == 0.75
    assert result["by kind"]["colours"] == 0.5
    assert result["right"] == pytest.approx((7 * 0.75 + 0.5) / 8)
    assert result["first reasons"]["noise"] == {"blur": 9, NONE: 3}


def test_the_shares_of_normal_images_are_over_all_draws() -> None:
    result = summary([found(30, 0, {NONE: 9, "blur": 1}, 0.1), found(30, 1, {NONE: 30}, 0.2)])["30"]
    assert result["with a reason"] == pytest.approx(1 / 40)
    assert result["hot regions"] == pytest.approx(0.15)
    assert result["with a reason, by draw"] == pytest.approx([0.1, 0.0])


def test_sizes_without_enough_new_images_are_left_out() -> None:
    tasks = plan({"photos": 450, "more photos": 750}, 2, 5)
    assert {task.given for task in tasks if task.images == "photos"} == {30, 60, 89, 120, 299}
    assert {task.given for task in tasks if task.images == "more photos"} == {30, 60, 120, 600}
    assert {task.degraded for task in tasks if task.given in (60, 120, 600)} == {0}
    assert np.all(np.diff([task.degraded for task in tasks]) <= 0)


def test_tables_are_put_between_their_marks(tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- photos -->\nold\n<!-- end -->\nafter\n")
    sizes = summary([found(30, 0, {NONE: 10}, 0.1)])
    write_page(page, {"photos": {"by images given": sizes}})
    assert page.read_text() == f"before\n<!-- photos -->\n{shares_table(sizes)}\n<!-- end -->\nafter\n"
