"""What is begun early still comes in its order."""

import pytest

from discopatch.streams import behind


@pytest.mark.parametrize("steps", [0, 1, 3, 9])
def test_items_come_so_many_steps_behind_and_none_is_lost(steps: int) -> None:
    drawn: list[int] = []
    late = behind((drawn.append(number) or number for number in range(5)), steps)  # type: ignore[func-returns-value]
    assert next(late) == 0
    assert len(drawn) == min(5, steps + 1)
    assert list(late) == [1, 2, 3, 4]
