"""What one may choose about a detector, in one place for all of its faces."""

from inspect import signature

from discopatch.model.weights import Weights
from discopatch.patches import Sampling
from discopatch.scoring.precision import Precision
from discopatch.weights import DEFAULT


class Parameters:
    """Kept as they are given, as scikit-learn wants it, and looked at when they are used.

    weights: the name of released weights, or weights of your own.
    head: what makes the score, one of `discopatch.scoring.HEADS`.
    false_alarm_rate: the promised share of normal images that are flagged all the same.
    sampling, patches: where the discriminator looks, see `Scorer`.
    seed: of which images are held out, and of everything else random.
    device: auto takes a GPU where there is one.
    precision: bfloat16 is faster, on a GPU alone; a detector keeps the one that it was fitted in.
    """

    def __init__(
        self,
        weights: str | Weights = DEFAULT,
        *,
        head: str = "combined",
        false_alarm_rate: float = 0.01,
        sampling: Sampling = "dense",
        patches: int = 64,
        seed: int = 0,
        device: str = "auto",
        batch_size: int = 8,
        precision: Precision = "float32",
    ) -> None:
        self.weights, self.head, self.false_alarm_rate = weights, head, false_alarm_rate
        self.sampling, self.patches, self.seed = sampling, patches, seed
        self.device, self.batch_size, self.precision = device, batch_size, precision


PARAMETERS = tuple(signature(Parameters).parameters)
