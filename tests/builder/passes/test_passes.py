"""Every pass rewrites what it is for, leaves alone what it is not, and keeps the logits."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from enginewright.builder.config import BuildConfig
from enginewright.builder.network import Network, NetworkError, Node, Weight
from enginewright.builder.ops import make_node
from enginewright.builder.passes.base import Pass
from enginewright.builder.passes.dead_code import DeadCode
from enginewright.builder.passes.fuse import joined_name
from enginewright.builder.passes.fuse_gate_up import FuseGateUp
from enginewright.builder.passes.fuse_qkv import FuseQkv
from enginewright.builder.passes.fuse_quantize import FuseQuantize
from enginewright.builder.passes.fuse_residual import FuseResidual
from enginewright.builder.passes.fuse_swiglu_epilogue import FuseSwigluEpilogue
from enginewright.builder.passes.pipeline import make_passes, run_passes, run_pipeline
from enginewright.builder.passes.quantize_activations import QuantizeActivations
from enginewright.builder.passes.split_attention import SplitAttention
from enginewright.builder.printer import format_network
from enginewright.builder.verify import verify
from enginewright.runtime.dtypes import DType
from tests.support.networks import FEATURES, logits_of, make_network

CONFIGS = {
    weights: BuildConfig(weights=weights, head_weights=head)
    for weights, head in (("f32", None), ("bf16", None), ("int8", None), ("int8", "bf16"))
}
EXACT_UP_TO_SUM_ORDER = 2e-4  # logits of the tied models reach 30


def count_ops(network: Network) -> Counter[str]:
    return Counter(node.op for node in network.nodes)


def first(network: Network, op: str) -> Node:
    return next(node for node in network.nodes if node.op == op)


def assert_untouched(network: Network, step: Pass) -> None:
    before = format_network(network)
    assert not step.run(network)
    assert format_network(network) == before
    verify(network)


@pytest.mark.parametrize("config", [BuildConfig(weights=w) for w in ("f32", "bf16", "int8")])
@pytest.mark.parametrize("name", FEATURES)
def test_every_pass_keeps_the_contract(name: str, config: BuildConfig) -> None:
    network = make_network(name)
    logits = logits_of(network)
    for step in make_passes(config):
        printed = format_network(network)
        modified = step.run(network)
        verify(network)
        assert modified == (format_network(network) != printed), step.name
        if step.name != "quantize_activations":
            found = logits_of(network)
            np.testing.assert_allclose(found, logits, atol=EXACT_UP_TO_SUM_ORDER, rtol=0)
        else:
            found = logits_of(network)
            assert np.abs(found - logits).mean() < 0.03 * logits.std()
            logits = found
    for step in make_passes(config):
        assert_untouched(network, step)


def test_qkv_becomes_one_linear_and_three_slices() -> None:
    network = make_network("qwen2")
    before = count_ops(network)
    assert FuseQkv().run(network)
    verify(network)
    after = count_ops(network)
    assert before["linear"] - after["linear"] == 2 * 3
    assert after["slice"] == 3 * 3
    linear = first(network, "linear")
    weight, bias = linear.inputs[1:3]
    assert isinstance(weight, Weight)
    assert isinstance(bias, Weight)
    assert (weight.name, weight.shape) == ("layers.0.attention.q_k_v.weight", (128, 64))
    assert (bias.name, bias.shape) == ("layers.0.attention.q_k_v.bias", (128,))
    assert np.array_equal(weight.load(), np.concatenate([part.load() for part in weight.parts]))


def read_a_query_twice(network: Network) -> None:
    query = first(network, "rope").output
    add = first(network, "add")
    silu = network.insert_before(add, make_node("silu", [query], "peek"))
    network.set_input(add, 0, silu.output)


def norm_one_input_apart(network: Network) -> None:
    linear = first(network, "linear")
    source = linear.inputs[0]
    other = network.insert_before(linear, make_node("silu", [source], "apart"))
    network.set_input(linear, 0, other.output)


def drop_one_bias(network: Network) -> None:
    network.set_input(first(network, "linear"), 2, None)


@pytest.mark.parametrize("change", [read_a_query_twice, norm_one_input_apart, drop_one_bias])
def test_qkv_that_cannot_be_one_stays(change: Callable[[Network], None]) -> None:
    network = make_network("qwen2", num_layers=1)
    change(network)
    assert_untouched(network, FuseQkv())


def test_gate_and_up_become_one_linear_and_a_swiglu() -> None:
    network = make_network("llama-biases")
    assert FuseGateUp().run(network)
    verify(network)
    ops = count_ops(network)
    assert (ops["swiglu"], ops["silu"], ops["mul"]) == (3, 0, 0)
    fused = network.producer(first(network, "swiglu").inputs[0] or network.inputs[0])
    assert fused is not None
    weight = fused.inputs[1]
    assert isinstance(weight, Weight)
    assert [part.name for part in weight.parts] == [
        "layers.0.mlp.gate.weight",
        "layers.0.mlp.up.weight",
    ]


def test_the_factors_of_a_gate_may_be_swapped() -> None:
    network = make_network("llama")
    logits = logits_of(network)
    for node in network.nodes:
        if node.op == "mul":
            a, b = node.inputs
            network.set_input(node, 0, b)
            network.set_input(node, 1, a)
    assert FuseGateUp().run(network)
    assert count_ops(network)["swiglu"] == 3
    np.testing.assert_allclose(logits_of(network), logits, atol=EXACT_UP_TO_SUM_ORDER)


def test_a_gate_that_is_read_elsewhere_stays() -> None:
    network = make_network("llama", num_layers=1)
    mul = first(network, "mul")
    gate = first(network, "silu").inputs[0]
    again = network.insert_before(mul, make_node("add", [gate, gate], "again"))
    network.set_input(mul, 1, again.output)
    assert_untouched(network, FuseGateUp())


def test_a_swiglu_moves_into_its_linear() -> None:
    network = make_network("llama-biases")
    FuseGateUp().run(network)
    assert FuseSwigluEpilogue().run(network)
    verify(network)
    assert count_ops(network)["swiglu"] == 0
    gated = [node for node in network.nodes if node.attrs.get("epilogue") == "swiglu"]
    assert [node.output.shape for node in gated] == [("tokens", 128)] * 3
    assert all(node.inputs[2] is not None for node in gated)


def test_a_wide_product_that_is_read_elsewhere_stays() -> None:
    network = make_network("llama", num_layers=1)
    FuseGateUp().run(network)
    swiglu = first(network, "swiglu")
    other = network.insert_after(swiglu, make_node("swiglu", [swiglu.inputs[0]], "other"))
    add = network.insert_after(other, make_node("add", [swiglu.output, other.output], "both"))
    reader = network.users(swiglu.output)[0]
    network.set_input(reader, 0, add.output)
    verify(network)
    assert_untouched(network, FuseSwigluEpilogue())


def test_additions_move_into_their_linears() -> None:
    network = make_network("qwen2")
    assert FuseResidual().run(network)
    verify(network)
    assert count_ops(network)["add"] == 0
    with_residual = [n for n in network.nodes if n.op == "linear" and n.inputs[3] is not None]
    assert len(with_residual) == 2 * 3


def test_of_two_linears_the_later_takes_the_sum() -> None:
    network = make_network("llama", num_layers=1)
    q = first(network, "linear")
    weight = q.inputs[1]
    a = network.insert_after(q, make_node("linear", [q.inputs[0], weight], "a"))
    b = network.insert_after(a, make_node("linear", [q.inputs[0], weight], "b"))
    both = network.insert_after(b, make_node("add", [b.output, a.output], "both"))
    network.set_input(first(network, "rope"), 0, both.output)
    network.remove(q)
    logits = logits_of(network)
    assert FuseResidual().run(network)
    verify(network)
    fused = network.producer(first(network, "rope").inputs[0] or network.inputs[0])
    assert fused is not None
    assert fused.inputs[3] is a.output
    np.testing.assert_allclose(logits_of(network), logits, atol=EXACT_UP_TO_SUM_ORDER)


def test_a_term_that_is_read_elsewhere_stays() -> None:
    network = make_network("llama", num_layers=1)
    FuseResidual().run(network)
    last = [node for node in network.nodes if node.op == "linear"][-2]  # down, with its residual
    doubled = network.insert_after(last, make_node("add", [last.output, last.output], "doubled"))
    network.set_input(first(network, "gather_rows"), 0, doubled.output)
    assert_untouched(network, FuseResidual())


def formats_of(network: Network) -> dict[str, tuple[str, int]]:
    return {weight.name: (weight.format, weight.group) for weight in network.weights()}


@pytest.mark.parametrize(
    ("weights", "head", "expected"),
    [
        ("f32", None, {"embedding": "f32", "head": "f32", "layers.0.mlp.down": "f32"}),
        ("f32", "int8", {"embedding": "f32", "head": "int8", "layers.0.mlp.down": "f32"}),
        ("bf16", None, {"embedding": "bf16", "head": "bf16", "layers.0.mlp.down": "bf16"}),
        ("int8", None, {"embedding": "bf16", "head": "int8", "layers.0.mlp.gate_up": "int8"}),
        ("int4", None, {"embedding": "bf16", "head": "int8", "layers.0.mlp.down": "uint4"}),
        ("int8", "f32", {"embedding": "bf16", "head": "f32", "layers.0.attention.q_k_v": "int8"}),
    ],
)
def test_formats_follow_the_configuration(
    weights: str, head: str | None, expected: dict[str, str]
) -> None:
    network = make_network("qwen2", tie_word_embeddings=False)
    run_pipeline(network, BuildConfig(weights=weights, head_weights=head, group=64))
    formats = formats_of(network)
    for name, format in expected.items():
        assert formats[f"{name}.weight"] == (format, {"int8": 64, "uint4": 32}.get(format, 0))
    for name in ("final_norm.weight", "rope.table", "layers.1.attention.q_k_v.bias"):
        assert formats[name] == ("f32", 0)


@pytest.mark.parametrize("head", ["f32", "bf16", "int8"])
def test_a_table_shared_with_the_head_has_the_heads_format(head: str) -> None:
    network = make_network("qwen2", tie_word_embeddings=True)
    run_pipeline(network, BuildConfig(weights="bf16", head_weights=head))
    assert formats_of(network)["embedding.weight"][0] == head


def test_norms_and_gated_products_round_their_own_output() -> None:
    network = run_pipeline(make_network("llama"), BuildConfig(weights="int8"))
    ops = count_ops(network)
    layers = network.config.num_layers
    assert ops["rms_norm_quantize"] == 2 * layers + 1  # the last one is the head's
    assert ops["linear_quantize"] == ops["quantize"] == layers  # attention's output is left
    assert ops["rms_norm"] == 0


def test_what_others_read_too_is_not_fused_with_its_rounding() -> None:
    network = make_network("llama")
    normed = next(node for node in network.nodes if node.op == "rms_norm").output
    rounded = make_node("quantize", [normed], "rounded", group=64, rotation=0)
    network.insert_before(network.users(normed)[0], rounded)
    assert not FuseQuantize().run(network)


def test_one_quantize_serves_all_readers_of_a_value() -> None:
    network = make_network("llama", num_layers=1)
    for weight in network.weights():
        if weight.name.endswith(("q.weight", "k.weight", "gate.weight")):
            weight.format, weight.group, weight.rotation = "int8", 64, 64
    assert QuantizeActivations().run(network)
    verify(network)
    quantizes = [node for node in network.nodes if node.op == "quantize"]
    assert [node.attrs for node in quantizes] == [{"group": 64, "rotation": 64}] * 2
    assert [node.op for node in network.users(quantizes[0].output)] == ["linear", "linear"]
    unquantized = [n for n in network.nodes if n.op == "linear" and n.inputs[1] is not None]
    assert sum(n.inputs[0] is not None and n.inputs[0].dtype is DType.Q8 for n in unquantized) == 3


def test_float_weights_read_float_rows() -> None:
    assert_untouched(make_network("llama"), QuantizeActivations())


def test_an_attention_is_split_into_write_and_read() -> None:
    network = make_network("mistral")
    paged = first(network, "paged_attention")
    assert SplitAttention().run(network)
    verify(network)
    ops = count_ops(network)
    assert (ops["paged_attention"], ops["kv_write"], ops["attention"]) == (0, 3, 3)
    write, read = first(network, "kv_write"), first(network, "attention")
    assert write.inputs == paged.inputs[1:]
    assert read.attrs == paged.attrs
    assert read.inputs[1] is write.output


def test_a_chain_that_nothing_reads_goes_at_once() -> None:
    network = make_network("llama")
    printed = format_network(network)
    tail = network.nodes[3]
    for name in ("one", "two", "three"):
        tail = network.insert_after(tail, make_node("silu", [tail.output], name))
    assert DeadCode().run(network)
    assert format_network(network) == printed
    assert_untouched(network, DeadCode())


def test_names_of_fused_things_tell_their_parts() -> None:
    assert joined_name(["a.q.weight", "a.k.weight", "a.v.weight"]) == "a.q_k_v.weight"
    assert joined_name(["a.mlp.gate", "a.mlp.up"]) == "a.mlp.gate_up"
    assert joined_name(["one", "two"]) == "one_two"
    assert joined_name(["a.x.q", "a.y.k"]) == "a.x.q_y.k"


def test_the_pipeline_dumps_and_tells_every_pass(tmp_path: Path) -> None:
    told: list[tuple[str, bool]] = []
    network = make_network("llama")
    config = BuildConfig(weights="f32")
    run_pipeline(
        network,
        config,
        dump_dir=tmp_path / "deep" / "dumps",
        observer=lambda name, modified, seconds: told.append((name, modified and seconds >= 0)),
    )
    names = [step.name for step in make_passes(config)]
    assert [name for name, _ in told] == names
    assert dict(told)["fuse_qkv"]
    assert not dict(told)["dead_code"]
    files = sorted(path.name for path in (tmp_path / "deep" / "dumps").iterdir())
    assert files == [f"{i:02d}-{name}.txt" for i, name in enumerate(["model", *names])]
    last = (tmp_path / "deep" / "dumps" / files[-1]).read_text()
    assert last == format_network(network)


def test_a_pass_out_of_order_is_refused() -> None:
    with pytest.raises(NetworkError, match="fuse_swiglu_epilogue needs fuse_gate_up"):
        run_passes(make_network("llama"), [FuseSwigluEpilogue()])


def test_a_pass_that_breaks_the_network_is_named() -> None:
    class Vandal(Pass):
        name = "vandal"

        def run(self, network: Network) -> bool:
            first(network, "silu").output.shape = ("tokens", 1)
            return True

    with pytest.raises(NetworkError, match=r"after vandal: .*the op gives"):
        run_passes(make_network("llama"), [Vandal()])
