"""Repeating layers are found with their period, and rebuilt from the roll they are the network."""

from typing import Any

import pytest

from enginewright.builder.config import BuildConfig
from enginewright.builder.network import Network, Value, Weight
from enginewright.builder.ops import make_node
from enginewright.builder.passes.pipeline import run_pipeline
from enginewright.builder.passes.roll_layers import RolledNetwork, roll_layers
from enginewright.builder.printer import format_network
from tests.support.networks import FEATURES, make_network


def roll(name: str, weights: str = "int8", **overrides: Any) -> tuple[Network, RolledNetwork]:
    network = run_pipeline(make_network(name, **overrides), BuildConfig(weights=weights))
    printed = format_network(network)
    rolled = roll_layers(network)
    assert format_network(network) == printed, "an analysis changes nothing"
    return network, rolled


def assert_unrolls(network: Network, rolled: RolledNetwork) -> None:
    """Walk the loop as a target does, and arrive at the very nodes of the network."""
    body = rolled.body
    carried: dict[Value, Value] = {pair.initial: pair.initial for pair in rolled.carried}
    nodes = list(rolled.prefix)
    names: dict[Value, Value] = {}
    for t in range(rolled.count):
        weights = iter(rolled.weights_of(t))
        names = {}
        for template, node in zip(body, rolled.iterations[t], strict=True):
            assert node.op == template.op
            grown = {**template.attrs}
            if "layer" in grown:
                grown["layer"] += t * rolled.layers
            assert node.attrs == grown
            for before, value in zip(template.inputs, node.inputs, strict=True):
                if isinstance(before, Weight):
                    assert value is next(weights)
                elif before is not None:
                    assert value is carried.get(before, names.get(before, before))
            names[template.output] = node.output
            nodes.append(node)
        carried = {pair.initial: names[pair.next] for pair in rolled.carried}
    for result in rolled.results:
        assert names[result.body] is result.value
    assert nodes + rolled.suffix == network.nodes


@pytest.mark.parametrize("weights", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("name", FEATURES)
def test_uniform_layers_are_one_body(name: str, weights: str) -> None:
    network, rolled = roll(name, weights, num_layers=5)
    assert (rolled.count, rolled.layers) == (5, 1)
    assert [node.op for node in rolled.prefix] == ["embedding"]
    assert rolled.body[0].op.startswith("rms_norm")
    assert "gather_rows" in [node.op for node in rolled.suffix]
    assert len(rolled.carried) == len(rolled.results) == 1
    assert rolled.carried[0].initial is rolled.prefix[0].output
    assert rolled.carried[0].next is rolled.results[0].body is rolled.body[-1].output
    assert_unrolls(network, rolled)


def test_plain_networks_roll_too() -> None:
    network = make_network("qwen3")
    rolled = roll_layers(network)
    assert (rolled.count, rolled.layers) == (3, 1)
    assert_unrolls(network, rolled)


@pytest.mark.parametrize(("layers", "left"), [(6, 0), (7, 1)])
def test_alternating_windows_have_period_two(layers: int, left: int) -> None:
    windows = tuple(range(0, layers, 2))
    network, rolled = roll("mistral", num_layers=layers, window_layers=windows)
    assert (rolled.count, rolled.layers) == (3, 2)
    assert [n.attrs["window"] for n in rolled.body if n.op == "attention"] == [7, 0]
    assert sum(node.op == "attention" for node in rolled.suffix) == left
    assert len(rolled.carried) == 1
    assert_unrolls(network, rolled)


def test_three_kinds_in_turn_have_period_three() -> None:
    network, rolled = roll("mistral", num_layers=6, window_layers=(0, 3))
    assert (rolled.count, rolled.layers) == (2, 3)
    assert_unrolls(network, rolled)


def test_layers_that_differ_at_the_ends_stay_outside() -> None:
    network, rolled = roll("mistral", num_layers=6, window_layers=(1, 2, 3, 4))
    assert (rolled.count, rolled.layers) == (4, 1)
    assert [n.attrs["window"] for n in rolled.body if n.op == "attention"] == [7]
    assert_unrolls(network, rolled)


@pytest.mark.parametrize("overrides", [{"num_layers": 1}, {"num_layers": 2, "window_layers": (0,)}])
def test_layers_that_all_differ_are_all_prefix(overrides: dict[str, Any]) -> None:
    network, rolled = roll("mistral", **overrides)
    assert (rolled.count, rolled.body, rolled.suffix) == (0, [], [])
    assert rolled.prefix == network.nodes
    assert rolled.carried == rolled.results == []


def test_another_format_in_one_layer_is_another_layer() -> None:
    network = run_pipeline(make_network("llama", num_layers=4), BuildConfig(weights="f32"))
    weight = next(w for w in network.weights() if w.name == "layers.0.mlp.down.weight")
    weight.format = "bf16"
    rolled = roll_layers(network)
    assert rolled.count == 3
    assert_unrolls(network, rolled)


def test_wiring_that_differs_is_not_a_repetition() -> None:
    network = run_pipeline(make_network("llama", num_layers=2), BuildConfig(weights="f32"))
    down = [n for n in network.nodes if n.op == "linear" and n.inputs[3] is not None][-1]
    embedded = network.nodes[0].output
    network.set_input(down, 3, embedded)  # the last layer adds what the first one never sees
    rolled = roll_layers(network)
    assert rolled.count == 0


def test_a_middle_iteration_that_is_read_behind_the_loop_forbids_it() -> None:
    network = run_pipeline(make_network("llama", num_layers=3), BuildConfig(weights="f32"))
    middle = [n for n in network.nodes if n.op == "linear" and n.inputs[3] is not None][3].output
    gather = next(node for node in network.nodes if node.op == "gather_rows")
    skip = network.insert_before(gather, make_node("add", [gather.inputs[0], middle], "skip"))
    network.set_input(gather, 0, skip.output)
    assert roll_layers(network).count == 0


def test_shared_weights_are_the_same_in_every_iteration() -> None:
    _, rolled = roll("qwen3")
    tables = [[w for w in rolled.weights_of(t) if w.name == "rope.table"] for t in range(3)]
    assert len(tables[0]) == 2
    assert len({id(table) for row in tables for table in row}) == 1
    assert len({len(rolled.weights_of(t)) for t in range(3)}) == 1
