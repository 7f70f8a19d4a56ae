"""Families are found by name, and tensors that do not fit are refused before anything is read."""

import dataclasses

import numpy as np
import pytest

from enginewright.builder.models.registry import FAMILIES, build_network
from enginewright.builder.network import Weight
from enginewright.runtime.errors import CheckpointError, UnsupportedModelError
from tests.support.networks import make_network
from tests.support.tiny import (
    FAMILIES as TINY_FAMILIES,
)
from tests.support.tiny import (
    as_tensors,
    make_tiny_config,
    make_tiny_weights,
)


def test_an_unknown_family_is_told_what_there_is() -> None:
    config = dataclasses.replace(make_tiny_config(), family="mamba")
    with pytest.raises(
        UnsupportedModelError,
        match="'mamba' is not supported; supported are llama, mistral, qwen2, qwen3",
    ):
        build_network(config, {}, 64)


def test_every_family_has_a_tiny_model() -> None:
    assert set(FAMILIES) == set(TINY_FAMILIES)


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_a_network_uses_every_tensor_and_reads_none(family: str) -> None:
    config = make_tiny_config(family)
    arrays = make_tiny_weights(config)

    class Unread:
        def __init__(self, shape: tuple[int, ...]) -> None:
            self.shape = shape

        def load(self) -> np.ndarray:
            raise AssertionError("building a network reads no weight")

    tensors = {name: Unread(array.shape) for name, array in arrays.items()}
    network = build_network(config, tensors, 64)
    assert {weight.name for weight in network.weights()} == {*arrays, "rope.table"}


def test_a_tied_head_is_the_very_same_weight() -> None:
    network = make_network("llama", tie_word_embeddings=True)
    assert network.nodes[0].inputs[1] is network.nodes[-1].inputs[1]


def test_a_missing_tensor_is_named() -> None:
    config = make_tiny_config()
    tensors = as_tensors(make_tiny_weights(config))
    del tensors["layers.1.mlp.up.weight"]
    with pytest.raises(CheckpointError, match=r"no tensor layers\.1\.mlp\.up\.weight"):
        build_network(config, tensors, 64)


def test_a_tensor_of_another_shape_is_named() -> None:
    config = make_tiny_config()
    tensors = as_tensors(make_tiny_weights(config))
    with pytest.raises(CheckpointError, match=r"shape \[128, 64\], but .* asks for \[96, 64\]"):
        build_network(dataclasses.replace(config, intermediate_size=96), tensors, 64)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, [7, 7, 7]),
        ({"window_layers": (0, 2)}, [7, 0, 7]),
        ({"sliding_window": None}, [0, 0, 0]),
        ({"sliding_window": 64}, [0, 0, 0]),
    ],
)
def test_windows_hold_for_the_layers_they_are_for(
    changes: dict[str, object], windows: list[int]
) -> None:
    config = make_tiny_config("mistral", **changes)
    network = build_network(config, as_tensors(make_tiny_weights(config)), 64)
    found = [node.attrs["window"] for node in network.nodes if node.op == "paged_attention"]
    assert found == windows


def test_the_rotary_table_is_as_long_as_sequences_may_be() -> None:
    network = make_network("qwen3")
    table = next(node for node in network.nodes if node.op == "rope").inputs[1]
    assert isinstance(table, Weight)
    assert table.load().shape == (128, 32)
