"""fuse_swiglu_epilogue: a swiglu moves into the linear that feeds it."""

from __future__ import annotations

from ..network import Network
from ..ops import make_node
from .base import Pass
from .fuse import is_plain_linear, only_user


class FuseSwigluEpilogue(Pass):
    """The wide product is never stored: each half is activated while it is in registers."""

    name = "fuse_swiglu_epilogue"
    requires = ("fuse_gate_up",)

    def run(self, network: Network) -> bool:
        """Fuse every swiglu that alone reads a plain linear."""
        modified = False
        for node in list(network.nodes):
            source = node.inputs[0] if node.op == "swiglu" else None
            linear = network.producer(source) if source is not None else None
            if source is None or linear is None or not is_plain_linear(linear):
                continue
            if only_user(network, source) is None:
                continue
            name = network.fresh_name(f"{source.name}_gated")
            fused = make_node("linear", linear.inputs[:3], name, epilogue="swiglu")
            network.insert_before(node, fused)
            network.replace_all_uses(node.output, fused.output)
            network.remove(node)
            network.remove(linear)
            modified = True
        return modified
