"""Verification refuses every kind of broken network, with the rule that it breaks."""

from collections.abc import Callable

import pytest

from enginewright.builder.network import Network, NetworkError, Node, Value
from enginewright.builder.ops import make_node
from enginewright.builder.passes.fuse_qkv import FuseQkv
from enginewright.builder.passes.split_attention import SplitAttention
from enginewright.builder.verify import verify
from enginewright.runtime.dtypes import DType
from tests.support.networks import FEATURES, make_network


def first(network: Network, op: str) -> Node:
    return next(node for node in network.nodes if node.op == op)


def swap_nodes(network: Network) -> None:
    network.nodes[3], network.nodes[4] = network.nodes[4], network.nodes[3]
    network.nodes.insert(0, network.nodes.pop(1))


def wrong_shape(network: Network) -> None:
    first(network, "silu").output.shape = ("tokens", 3)


def wrong_dtype(network: Network) -> None:
    first(network, "silu").output.dtype = DType.BF16


def wrong_attribute(network: Network) -> None:
    first(network, "rms_norm").attrs["epsilon"] = 1.0


def unknown_op(network: Network) -> None:
    first(network, "silu").op = "gelu"


def same_name(network: Network) -> None:
    first(network, "silu").output.name = first(network, "mul").output.name


def two_weights_of_a_name(network: Network) -> None:
    weights = network.weights()
    weights[1].name = weights[2].name


def unknown_format(network: Network) -> None:
    network.weights()[0].format = "int3"


def negative_group(network: Network) -> None:
    network.weights()[0].group = -1


def layer_twice(network: Network) -> None:
    first(network, "paged_attention").attrs["layer"] = 1


def undefined_output(network: Network) -> None:
    network.outputs = [Value("elsewhere", DType.F32, ("rows", 160))]


def output_not_logits(network: Network) -> None:
    network.outputs = [first(network, "gather_rows").output]


def books(network: Network) -> None:
    first(network, "add").inputs.reverse()
    first(network, "add").inputs[0] = network.inputs[1]


def another_layers_cache(network: Network) -> None:
    FuseQkv().run(network)
    SplitAttention().run(network)
    readers = [node for node in network.nodes if node.op == "attention"]
    network.set_input(readers[1], 1, readers[0].inputs[1])


def two_outputs(network: Network) -> None:
    x = network.nodes[0].output
    extra = make_node("silu", [x], "extra")
    extra.outputs.append(Value("more", DType.F32, x.shape))
    network.append(extra)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (swap_nodes, "used before it is defined"),
        (wrong_shape, "the op gives f32"),
        (wrong_dtype, "the op gives f32"),
        (wrong_attribute, "attributes"),
        (unknown_op, "unknown op 'gelu'"),
        (same_name, "two values have the name"),
        (two_weights_of_a_name, "two values have the name"),
        (unknown_format, "unknown format 'int3'"),
        (negative_group, "group -1"),
        (layer_twice, "by layers \\[1, 1, 2\\], expected each once"),
        (undefined_output, "elsewhere is not defined"),
        (output_not_logits, "expected logits"),
        (books, "the book of uses"),
        (another_layers_cache, "the KV write of another layer"),
        (two_outputs, "2 outputs, expected one"),
    ],
)
def test_a_broken_rule_is_named(break_it: Callable[[Network], None], message: str) -> None:
    network = make_network("llama")
    verify(network)
    break_it(network)
    with pytest.raises(NetworkError, match=message):
        verify(network)


@pytest.mark.parametrize("name", FEATURES)
def test_model_files_write_sound_networks(name: str) -> None:
    verify(make_network(name))
