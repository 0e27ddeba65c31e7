"""What a monitor says."""

from dataclasses import dataclass
from typing import Any

from discopatch.monitor.change import ChangePoint
from discopatch.monitor.evidence import Direction
from discopatch.monitor.state import Telling
from discopatch.results import COMPONENT_WORDS

CHANGES = {
    "higher": "scores are higher than those of normal images",
    "lower": "scores are lower than those of normal images",
    "alike": "scores are more alike than those of normal images",
}


def evidence_text(log10: float) -> str:
    """A number that is read at a glance: 0.83, 42, 1,300, or 10^9 from a million on."""
    return f"10^{log10:.0f}" if log10 >= 6 else f"{10**log10:,.2g}" if log10 < 1 else f"{10**log10:,.0f}"


@dataclass(frozen=True)
class MonitorStatus:
    """What is known about a stream after its last image; images are numbered from 1, refused ones among them."""

    images: int  # that were scored
    counted: int  # of these: one of each run of images that belong together, where the detector knows such
    refused: int
    evidence: float  # against the stream being like the calibration images: 1 / rate is an alarm
    log10_evidence: float
    threshold: float  # 1 / rate
    alarm: bool  # whether the threshold was ever reached
    alarm_at: int | None  # the number of the image with which it was
    since: ChangePoint | None  # of an alarm, as all that follows
    direction: Direction | None
    component: str | None  # that has moved, where one clearly has
    telling: tuple[Telling, ...]  # the most telling images; before an alarm the highest of late

    @property
    def text(self) -> str:
        """All of it in a sentence."""
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
        telling = [each._asdict() for each in self.telling]
        return {**vars(self), "since": since, "telling": telling, "text": self.text}
