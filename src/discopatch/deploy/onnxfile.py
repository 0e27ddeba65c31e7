"""The graph as an ONNX file."""

from pathlib import Path
from typing import Any

import onnx
import torch
from onnxscript import opset18 as op

from discopatch.deploy.graph import ANY_NUMBER, DetectorGraph, example
from discopatch.deploy.heatchoice import make_heat_a_choice
from discopatch.deploy.integers import OPERATOR
from discopatch.deploy.quiet import quiet
from discopatch.deploy.sidecar import OUTPUTS, PIXELS


def write_onnx(graph: DetectorGraph, path: Path, *, size: int) -> None:
    """One file with weights and all; the heatmap can be left out when it runs."""
    model = as_onnx(graph, size=size)
    make_heat_a_choice(model.graph)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def as_onnx(graph: DetectorGraph, *, size: int) -> onnx.ModelProto:
    """Through torch's own exporter."""
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            graph,
            example(size),
            dynamic_shapes=ANY_NUMBER,
            dynamo=True,
            opset_version=18,
            input_names=[PIXELS],
            output_names=list(OUTPUTS),
            custom_translation_table={OPERATOR: integer_convolution},
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    forget_sources(model.graph)
    return model


def integer_convolution(x: Any, kernel: Any, step: Any, zero: Any) -> Any:
    """What `OPERATOR` is in ONNX."""
    return op.ConvInteger(op.QuantizeLinear(x, step, zero), kernel, zero, strides=[2, 2], pads=[1, 1, 1, 1])


def forget_sources(graph: onnx.GraphProto) -> None:
    """Torch notes for every node the line of code that it came from, with the folders of this machine."""
    graph.ClearField("metadata_props")
    for part in (*graph.node, *graph.value_info, *graph.input, *graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
