"""How far a decision can be trusted, from how many images it rests on."""

from dataclasses import dataclass

from discopatch.decision.conformal import rate_range

FEW = 100  # images, below which the statistics of a camera are only roughly known


@dataclass(frozen=True)
class Trust:
    """What the promise of a detector is worth."""

    fitted: int
    calibrated: int
    false_alarm_rate: float

    @property
    def likely_rates(self) -> tuple[float, float]:
        """Between which rates the false alarms of this detector lie, nine times in ten."""
        return rate_range(self.calibrated, self.false_alarm_rate)

    @property
    def words(self) -> str:
        """One or two sentences for people."""
        low, high = self.likely_rates
        said = (
            f"fitted on {self.fitted} images, calibrated on {self.calibrated}: false alarms on normal images are "
            f"{self.false_alarm_rate:.1%} on average over such sets, and for this one likely {low:.1%} to {high:.1%}."
        )
        if self.fitted < FEW:
            said += f" Fewer than {FEW} images to fit: strong changes are seen, mild ones may not be. Add images."
        return said
