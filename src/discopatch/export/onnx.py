"""The graph as an ONNX file, in which the anomaly map is a branch that can be left out at run time."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnxscript import opset18 as op

from discopatch.explain.anomaly_map import ANOMALY_MAP_SIZE
from discopatch.export.graph import DYNAMIC_SHAPES, DetectorGraph, quiet_torch, trace
from discopatch.export.metadata import ANOMALY_MAP, PIXELS, WITH_ANOMALY_MAP
from discopatch.export.quantize import KERNEL_ZERO, convolve_integers, to_steps
from discopatch.export.quantize_inverted import convolve_steps


def write_onnx(graph: DetectorGraph, path: Path) -> None:
    """Writes one file that holds the weights too."""
    model = to_onnx(graph)
    make_anomaly_map_optional(model.graph)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def to_onnx(graph: DetectorGraph) -> ModelProto:
    """The model as torch's exporter translates it; it always computes the anomaly map."""
    traced = trace(graph)
    with quiet_torch():
        program = torch.onnx.export(
            traced,
            dynamic_shapes=DYNAMIC_SHAPES,  # for the name of the dimension
            dynamo=True,
            opset_version=18,
            input_names=[PIXELS],
            output_names=list(graph.outputs),
            custom_translation_table=TRANSLATIONS,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    remove_source_paths(model.graph)
    return model


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
    """`quantize_inverted.convolve_steps` in ONNX."""
    one: Any = op.Constant(value_float=1.0)
    kernel_zero: Any = op.Constant(value=numpy_helper.from_array(np.array(0, np.int8)))
    out_zero: Any = op.Constant(value=numpy_helper.from_array(np.array(0, np.uint8)))
    return op.QLinearConv(
        steps, one, zero, kernel, scale, kernel_zero, one, out_zero, bias, strides=[stride] * 2, pads=pads, group=groups
    )


def mean_axis_by_axis(x: Any, dim: Sequence[int], keepdim: bool = False) -> Any:
    """`Tensor.mean` in ONNX.

    onnxruntime adds up one number after the other in float32: over a whole feature map at once, thousands of nearly
    equal ones would lose their last digits, and scores of flat images with them.
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


def remove_source_paths(graph: GraphProto) -> None:
    """Torch notes for every node the line of code that it came from, with the folders of the exporting machine."""
    graph.ClearField("metadata_props")
    for part in (*graph.node, *graph.value_info, *graph.input, *graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")


def make_anomaly_map_optional(graph: GraphProto) -> None:
    """Moves what only the anomaly map needs into an If; its condition is an input that is true unless it is given."""
    nodes = list(graph.node)
    shared = needed_nodes(nodes, [each.name for each in graph.output if each.name != ANOMALY_MAP])
    own = [node for index, node in enumerate(nodes) if index not in shared]
    for node in own:  # a branch must not use a name from outside for a value of its own
        node.output[:] = ["computed_map" if name == ANOMALY_MAP else name for name in node.output]
    choice = helper.make_node(
        "If",
        [WITH_ANOMALY_MAP],
        [ANOMALY_MAP],
        then_branch=map_branch(own, "computed_map"),
        else_branch=map_branch(zero_map("zero_map"), "zero_map"),
    )
    kept = [node for index, node in enumerate(nodes) if index in shared]
    del graph.node[:]
    graph.node.extend([*kept, choice])
    graph.input.append(helper.make_tensor_value_info(WITH_ANOMALY_MAP, TensorProto.BOOL, []))
    graph.initializer.append(numpy_helper.from_array(np.array(True), WITH_ANOMALY_MAP))


def needed_nodes(nodes: Sequence[NodeProto], names: Sequence[str]) -> set[int]:
    """The indices of all nodes that these values are computed from."""
    sources = {name: index for index, node in enumerate(nodes) for name in node.output}
    found: set[int] = set()
    open_ends = list(names)
    while open_ends:
        index = sources.get(open_ends.pop())
        if index is not None and index not in found:
            found.add(index)
            open_ends.extend(nodes[index].input)
    return found


def map_branch(nodes: Sequence[NodeProto], output: str) -> GraphProto:
    shape: list[str | int] = ["images", ANOMALY_MAP_SIZE, ANOMALY_MAP_SIZE]
    return helper.make_graph(nodes, output, [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)])


def zero_map(output: str) -> list[NodeProto]:
    """Nodes for (images, 64, 64) zeros."""
    sides = numpy_helper.from_array(np.full(2, ANOMALY_MAP_SIZE, np.int64))
    zero = numpy_helper.from_array(np.zeros(1, np.float32))
    return [
        helper.make_node("Shape", [PIXELS], ["image_count"], start=0, end=1),
        helper.make_node("Constant", [], ["map_sides"], value=sides),
        helper.make_node("Concat", ["image_count", "map_sides"], ["map_shape"], axis=0),
        helper.make_node("ConstantOfShape", ["map_shape"], [output], value=zero),
    ]
