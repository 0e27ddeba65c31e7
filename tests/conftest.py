"""What all tests share."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def daft_by_itself() -> Iterator[None]:
    """Daft would compute on a cluster of Ray's tests, and in the same process still do so when that has gone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAFT_RUNNER", "native")
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first, so that no process is left alone with one when the others are done."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
