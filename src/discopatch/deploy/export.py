"""From a fitted detector to a folder for other runtimes, compared with the detector before it is there."""

from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from discopatch import images
from discopatch.deploy.description import described
from discopatch.deploy.engines import Engine
from discopatch.deploy.folder import check_place, whole_folder
from discopatch.deploy.formats import check_format, open_graph, write_graph
from discopatch.deploy.graph import DetectorGraph, look_at_image, look_at_regions
from discopatch.deploy.parity import NOTABLE_SHIFT, Original, Parity, measure
from discopatch.deploy.quantise import quantised
from discopatch.deploy.references import Floats, References
from discopatch.deploy.sidecar import ExportError, Sidecar
from discopatch.detector import Detector
from discopatch.fitting import check_calibration
from discopatch.images import RefusalReport, accepted
from discopatch.images.workers import DEFAULT_WORKERS, Workers
from discopatch.model import Discriminator

Tell = Callable[[str], object]


class Exported(NamedTuple):
    """What was written, and how well it agrees with the detector."""

    sidecar: Sidecar
    parity: Parity

    @property
    def caution(self) -> str | None:
        """What a person should know before trusting its p-values, if there is something."""
        if abs(self.parity.shift) <= NOTABLE_SHIFT or self.sidecar.content["calibration"]["by"] == "export":
            return None
        return (
            f"scores of normal images moved by {self.parity.shift:+.2f} of their spread: the false-alarm rate of "
            f"{self.sidecar.false_alarm_rate:.2%} was promised for the detector, not for this export; "
            "give --calibration with normal images that are new to the detector, and the promise is exact again"
        )


def export(
    detector: Detector,
    folder: Path | str,
    *,
    format: str = "onnx",
    int8: bool = False,
    reference: object | None = None,
    calibration: object | None = None,
    force: bool = False,
    workers: Workers = DEFAULT_WORKERS,
    tell: Tell = lambda doing: None,
) -> Exported:
    """Writes the folder, whole or not at all, and only if its graph says what the detector says.

    format: onnx, openvino or torch-export.
    int8: convolutions in 8 bits, faster and less exact; needs `reference`.
    reference: images to compare on, such as new normal ones; without them pictures are made up.
    calibration: other normal images, whose scores by the export itself take the place of the detector's own.
    tell: hears what is being done.
    """
    check_format(format, int8=int8)
    check_place(Path(folder), force=force)
    check_precision(detector)
    original, size = Original(detector), detector.loaded_weights.transform.size
    references = References.gather(reference, detector.loaded_weights.transform, int8=int8, workers=workers)
    with whole_folder(Path(folder), force=force) as building:
        tell("rounding to 8 bits" if int8 else "copying the network")
        network, scores = network_of(detector, references), detector.fitted.calibration
        tell("writing the graph")
        write_graph(format, DetectorGraph(detector, network, scores), building, size=size)
        if calibration is not None:
            tell("calibrating")
            scores = own_scores(detector, open_graph(format, building), calibration, workers)
            write_graph(format, DetectorGraph(detector, network, scores), building, size=size)
        tell(f"comparing on {len(references.pixels)} images")
        parity = measure(
            original,
            open_graph(format, building),
            references.pixels,
            references.corrupted,
            calibrated=len(scores),
        )
        parity.check()
        sidecar = described(detector, building, format, int8=int8, scores=scores, references=references, parity=parity)
        sidecar.write(building)
    return Exported(sidecar, parity)


def check_precision(detector: Detector) -> None:
    """Whether the detector was calibrated in the precision in which its graph computes."""
    if detector.precision != "float32":
        raise ExportError(
            f"the detector was fitted in {detector.precision}, in which no exported graph computes: "
            "fit again with precision='float32'"
        )


def network_of(detector: Detector, references: References) -> Discriminator:
    """The export's own: a copy, in 8 bits where there are pictures to choose its steps by."""
    network, size = deepcopy(detector.loaded_weights.discriminator).eval(), detector.loaded_weights.transform.size
    if references.tuning is None:
        return network
    return quantised(
        network,
        lambda used: (look_at_image(detector, used), look_at_regions(used, size)),
        torch.from_numpy(references.tuning),
    )


def own_scores(detector: Detector, engine: Engine, source: object, workers: Workers) -> Floats:
    """Of normal images by the export itself, each alone as they will be scored, in order."""
    refusals = RefusalReport()
    with closing(images.open(source, transform=detector.loaded_weights.transform, workers=workers)) as stream:
        found = [engine(picture.pixels[None]).score[0] for picture in accepted(stream, refusals)]
    check_calibration(len(found), detector.false_alarm_rate)
    return np.sort(np.array(found, np.float64))
