"""The graph for torch itself, which then needs no code of ours."""

from io import BytesIO
from pathlib import Path

import torch

from discopatch.export.engines import GraphOutput
from discopatch.export.graph import DetectorGraph, quiet_torch, trace
from discopatch.export.metadata import ANOMALY_MAP, PLACE_MAP
from discopatch.images import Pixels


def write_torch_export(graph: DetectorGraph, path: Path) -> None:
    """Writes one file for `torch.export.load`."""
    program = trace(graph)
    content = BytesIO()  # given a path, torch would end a full disk with an error of its own
    with quiet_torch():
        torch.export.save(program, content)
    path.write_bytes(content.getvalue())


class TorchEngine:
    """Runs `detector.pt2` with torch; the anomaly map is always computed."""

    def __init__(self, path: Path) -> None:
        self._run = torch.export.load(path).module()

    def __call__(self, pixels: Pixels, *, anomaly_map: bool = False) -> GraphOutput:
        with torch.no_grad():
            found = {name: value.numpy() for name, value in self._run(torch.tensor(pixels)).items()}
        left_out = () if anomaly_map else (ANOMALY_MAP, PLACE_MAP)
        return GraphOutput.of({name: value for name, value in found.items() if name not in left_out})
