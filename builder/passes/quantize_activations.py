"""quantize_activations: linears with integer weights read rows that were quantized once."""

from __future__ import annotations

from ...runtime.dtypes import DType
from ..network import Network, Node, Value, Weight
from ..ops import make_node
from ..quantize.formats import FORMATS
from .base import Pass


class QuantizeActivations(Pass):
    """Puts one quantize behind each value that such linears read; those that agree share it."""

    name = "quantize_activations"
    requires = ("assign_formats",)

    def run(self, network: Network) -> bool:
        """Quantize the input of every linear whose weight's format multiplies integers."""
        quantized: dict[tuple[Value, int, int], Value] = {}
        for node in list(network.nodes):
            source, weight = node.inputs[0], _integer_weight(node)
            if source is None or weight is None or source.dtype is DType.Q8:
                continue
            key = source, weight.group, weight.rotation
            if key not in quantized:
                name = network.fresh_name(f"{source.name}_q8")
                quantize = make_node(
                    "quantize", [source], name, group=weight.group, rotation=weight.rotation
                )
                quantized[key] = network.insert_before(node, quantize).output
            network.set_input(node, 0, quantized[key])
        return bool(quantized)


def _integer_weight(node: Node) -> Weight | None:
    """The weight of a linear whose format multiplies integers."""
    weight = node.inputs[1] if node.op == "linear" else None
    if isinstance(weight, Weight) and FORMATS[weight.format].quantizes_activations:
        return weight
    return None
