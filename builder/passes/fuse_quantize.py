"""fuse_quantize: rounding moves into the op that gives the rounded value."""

from __future__ import annotations

from ..network import Network, Node
from ..ops import make_node
from .base import Pass
from .fuse import only_user


class FuseQuantize(Pass):
    """A norm and a gated product that only a quantize reads give int8 rows themselves."""

    name = "fuse_quantize"
    requires = ("quantize_activations",)

    def run(self, network: Network) -> bool:
        """Fuse every quantize with the norm or the gated linear before it."""
        modified = False
        for node in list(network.nodes):
            maker = _maker(network, node) if node.op == "quantize" else None
            if maker is None:
                continue
            inputs = maker.inputs[:3]  # of a gated linear: it has no residual
            name = network.fresh_name(node.output.name)
            fused = make_node(f"{maker.op}_quantize", inputs, name, **maker.attrs, **node.attrs)
            network.insert_before(node, fused)
            network.replace_all_uses(node.output, fused.output)
            network.remove(node)
            network.remove(maker)
            modified = True
        return modified


def _maker(network: Network, quantize: Node) -> Node | None:
    """Return the node whose output `quantize` alone reads, if it can round that itself."""
    source = quantize.inputs[0]
    maker = None if source is None else network.producer(source)
    if maker is None or source is None or only_user(network, source) is not quantize:
        return None
    gated = maker.op == "linear" and maker.attrs["epilogue"] == "swiglu"
    whole = maker.op == "rms_norm" and source.shape[-1] == _width(maker)
    return maker if gated or whole else None


def _width(norm: Node) -> object:
    weight = norm.inputs[1]
    assert weight is not None
    return weight.shape[-1]
