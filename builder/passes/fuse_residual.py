"""fuse_residual: an addition moves into the linear that gives one of its terms."""

from __future__ import annotations

from ..network import Network, Node
from ..ops import make_node
from .base import Pass
from .fuse import is_plain_linear, only_user


class FuseResidual(Pass):
    """The sum is stored once, straight from the linear's accumulators."""

    name = "fuse_residual"

    def run(self, network: Network) -> bool:
        """Fuse every add with a plain linear that it alone reads; the later one if both are."""
        modified = False
        for node in list(network.nodes):
            linear = _term(network, node) if node.op == "add" else None
            if linear is None:
                continue
            residual = next(value for value in node.inputs if value is not linear.output)
            name = network.fresh_name(f"{node.output.name}_sum")
            fused = make_node("linear", [*linear.inputs[:3], residual], name)
            network.insert_before(node, fused)
            network.replace_all_uses(node.output, fused.output)
            network.remove(node)
            network.remove(linear)
            modified = True
        return modified


def _term(network: Network, addition: Node) -> Node | None:
    a, b = addition.inputs
    if a is b:
        return None
    linears = [
        producer
        for value in (a, b)
        if value is not None
        and (producer := network.producer(value)) is not None
        and is_plain_linear(producer)
        and only_user(network, value) is addition
    ]
    return max(linears, key=network.nodes.index, default=None)
