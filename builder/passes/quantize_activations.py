"""quantize_activations: linears with integer weights read rows that were quantized once."""

from __future__ import annotations

from ...runtime.dtypes import DType
from ..config import BuildConfig
from ..network import Network, Node, Value, Weight
from ..ops import make_node
from ..quantize.formats import FORMATS
from .base import Pass


class QuantizeActivations(Pass):
    """Puts one quantize behind each value that such linears read, shared by all of them."""

    name = "quantize_activations"
    requires = ("assign_formats",)

    def __init__(self, config: BuildConfig) -> None:
        self._group = config.group

    def run(self, network: Network) -> bool:
        """Quantize the input of every linear whose weight's format multiplies integers."""
        quantized: dict[Value, Value] = {}
        for node in list(network.nodes):
            source = node.inputs[0] if _multiplies_integers(node) else None
            if source is None or source.dtype is DType.Q8:
                continue
            if source not in quantized:
                name = network.fresh_name(f"{source.name}_q8")
                quantize = make_node("quantize", [source], name, group=self._group)
                quantized[source] = network.insert_before(node, quantize).output
            network.set_input(node, 0, quantized[source])
        return bool(quantized)


def _multiplies_integers(node: Node) -> bool:
    weight = node.inputs[1] if node.op == "linear" else None
    return isinstance(weight, Weight) and FORMATS[weight.format].quantizes_activations
