"""quantize_activations: linears whose kernels take rounded rows read rows rounded once."""

from __future__ import annotations

from collections.abc import Mapping

from ...runtime.dtypes import DType
from ..network import Network, Node, Value, Weight
from ..ops import make_node
from .base import Pass


class QuantizeActivations(Pass):
    """Puts one rounding behind each value that such linears read; those that agree share it.

    `rounded` says, by the format of a weight, what its activations become: Q8 (a quantize in the
    weight's groups) or BF16 (a round_bf16). Linears in other formats are left alone.
    """

    name = "quantize_activations"
    requires = ("assign_formats",)

    def __init__(self, rounded: Mapping[str, DType]) -> None:
        self._rounded = rounded

    def run(self, network: Network) -> bool:
        """Round the input of every linear whose weight's format asks for it."""
        made: dict[tuple[Value, DType, int, int], Value] = {}
        for node in list(network.nodes):
            source, weight = node.inputs[0], node.inputs[1] if node.op == "linear" else None
            if source is None or not isinstance(weight, Weight):
                continue
            dtype = self._rounded.get(weight.format)
            if dtype is None or source.dtype is dtype:
                continue
            key = source, dtype, weight.group, weight.rotation
            if key not in made:
                rounding = _rounding(network, source, dtype, weight)
                made[key] = network.insert_before(node, rounding).output
            network.set_input(node, 0, made[key])
        return bool(made)


def _rounding(network: Network, source: Value, dtype: DType, weight: Weight) -> Node:
    name = network.fresh_name(f"{source.name}_{dtype.value}")
    if dtype is DType.BF16:
        return make_node("round_bf16", [source], name)
    return make_node("quantize", [source], name, group=weight.group, rotation=weight.rotation)
