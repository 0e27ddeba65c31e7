"""What several scripts share: timing a call, a time limit for long runs, pages and intervals as text."""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from discopatch.errors import DiscopatchError, ParameterError
from discopatch.utils import write_atomically

if TYPE_CHECKING:
    from discopatch.heads import CombinedHead, Head


class OutOfTimeError(DiscopatchError):
    """The time limit of a run is over; what is done is stored."""


@dataclass
class Timer:
    """Counts from its creation, logs how long each part of a run took, and begins none after the limit."""

    limit_minutes: float | None = None
    log: Callable[[str], object] = print
    started: float = field(default_factory=time.monotonic)
    spent: dict[str, float] = field(default_factory=dict)  # seconds by part

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def minutes_left(self) -> float | None:
        return None if self.limit_minutes is None else max(0.0, self.limit_minutes - self.seconds / 60)

    def check(self, minutes: float = 0.0) -> None:
        """Raises OutOfTimeError unless more than so many minutes are left."""
        if self.minutes_left is not None and self.minutes_left <= minutes:
            raise OutOfTimeError(
                f"the {self.limit_minutes:g} minutes are over, or nearly: the same command goes on from here"
            )

    def note(self, message: str) -> None:
        self.log(f"{self.seconds:7.1f} s  {message}")

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Times one part of the run, if there is time left for it."""
        self.check()
        start = self.seconds
        yield
        self.spent[name] = round(self.seconds - start, 1)
        self.note(f"{name}: {self.spent[name]:.1f} s")


def seconds_of(call: Callable[[], object], device: str = "cpu") -> float:
    """Wall-clock seconds of one call; the queue of a GPU is empty before and after."""
    synchronise(device)
    start = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - start


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()


def device_name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name() if device.startswith("cuda") else f"{torch.get_num_threads()} CPU threads"


def in_both_orders(names: Iterable[str], measure: Callable[[str], list[float]]) -> dict[str, list[float]]:
    """What is measured under each name, forwards and then backwards: whatever drifts, drifts for all."""
    times: dict[str, list[float]] = {name: [] for name in names}
    for name in [*times, *reversed(times)]:
        times[name] += measure(name)
    return times


def milliseconds(seconds: Sequence[float]) -> tuple[float, str]:
    """The median in milliseconds, and the range from the shortest to the longest as text."""
    return statistics.median(seconds) * 1e3, f"{min(seconds) * 1e3:.3g}-{max(seconds) * 1e3:.3g}"


def compared_heads(head: "CombinedHead") -> "dict[str, Head]":
    """The heads that stand side by side in the tables: the combined one and its parts."""
    from discopatch.heads import LogitHead

    return {"logit": LogitHead(), "statistics": head.statistics, "combined": head}


def running_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """The mean of each `window` successive values, or of all where there are fewer."""
    size = max(1, min(window, len(values)))
    return np.convolve(values, np.ones(size) / size, mode="valid")


def interval_text(figure: Sequence[float], *, scale: float = 1, digits: int = 3) -> str:
    """A value and its interval, such as 0.962 [0.955, 0.969]."""
    value, low, high = (f"{scale * number:.{digits}f}" for number in figure)
    return f"{value} [{low}, {high}]"


def check_digests(digest: str, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises unless all results, by name, were made with the weights of that digest."""
    for name, each in results.items():
        if (other := each["made"]["weights digest"]) != digest:
            raise ParameterError(f"{name} was made with other weights ({other}, not {digest}): measure again")


def render_page(template: Path, **values: Any) -> str:
    """A Markdown page from a Jinja template; a value that is missing is an error."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)
    return environment.from_string(template.read_text(encoding="utf-8")).render(values).rstrip() + "\n"


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def write_between(page: Path, name: str, text: str) -> None:
    """Puts the text between the marks of that name, `<!-- NAME -->` and `<!-- end -->`."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    if not begin:
        raise ParameterError(f"{page} has no mark <!-- {name} -->: add it, and <!-- end --> below")
    _, end, after = rest.partition("<!-- end -->")
    write_text(page, before + begin + text + "\n" + end + after)
