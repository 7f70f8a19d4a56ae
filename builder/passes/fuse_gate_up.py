"""fuse_gate_up: gate and up projection, silu and product become one linear and a swiglu."""

from __future__ import annotations

from ..network import Network, Node
from ..ops import make_node
from .base import Pass
from .fuse import can_stack, is_plain_linear, only_user, stacked_linear


class FuseGateUp(Pass):
    """Finds mul(silu(linear(x)), linear(x)), in either order of the factors."""

    name = "fuse_gate_up"

    def run(self, network: Network) -> bool:
        """Fuse every gated product whose parts nothing else reads."""
        modified = False
        for node in list(network.nodes):
            if node.op == "mul":
                modified |= self._fuse(network, node)
        return modified

    def _fuse(self, network: Network, product: Node) -> bool:
        for gated, other in (product.inputs, reversed(product.inputs)):
            if gated is None or other is None:
                continue
            silu, up = network.producer(gated), network.producer(other)
            if silu is None or silu.op != "silu" or up is None or not is_plain_linear(up):
                continue
            source = silu.inputs[0]
            gate = network.producer(source) if source is not None else None
            if gate is None or not is_plain_linear(gate) or not can_stack([gate, up]):
                continue
            if any(only_user(network, node.output) is None for node in (silu, gate, up)):
                continue
            fused = network.insert_before(product, stacked_linear(network, [gate, up]))
            name = network.fresh_name(f"{product.output.name}_swiglu")
            result = network.insert_before(product, make_node("swiglu", [fused.output], name))
            network.replace_all_uses(product.output, result.output)
            for node in (product, silu, gate, up):
                network.remove(node)
            return True
        return False
