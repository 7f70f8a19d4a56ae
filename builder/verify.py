"""The rules that every network keeps; run after every pass."""

from __future__ import annotations

from ..runtime.dtypes import DType
from .network import ROWS, Network, NetworkError, Node, Value, Weight
from .ops import infer
from .printer import format_node
from .quantize.formats import FORMATS

_READS_CACHE = ("attention", "paged_attention")
_WRITES_CACHE = ("kv_write", "paged_attention")


def verify(network: Network) -> None:
    """Raise NetworkError if a rule is broken, with the rule and the node.

    The rules: the books agree with the nodes; names are unique; a value is defined before it is
    used; every node fits the op table and its output has the inferred type; weights have a known
    format; every layer's KV cache is written once and read once; the output is logits, or hidden
    states.
    """
    network.check()
    _check_names(network)
    defined: set[Value] = set(network.inputs)
    for node in network.nodes:
        for value in node.inputs:
            if value is not None and not isinstance(value, Weight) and value not in defined:
                raise _broken(node, f"{value.name} is used before it is defined")
        if len(node.outputs) != 1:
            raise _broken(node, f"{len(node.outputs)} outputs, expected one")
        _check_types(node)
        defined.update(node.outputs)
    for output in network.outputs:
        if output not in defined:
            raise NetworkError(f"the output {output.name} is not defined by any node")
    _check_weights(network)
    _check_cache(network)
    _check_output(network)


def _check_names(network: Network) -> None:
    owners: dict[str, Value] = {}
    values = [*network.inputs, *network.weights()]
    values += [value for node in network.nodes for value in node.outputs]
    for value in values:
        if owners.setdefault(value.name, value) is not value:
            raise NetworkError(f"two values have the name {value.name}")


def _check_types(node: Node) -> None:
    try:
        dtype, shape = infer(node.op, node.inputs, node.attrs)
    except NetworkError as error:
        raise _broken(node, str(error)) from error
    if (node.output.dtype, node.output.shape) != (dtype, shape):
        raise _broken(node, f"the op gives {dtype.value}{list(shape)}")


def _check_weights(network: Network) -> None:
    for weight in network.weights():
        if weight.format not in FORMATS:
            raise NetworkError(f"weight {weight.name} has the unknown format {weight.format!r}")
        if weight.group < 0:
            raise NetworkError(f"weight {weight.name} has the group {weight.group}")


def _check_cache(network: Network) -> None:
    for kind, ops in (("read", _READS_CACHE), ("written", _WRITES_CACHE)):
        layers = [node.attrs["layer"] for node in network.nodes if node.op in ops]
        if sorted(layers) != list(range(network.config.num_layers)):
            raise NetworkError(f"the KV cache is {kind} by layers {layers}, expected each once")
    for node in network.nodes:
        if node.op == "attention":
            cache = node.inputs[1]
            writer = network.producer(cache) if cache is not None else None
            if writer is None or writer.attrs["layer"] != node.attrs["layer"]:
                raise _broken(node, "it waits for the KV write of another layer")


def _check_output(network: Network) -> None:
    sizes = [network.config.vocab_size]
    if any(_is_normed(network, output) for output in network.outputs):
        sizes.append(network.config.hidden_size)
    found = [(output.dtype, output.shape) for output in network.outputs]
    if not any(found == [(DType.F32, (ROWS, size))] for size in sizes):
        raise NetworkError(
            f"the outputs are {network.outputs}, expected logits f32[rows, vocab] or normed "
            "hidden states f32[rows, hidden]"
        )


def _is_normed(network: Network, value: Value) -> bool:
    producer = network.producer(value)
    return producer is not None and producer.op == "rms_norm"


def _broken(node: Node, rule: str) -> NetworkError:
    return NetworkError(f"{format_node(node)}: {rule}")
