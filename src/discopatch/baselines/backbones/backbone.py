"""What every backbone is: a frozen network that turns pictures into the features that methods look at."""

from collections.abc import Collection
from typing import Protocol

from discopatch.baselines.method import Classifier, Features
from discopatch.images import Pixels


class Backbone(Protocol):
    """A frozen classifier. Pictures come at 256 pixels, as they come to every method; each cuts what it wants."""

    name: str
    digest: str  # 16 hex digits of its weights
    parameters: int
    kinds: tuple[str, ...]  # the kinds of features that it can show
    classifier: Classifier
    classes: tuple[str, ...]  # their names, or empty where they are not known

    def look(self, pixels: Pixels, kinds: Collection[str]) -> Features:
        """(images, 256, 256, 3) in uint8 -> those kinds of features, float32, each image's from itself alone."""
