"""The discriminator as it is trained: of whole pictures it also learns the names of defects, and a teacher's eyes."""

from typing import NamedTuple

from torch import Tensor, nn

from discopatch.model import Discriminator


class Verdict(NamedTuple):
    """What the critic says of pictures."""

    logits: Tensor
    names: Tensor | None = None  # of no defect and of each defect, (B, 1 + D)
    statistics: Tensor | None = None  # its guess of the teacher's, (B, taught)


class Critic(nn.Module):
    """A discriminator and, for training alone, two layers that look at whole pictures.

    The names keep the defects apart in the features: told only that something is wrong, the discriminator may see all
    of them alike. The guess at a teacher's statistics, a linear one, makes its own hold what the teacher's do.
    Both layers are left behind when the discriminator is saved.
    """

    def __init__(self, discriminator: Discriminator, *, defects: int = 0, taught: int = 0) -> None:
        super().__init__()
        self.discriminator = discriminator
        hidden = discriminator.architecture.hidden
        self.names = nn.Linear(hidden[-1], 1 + defects) if defects else None
        self.guess = nn.Linear(2 * sum(hidden), taught) if taught else None

    def forward(self, x: Tensor, patches: int | None = None, *, whole: bool = False) -> Verdict:
        """The logits of `Discriminator.forward`; of `whole` pictures also the names and the guess.

        Several devices train through `forward` alone: whatever takes part in learning has to pass here.
        """
        if not whole or (self.names is None and self.guess is None):
            return Verdict(self.discriminator(x, patches))
        statistics = None
        if self.guess is None:
            features = self.discriminator.features(x, patches)
            logits = self.discriminator.judge(features)
        else:
            seen = self.discriminator.inspect(x, patches)
            features, logits, statistics = seen.features[-1], seen.logits, self.guess(seen.statistics)
        names = None if self.names is None else self.names(features.float().mean((2, 3)))
        return Verdict(logits, names, statistics)
