"""One bad file among a thousand is a line in a report; only when nothing is left is it an error."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from discopatch.images.picture import NoImagesError, Picture, Reason, Refusal

T = TypeVar("T")

_EXAMPLES = 5


@dataclass(slots=True)
class RefusalReport:
    """Counts what was refused and why; remembers only the first few names per reason."""

    accepted: int = 0
    refused: dict[Reason, int] = field(default_factory=dict)
    examples: dict[Reason, list[str]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many images were refused."""
        return sum(self.refused.values())

    def __bool__(self) -> bool:
        return self.count > 0

    def add(self, refusal: Refusal) -> None:
        """Count one refusal."""
        self.refused[refusal.reason] = self.refused.get(refusal.reason, 0) + 1
        names = self.examples.setdefault(refusal.reason, [])
        if len(names) < _EXAMPLES:
            names.append(refusal.name)

    def summary(self) -> str:
        """Such as: 3 of 120 images refused: 2 truncated (a.jpg, b.jpg), 1 empty (c.png)."""
        total = f"{self.count} of {self.accepted + self.count} images refused"
        if not self:
            return total
        by_count = sorted(self.refused, key=lambda reason: (-self.refused[reason], reason))
        return f"{total}: {', '.join(map(self._of_reason, by_count))}"

    def nothing_left(self) -> NoImagesError:
        """The error of a job in which every image was refused."""
        return NoImagesError(f"nothing left to work with: {self.summary()}")

    def _of_reason(self, reason: Reason) -> str:
        names = ", ".join(self.examples[reason])
        more = ", ..." if self.refused[reason] > len(self.examples[reason]) else ""
        return f"{self.refused[reason]} {reason.replace('_', ' ')} ({names}{more})"

    def to_dict(self) -> dict[str, Any]:
        """The report, ready for JSON."""
        return {"accepted": self.accepted, "refused": self.refused, "examples": self.examples}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(
            accepted=stored["accepted"],
            refused={Reason(reason): count for reason, count in stored["refused"].items()},
            examples={Reason(reason): list(names) for reason, names in stored["examples"].items()},
        )


def accepted(stream: Iterable[Picture | Refusal], report: RefusalReport) -> Iterator[Picture]:
    """The pictures of a stream; refusals go into the report. NoImagesError when no picture was left."""
    for item in stream:
        if isinstance(item, Refusal):
            report.add(item)
        else:
            report.accepted += 1
            yield item
    if report.accepted == 0:
        raise report.nothing_left()


def single(stream: Iterator[T | Refusal]) -> T:
    """The image that is asked about alone, or an error that says why there is none."""
    item = next(stream, None)
    if item is None:
        raise NoImagesError("nothing to explain: give one image")
    if isinstance(item, Refusal):
        raise ValueError(f"{item.name}: {item.error}")
    return item
