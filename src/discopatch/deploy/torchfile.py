"""The graph for torch itself, which then needs no code of ours."""

from pathlib import Path

import torch
from torch import Tensor, nn

from discopatch.deploy.engines import Answer
from discopatch.deploy.graph import ANY_NUMBER, DetectorGraph, example
from discopatch.deploy.quiet import quiet
from discopatch.deploy.sidecar import AT_LEAST, HEAT, OUTPUTS, SCORE
from discopatch.images import Pixels


class Named(nn.Module):
    """The outputs under their names."""

    def __init__(self, graph: DetectorGraph) -> None:
        super().__init__()
        self.detector = graph

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """(B, size, size, 3) in uint8."""
        return dict(zip(OUTPUTS, self.detector(pixels), strict=True))


def write_torch(graph: DetectorGraph, path: Path, *, size: int) -> None:
    """One file, for `torch.export.load`."""
    with quiet(), torch.no_grad():
        program = torch.export.export(Named(graph), example(size), dynamic_shapes=ANY_NUMBER)
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # the folders of this machine
        torch.export.save(program, path)


class TorchEngine:
    """Runs such a file; the heatmap is always made."""

    def __init__(self, graph: Path) -> None:
        self._run = torch.export.load(graph).module()

    def __call__(self, pixels: Pixels, *, heat: bool = False) -> Answer:
        """See `Engine`."""
        with torch.no_grad():
            found = {name: value.numpy() for name, value in self._run(torch.tensor(pixels)).items()}
        return Answer(found[SCORE], found[AT_LEAST], found[HEAT] if heat else None)
