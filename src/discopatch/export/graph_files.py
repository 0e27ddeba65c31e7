"""Writing of a graph as a file for onnxruntime or OpenVINO."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import GraphProto, ModelProto, numpy_helper
from onnxscript import opset18 as op

from discopatch.export.graph import DetectorGraph, quiet_torch
from discopatch.export.metadata import PIXELS
from discopatch.export.quantize import KERNEL_ZERO, convolve_integers, convolve_steps, to_steps
from discopatch.export.runtime import import_openvino
from discopatch.utils import check_space, output_errors, temporary_folder

AXES = ("images", "height", "width")  # of pixels, of any length


def write_graph(format: str, graph: DetectorGraph, path: Path) -> None:
    model = to_onnx(graph)
    onnx.checker.check_model(model, full_check=True)
    if format == "onnx":
        onnx.save(model, path)
    else:
        write_openvino(model, path)


def write_openvino(model: ModelProto, path: Path) -> None:
    openvino = import_openvino()
    with temporary_folder() as place:
        intermediate = place / "detector.onnx"
        with output_errors(intermediate):
            onnx.save(model, intermediate)
        try:
            openvino.save_model(openvino.Core().read_model(intermediate), path, compress_to_fp16=False)
        except RuntimeError:
            check_space(path.parent)  # OpenVINO's error for a full disk has no errno
            raise


def to_onnx(graph: DetectorGraph) -> ModelProto:
    """The graph for any number of images, and for whole images of any height and width."""
    with quiet_torch(), torch.no_grad():
        program = torch.onnx.export(
            graph,
            (graph.example,),
            dynamic_shapes=(dict(enumerate(AXES if graph.whole else AXES[:1])),),
            dynamo=True,
            opset_version=18,
            input_names=[PIXELS],
            output_names=list(graph(graph.example)),
            custom_translation_table=TRANSLATIONS,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    remove_source_paths(model.graph)
    return model


def remove_source_paths(graph: GraphProto) -> None:
    """Removes the lines of code that torch notes for each node, with folders of the exporting machine."""
    graph.ClearField("metadata_props")
    for part in (*graph.node, *graph.value_info, *graph.input, *graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")


def quantize(x: Any, step: Any, zero: Any) -> Any:
    """`quantize.to_steps` in ONNX."""
    return op.QuantizeLinear(x, step, zero)


def integer_convolution(steps: Any, kernel: Any, zero: Any, stride: int, padding: int) -> Any:
    """`quantize.convolve_integers` in ONNX."""
    kernel_zero: Any = op.Constant(value=numpy_helper.from_array(np.array(KERNEL_ZERO, np.uint8)))
    return op.ConvInteger(steps, kernel, zero, kernel_zero, strides=[stride] * 2, pads=[padding] * 4)


def convolution_of_steps(
    steps: Any, kernel: Any, zero: Any, scale: Any, bias: Any, stride: int, pads: Sequence[int], groups: int
) -> Any:
    """`quantize.convolve_steps` in ONNX."""
    one: Any = op.Constant(value_float=1.0)
    kernel_zero: Any = op.Constant(value=numpy_helper.from_array(np.array(0, np.int8)))
    out_zero: Any = op.Constant(value=numpy_helper.from_array(np.array(0, np.uint8)))
    return op.QLinearConv(
        steps, one, zero, kernel, scale, kernel_zero, one, out_zero, bias, strides=[stride] * 2, pads=pads, group=groups
    )


def mean_axis_by_axis(x: Any, dim: Sequence[int], keepdim: bool = False) -> Any:
    """`Tensor.mean` in ONNX, one axis after the other.

    onnxruntime adds numbers one by one in float32. Over a whole feature map of nearly equal numbers, as in flat images,
    the last digits of a score would be lost.
    """
    axes: Any  # onnxscript leaves the type of a constant open
    for axis in sorted(dim, reverse=True):
        axes = op.Constant(value_ints=[axis])
        x = op.ReduceMean(x, axes, keepdims=1)
    axes = op.Constant(value_ints=dim)
    return x if keepdim else op.Squeeze(x, axes)


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    to_steps._opoverload: quantize,
    convolve_integers._opoverload: integer_convolution,
    convolve_steps._opoverload: convolution_of_steps,
    torch.ops.aten.mean.dim: mean_axis_by_axis,
}
