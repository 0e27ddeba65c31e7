"""How long everything takes, and when it has to end."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


class OutOfTime(RuntimeError):  # noqa: N818 - it says what happened
    """The time that was given is over; what is done is stored."""


@dataclass
class Clock:
    """Starts when it is made."""

    minutes: float | None = None
    say: Callable[[str], object] = print
    started: float = field(default_factory=time.monotonic)
    spent: dict[str, float] = field(default_factory=dict)  # seconds by piece

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.started

    @property
    def minutes_left(self) -> float | None:
        """None where there is no limit."""
        return None if self.minutes is None else max(0.0, self.minutes - self.seconds / 60)

    def check(self, minutes: float = 0.0) -> None:
        """Nothing new is begun that takes longer than what is left."""
        if self.minutes_left is not None and self.minutes_left <= minutes:
            raise OutOfTime(f"the {self.minutes:g} minutes are over, or nearly: the same command goes on from here")

    def tell(self, what: str) -> None:
        """A line, with the seconds since the start."""
        self.say(f"{self.seconds:7.1f} s  {what}")

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Times a piece, once there is time for it."""
        self.check()
        start = self.seconds
        yield
        self.spent[what] = round(self.seconds - start, 1)
        self.tell(f"{what}: {self.spent[what]:.1f} s")
