"""Networks as text: one line a node, for people and for comparing two networks."""

from __future__ import annotations

from .network import Network, Node, Value, Weight


def format_network(network: Network) -> str:
    """Return the whole network: inputs, nodes in order with types and attributes, outputs."""
    lines = [f"network of {network.config.family}"]
    lines += [f"input %{_typed(value)}" for value in network.inputs]
    lines += [format_node(node) for node in network.nodes]
    lines += [f"output %{_typed(value)}" for value in network.outputs]
    return "\n".join(lines) + "\n"


def format_node(node: Node) -> str:
    """Return one node, as in `%y f32[tokens, 64] = linear(%x, @w f32[64, 32] as bf16, -, -)`."""
    outputs = ", ".join(f"%{_typed(value)}" for value in node.outputs)
    inputs = ", ".join(_operand(value) for value in node.inputs)
    attrs = ", ".join(f"{name}={value!r}" for name, value in sorted(node.attrs.items()))
    return f"{outputs} = {node.op}({inputs})" + (f" {{{attrs}}}" if attrs else "")


def _typed(value: Value) -> str:
    return f"{value.name} {value.dtype.value}[{', '.join(map(str, value.shape))}]"


def _operand(value: Value | None) -> str:
    if value is None:
        return "-"
    if not isinstance(value, Weight):
        return f"%{value.name}"
    group = f"/{value.group}" if value.group else ""
    rotated = f" rotated by {value.rotation}" if value.rotation else ""
    return f"@{_typed(value)} as {value.format}{group}{rotated}"
