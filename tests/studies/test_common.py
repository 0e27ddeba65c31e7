import numpy as np
import pytest

from common import OutOfTimeError, Timer, check_digests, in_both_orders, interval_text, running_mean
from discopatch.errors import ParameterError


def test_no_part_is_begun_when_time_is_over() -> None:
    timer = Timer(1e-9, log=lambda line: None)
    with pytest.raises(OutOfTimeError), timer.part("training"):
        raise AssertionError("begun")
    with pytest.raises(OutOfTimeError):
        Timer(1.0).check(minutes=2.0)
    Timer(None).check(minutes=2.0)


def test_parts_are_timed_and_logged() -> None:
    lines: list[str] = []
    timer = Timer(log=lines.append)
    with timer.part("training"):
        pass
    assert timer.spent["training"] >= 0
    assert "training" in lines[0]


def test_the_running_mean_is_that_of_successive_values() -> None:
    np.testing.assert_allclose(running_mean(np.arange(6.0), 3), [1, 2, 3, 4])
    np.testing.assert_allclose(running_mean(np.arange(2.0), 3), [0.5])


def test_what_is_measured_first_is_also_measured_last() -> None:
    order: list[str] = []
    times = in_both_orders(["a", "b"], lambda name: order.append(name) or [1.0])  # type: ignore[func-returns-value]
    assert order == ["a", "b", "b", "a"]
    assert times == {"a": [1.0, 1.0], "b": [1.0, 1.0]}


def test_an_interval_stands_behind_its_value() -> None:
    assert interval_text([0.9617, 0.955, 0.969]) == "0.962 [0.955, 0.969]"
    assert interval_text([0.9617, 0.955, 0.969], scale=100, digits=1) == "96.2 [95.5, 96.9]"


def test_results_of_other_weights_are_refused_by_name() -> None:
    own = {"made": {"weights digest": "aa"}}
    check_digests("aa", {"natural": own})
    with pytest.raises(ParameterError, match="calibration"):
        check_digests("aa", {"natural": own, "calibration": {"made": {"weights digest": "bb"}}})
