"""discopatch itself: with its defaults, and with ResNet-50 as its network. It runs where the script is started.

    detector = Detector().fit("fit/", calibration="held_out/")
    detector.save("detector.safetensors")
    predictions = detector.predict("new/")

The rate is 5 %, the smallest that 39 or 19 images for calibration allow. Without `calibration`, a fit on all images
holds out as many. The weights of ResNet-50 are not in the saved detector: they are added to its size.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # studies

from peer import Fitted, Suite, main

from defects import Classifier
from discopatch import Detector


def method(weights: Any = None) -> Any:
    def fit(suite: Suite) -> Fitted:
        detector = Detector(**({} if weights is None else {"weights": weights()}), false_alarm_rate=0.05)
        detector.fit(
            [str(each) for each in suite.files("fit")], calibration=[str(each) for each in suite.files("held_out")]
        )

        def score(files: Sequence[Path]) -> Sequence[float]:
            found = detector.predict([str(each) for each in files])
            assert [each.name for each in found] == [str(each) for each in files]
            return [float(each.score or 0) for each in found]

        def maps() -> dict[str, Any]:
            files = suite.files("normal", "defects")
            return {str(each.relative_to(suite.root)): detector.explain(str(each)).anomaly_map for each in files}

        def save(path: Path) -> None:
            path.mkdir()
            detector.save(path / "detector.safetensors")
            if weights is not None:
                shutil.copy(suite.weights, path)

        notes = {"resolution": str(detector.transform_.largest)}
        return Fitted(score, 3, detector.threshold_, save, maps, notes=notes)

    return fit


METHODS = {"discopatch": method(), "discopatch-resnet50": method(lambda: Classifier("resnet50"))}

if __name__ == "__main__":
    main(__doc__, "discopatch", "discopatch", (), METHODS)
