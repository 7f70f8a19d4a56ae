"""fuse_qkv: the three projections of an attention become one linear and three slices."""

from __future__ import annotations

from ..network import Network, Node, Value
from ..ops import make_node
from .base import Pass
from .fuse import can_stack, is_plain_linear, only_user, stacked_linear


class FuseQkv(Pass):
    """Reads the input once, and gives the target one large matrix product instead of three."""

    name = "fuse_qkv"

    def run(self, network: Network) -> bool:
        """Fuse every attention whose q, k and v come from linears of one input."""
        modified = False
        for node in list(network.nodes):
            if node.op == "paged_attention":
                linears = [_projection(network, value) for value in node.inputs[:3]]
                found = [linear for linear in linears if linear is not None]
                if len(found) == 3 and can_stack(found):
                    _fuse(network, found)
                    modified = True
        return modified


def _projection(network: Network, value: Value | None) -> Node | None:
    """Walk up from an attention's input through norm and rotation to the linear, if any."""
    while value is not None and only_user(network, value) is not None:
        node = network.producer(value)
        if node is None or is_plain_linear(node):
            return node
        if node.op not in ("rope", "rms_norm"):
            return None
        value = node.inputs[0]
    return None


def _fuse(network: Network, linears: list[Node]) -> None:
    first = min(linears, key=network.nodes.index)
    fused = network.insert_before(first, stacked_linear(network, linears))
    start, last = 0, fused
    for linear in linears:
        size = int(linear.output.shape[-1])
        name = network.fresh_name(f"{linear.output.name}_rows")
        part = make_node("slice", [fused.output], name, start=start, size=size)
        last = network.insert_after(last, part)
        network.replace_all_uses(linear.output, part.output)
        network.remove(linear)
        start += size
