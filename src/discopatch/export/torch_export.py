"""The graph for torch itself, which then needs no code of ours."""

from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor, nn

from discopatch.export.engines import GraphOutput
from discopatch.export.graph import DetectorGraph, quiet_torch, trace
from discopatch.export.metadata import ANOMALY_MAP, AT_LEAST, OUTPUTS, SCORE
from discopatch.images import Pixels


class NamedOutputs(nn.Module):
    """A graph that returns a dictionary; a program of `torch.export` has no other names for its outputs."""

    def __init__(self, graph: DetectorGraph) -> None:
        super().__init__()
        self.detector = graph  # "graph" would hide an attribute of torch's own

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        return dict(zip(OUTPUTS, self.detector(pixels), strict=True))


def write_torch_export(graph: DetectorGraph, path: Path) -> None:
    """Writes one file for `torch.export.load`."""
    program = trace(NamedOutputs(graph), graph.size)
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
        return GraphOutput(found[SCORE], found[AT_LEAST], found[ANOMALY_MAP] if anomaly_map else None)
