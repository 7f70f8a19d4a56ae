"""Edits keep uses and definitions in step, and refuse what would break them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginewright.builder.network import (
    Network,
    NetworkError,
    Node,
    Value,
    Weight,
    concatenate_weights,
)
from enginewright.builder.ops import make_node
from enginewright.runtime.dtypes import DType
from tests.support.tiny import make_tiny_config


def chain() -> tuple[Network, Value, Node, Node]:
    """x -> a = silu(x) -> b = a + x, the output."""
    x = Value("x", DType.F32, ("tokens", 8))
    network = Network(make_tiny_config(), [x])
    a = network.append(make_node("silu", [x], "a"))
    b = network.append(make_node("add", [a.output, x], "b"))
    network.outputs = [b.output]
    return network, x, a, b


def weight(name: str, rows: int, columns: int = 4) -> Weight:
    array = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    return Weight(name, (rows, columns), lambda: array)


def test_uses_and_definitions_are_known() -> None:
    network, x, a, b = chain()
    assert network.users(x) == [a, b]
    assert network.producer(a.output) is a
    assert network.producer(x) is None
    assert network.is_output(b.output)
    network.check()


def test_inputs_and_uses_move_together() -> None:
    network, x, a, b = chain()
    c = network.insert_before(b, make_node("silu", [a.output], "c"))
    assert network.nodes == [a, c, b]
    network.set_input(b, 1, c.output)
    assert network.users(x) == [a]
    assert network.users(c.output) == [b]
    network.check()


def test_a_value_read_twice_by_one_node_is_counted_twice() -> None:
    network, x, a, b = chain()
    network.set_input(b, 1, a.output)
    network.set_input(b, 0, x)
    assert network.users(a.output) == [b]
    network.check()


def test_replacing_reaches_readers_and_outputs() -> None:
    network, x, a, b = chain()
    c = network.append(make_node("silu", [b.output], "c"))
    network.replace_all_uses(a.output, x)
    network.outputs = [b.output, c.output]
    d = network.insert_before(c, make_node("silu", [x], "d"))
    network.replace_all_uses(b.output, d.output)
    assert network.outputs == [d.output, c.output]
    assert c.inputs == [d.output]
    network.remove(a)
    network.remove(b)
    network.check()


def test_nodes_in_use_stay() -> None:
    network, _, a, b = chain()
    with pytest.raises(NetworkError, match="a is still used"):
        network.remove(a)
    with pytest.raises(NetworkError, match="b is still used"):
        network.remove(b)


def test_names_are_taken_once_and_given_back() -> None:
    network, x, a, _ = chain()
    assert network.fresh_name("a") == "a_2"
    with pytest.raises(NetworkError, match="the name a is taken"):
        network.append(make_node("silu", [x], "a"))
    network.replace_all_uses(a.output, x)
    network.remove(a)
    assert network.fresh_name("a") == "a"


def test_edits_behind_the_books_are_found() -> None:
    network, x, a, b = chain()
    b.inputs[0] = x
    with pytest.raises(NetworkError, match="uses"):
        network.check()
    network, x, a, b = chain()
    network.nodes.remove(a)
    with pytest.raises(NetworkError, match="definitions"):
        network.check()


@given(edits=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=30))
def test_the_books_hold_through_any_edits(edits: list[tuple[int, int]]) -> None:
    network, x, _, _ = chain()
    for kind, pick in edits:
        node = network.nodes[pick % len(network.nodes)]
        if kind == 0:
            name = network.fresh_name("new")
            network.insert_after(node, make_node("silu", [node.output], name))
        elif kind == 1:
            network.replace_all_uses(node.output, x)
        elif kind == 2:
            network.set_input(node, 0, x)
        elif not network.users(node.output) and not network.is_output(node.output):
            if len(network.nodes) > 1:
                network.remove(node)
        network.check()


def test_stacked_weights_are_read_when_asked_for() -> None:
    reads: list[str] = []

    def lazy(name: str, rows: int) -> Weight:
        def load() -> np.ndarray:
            reads.append(name)
            return np.full((rows, 4), rows, np.float32)

        return Weight(name, (rows, 4), load)

    parts = [lazy("one", 1), lazy("two", 2)]
    stacked = concatenate_weights("both", parts)
    assert reads == []
    assert stacked.shape == (3, 4)
    assert stacked.parts == tuple(parts)
    assert stacked.load()[:, 0].tolist() == [1, 2, 2]
    assert stacked.load()[:, 0].tolist() == [1, 2, 2]
    assert reads == ["one", "two", "one", "two"], "nothing is kept"


def test_weights_that_do_not_stack_are_refused() -> None:
    with pytest.raises(NetworkError, match="cannot stack"):
        concatenate_weights("both", [weight("a", 2), weight("b", 2, columns=5)])


def test_a_weight_of_another_shape_than_promised_is_refused() -> None:
    liar = Weight("w", (2, 2), lambda: np.zeros((2, 3), np.float32))
    with pytest.raises(NetworkError, match=r"loads as \(2, 3\)"):
        liar.load()
