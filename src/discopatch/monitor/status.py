"""The result and the stored state of a monitor."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from discopatch.monitor.change import ChangePoint
from discopatch.monitor.evidence import Direction
from discopatch.results import COMPONENT_WORDS
from discopatch.schema import Count, LongDigest, between

CHANGES = {
    "higher": "scores are higher than those of normal images",
    "lower": "scores are lower than those of normal images",
    "alike": "scores are more alike than those of normal images",
}


class ExampleImage(NamedTuple):
    """An image that shows the change."""

    name: str
    image: int  # its number in the stream, from 1
    score: float
    p_value: float


class MonitorState(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The stored fields of a monitor."""

    kind: Literal["discopatch-monitor-3"] = "discopatch-monitor-3"
    detector: LongDigest  # of the calibration scores and the names of the components
    false_alarm_rate: Annotated[float, between(0, 1)]
    number: Count = 0  # of the last image, refused ones included
    images: Count = 0
    counted: Count = 0
    refused: Count = 0
    ranked: Count = 0  # images of all streams, which number the random numbers
    last_group: LongDigest | None = None
    alarm_at: Count | None = None
    since: ChangePoint | None = None
    direction: Direction | None = None
    component: str | None = None
    examples: dict[Literal["higher", "lower", "latest"], list[ExampleImage]] = msgspec.field(
        default_factory=lambda: {"higher": [], "lower": [], "latest": []}
    )
    arrays: dict[str, bytes] = msgspec.field(default_factory=dict)  # little-endian, since the last `to_bytes`


def evidence_text(log10: float) -> str:
    """The evidence as a short number: 0.83, 42, 1,300, or 10^9 from a million on."""
    return f"10^{log10:.0f}" if log10 >= 6 else f"{10**log10:,.2g}" if log10 < 1 else f"{10**log10:,.0f}"


@dataclass(frozen=True)
class MonitorStatus:
    """The result of a monitor after an image; images are numbered from 1, including refused ones."""

    images: int  # with a score
    counted: int  # one of each run of images of one group, if there are groups
    refused: int
    evidence: float  # against the stream being like the calibration images: 1 / rate is an alarm
    log10_evidence: float
    threshold: float  # 1 / rate
    alarm: bool  # whether the threshold was ever reached
    alarm_at: int | None  # the number of the image with which it was
    since: ChangePoint | None  # of an alarm, as all that follows
    direction: Direction | None
    component: str | None  # with another mean since the change, if there is a clear one
    examples: tuple[ExampleImage, ...]  # images that show the change; before an alarm those with the highest scores

    @property
    def text(self) -> str:
        """The result as a sentence."""
        images = f"{self.images:,} images" + f", {self.refused:,} refused" * (self.refused > 0)
        evidence = f"evidence {evidence_text(self.log10_evidence)}, an alarm from {self.threshold:,.4g} on"
        if not self.alarm:
            return f"no change: {images}; {evidence}"
        assert self.alarm_at is not None
        text = f"the stream has changed (alarm at image {self.alarm_at:,} of {images}; {evidence})"
        if self.since is not None:
            text += f" since about image {self.since.image:,} ({self.since.earliest:,} to {self.since.latest:,})"
        if self.direction is not None:
            text += f": {CHANGES[self.direction]}"
        if self.component is not None:
            words = COMPONENT_WORDS.get(self.component)
            text += f", most of all in {self.component}" + f" ({words})" * (words is not None)
        return text

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        since = None if self.since is None else self.since._asdict()
        examples = [each._asdict() for each in self.examples]
        return {**vars(self), "since": since, "examples": examples, "text": self.text}
