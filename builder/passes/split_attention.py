"""split_attention: the KV write of an attention becomes a node of its own."""

from __future__ import annotations

from ..network import Network
from ..ops import make_node
from .base import Pass


class SplitAttention(Pass):
    """Lets a target fuse the write with what makes keys and values, and place it freely."""

    name = "split_attention"
    requires = ("fuse_qkv",)

    def run(self, network: Network) -> bool:
        """Split every paged_attention into kv_write and attention."""
        modified = False
        for node in list(network.nodes):
            if node.op != "paged_attention":
                continue
            q, k, v, batch = node.inputs
            attrs = node.attrs
            cache = {name: attrs[name] for name in ("layer", "num_kv_heads", "head_dim")}
            name = network.fresh_name(f"{node.output.name}.cache")
            write = network.insert_before(node, make_node("kv_write", [k, v, batch], name, **cache))
            name = network.fresh_name(f"{node.output.name}.mixed")
            read = make_node("attention", [q, write.output, batch], name, **attrs)
            network.insert_before(node, read)
            network.replace_all_uses(node.output, read.output)
            network.remove(node)
            modified = True
        return modified
