"""The heatmap, which takes most of the time, as a branch of the ONNX graph that can be left out when it runs."""

from collections.abc import Sequence

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from discopatch.deploy.sidecar import HEAT, WITH_HEAT
from discopatch.scoring.regions import CELLS


def make_heat_a_choice(graph: GraphProto) -> None:
    """Moves what only the heatmap needs into a branch; an input that is true unless it is given chooses it."""
    nodes, pixels = list(graph.node), graph.input[0].name
    shared = needed_for(nodes, [each.name for each in graph.output if each.name != HEAT])
    (heat,) = (each for each in graph.output if each.name == HEAT)
    own = [node for place, node in enumerate(nodes) if place not in shared]
    with_heat = helper.make_graph(ending_in(own, "hot"), "with_heat", [], [like(heat, "hot")])
    without = helper.make_graph(zeros(pixels, "cold"), "without_heat", [], [like(heat, "cold")])
    chosen = helper.make_node("If", [WITH_HEAT], [HEAT], then_branch=with_heat, else_branch=without)
    kept = [node for place, node in enumerate(nodes) if place in shared]
    del graph.node[:]
    graph.node.extend([*kept, chosen])
    graph.input.append(helper.make_tensor_value_info(WITH_HEAT, TensorProto.BOOL, []))
    graph.initializer.append(numpy_helper.from_array(np.array(True), WITH_HEAT))


def needed_for(nodes: Sequence[NodeProto], names: Sequence[str]) -> set[int]:
    """The places of all nodes that these values come from."""
    makers = {name: place for place, node in enumerate(nodes) for name in node.output}
    found: set[int] = set()
    open_ends = list(names)
    while open_ends:
        place = makers.get(open_ends.pop())
        if place is not None and place not in found:
            found.add(place)
            open_ends.extend(nodes[place].input)
    return found


def ending_in(nodes: Sequence[NodeProto], name: str) -> list[NodeProto]:
    """Copies, the heatmap under another name: a branch must not name what is named outside."""
    copies = []
    for node in nodes:
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.output[:] = [name if each == HEAT else each for each in node.output]
        copies.append(copy)
    return copies


def zeros(pixels: str, name: str) -> list[NodeProto]:
    """No heat anywhere, for as many images as there are."""
    cells = numpy_helper.from_array(np.array([CELLS, CELLS], np.int64))
    return [
        helper.make_node("Shape", [pixels], ["images_there"], start=0, end=1),
        helper.make_node("Constant", [], ["cells"], value=cells),
        helper.make_node("Concat", ["images_there", "cells"], ["cold_shape"], axis=0),
        helper.make_node(
            "ConstantOfShape", ["cold_shape"], [name], value=numpy_helper.from_array(np.zeros(1, np.float32))
        ),
    ]


def like(value: ValueInfoProto, name: str) -> ValueInfoProto:
    """The same type and shape under another name."""
    copy = ValueInfoProto()
    copy.CopyFrom(value)
    copy.name = name
    return copy
