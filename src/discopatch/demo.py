"""The whole way in a minute: a detector fitted on a few photos decides about clean and corrupted ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from discopatch.decision import Prediction
from discopatch.detector import Detector
from discopatch.fitting import Progress
from discopatch.images import Picture
from discopatch.images.corrupt import corrupt
from discopatch.images.samples import PHOTOS, crops, sample_photos
from discopatch.report import Findings

SIZE = 256
NORMAL, INCOMING = 6, 1  # crops of each photo
FALSE_ALARM_RATE = 0.05
SHOWN = {"gaussian_noise": (1, 3), "gaussian_blur": (1, 3), "jpeg_compression": (1,), "brightness": (3,)}
CLOSE_UPS = 6


@dataclass(frozen=True)
class Row:
    """What the detector said about the incoming photos after one corruption; severity 0 is none."""

    corruption: str
    severity: int
    predictions: Sequence[Prediction]

    @property
    def flagged(self) -> int:
        """How many are unlike the normal ones."""
        return sum(bool(each.is_ood) for each in self.predictions)

    @property
    def median_p_value(self) -> float:
        """Of the photos of this row."""
        return median(each.p_value or 0.0 for each in self.predictions)


def run_demo(out: Path, *, seed: int, created: str, progress: Progress | None = None) -> Iterator[Row]:
    """Fits on crops of sample photos, decides about other crops, row by row; leaves the detector and a report in `out`.

    The incoming crops show the scenes that the normal ones show, as a camera that looks at the same things every day.
    """
    photos = sample_photos(PHOTOS)
    detector = Detector.pretrained(false_alarm_rate=FALSE_ALARM_RATE, seed=seed)
    detector.fit(crops(photos, NORMAL, size=SIZE, seed=seed), progress=progress)
    detector.save(out / "detector")
    incoming = crops(photos, INCOMING, size=SIZE, seed=seed + 1)
    findings = Findings(CLOSE_UPS)
    for corruption, severity in [("none", 0), *((name, level) for name, levels in SHOWN.items() for level in levels)]:
        changed = [spoiled(picture, corruption, severity, seed=seed) for picture in incoming]
        yield Row(corruption, severity, list(findings.gather(detector.judge(changed))))
    findings.write(out / "report.html", detector, title="discopatch demo", created=created)


def spoiled(picture: Picture, corruption: str, severity: int, *, seed: int) -> Picture:
    """The picture with the corruption, which its name then tells."""
    if severity == 0:
        return picture
    pixels = corrupt(picture.pixels, corruption, severity, seed=seed)
    return Picture(f"{picture.name} {corruption} {severity}", pixels)
