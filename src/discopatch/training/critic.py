"""The discriminator as it is trained: where it also learns from spoiled pictures, it learns to name what is wrong."""

from torch import Tensor, nn

from discopatch.model import Discriminator


class Critic(nn.Module):
    """A discriminator and, for training alone, a layer that names the defect of a whole picture.

    The names keep the defects apart in the features: told only that something is wrong, the discriminator may see all
    of them alike. The layer is left behind when the discriminator is saved.
    """

    def __init__(self, discriminator: Discriminator, *, defects: int = 0) -> None:
        super().__init__()
        self.discriminator = discriminator
        self.names = nn.Linear(discriminator.architecture.hidden[-1], 1 + defects) if defects else None

    def forward(self, x: Tensor, patches: int | None = None, *, named: bool = False) -> tuple[Tensor, Tensor | None]:
        """The logits of `Discriminator.forward`; where `named`, also those of no defect and of each defect, (B, 1 + D).

        Several devices train through `forward` alone: whatever takes part in learning has to pass here.
        """
        features = self.discriminator.features(x, patches)
        names = self.names(features.float().mean((2, 3))) if named and self.names is not None else None
        return self.discriminator.judge(features), names
