"""Work that is begun before it is waited for."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def behind(items: Iterable[T], steps: int) -> Iterator[T]:
    """The same items, each only once so many that follow it have been drawn too."""
    waiting: deque[T] = deque()
    for item in items:
        waiting.append(item)
        if len(waiting) > steps:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()
