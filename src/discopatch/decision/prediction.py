"""What is said about one image."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prediction:
    """One image's score and what follows from it, or the reason why it was refused: never both, never neither."""

    name: str
    score: float | None  # higher means more out-of-distribution
    p_value: float | None  # share of normal images at least this strange, counting this one
    is_ood: bool | None
    error: str | None = None  # such as "truncated: the file ends early"

    def __post_init__(self) -> None:
        if (self.score is None) == (self.error is None):
            raise ValueError(f"{self.name}: a prediction has either a score or an error")
        if self.error is not None and (self.p_value is not None or self.is_ood is not None):
            raise ValueError(f"{self.name}: refused, so it has no p-value and no verdict")
