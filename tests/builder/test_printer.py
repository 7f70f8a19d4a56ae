"""A printed network tells types, formats, attributes and absent inputs."""

from enginewright.builder.printer import format_network
from tests.support.networks import make_network


def test_the_printout_says_what_a_node_is() -> None:
    network = make_network("llama")
    first = network.weights()[0]
    first.format, first.group, first.rotation = "int8", 128, 64
    lines = format_network(network).splitlines()
    assert lines[0] == "network of llama"
    assert lines[1:3] == ["input %ids i32[tokens]", "input %batch batch[]"]
    assert lines[3] == (
        "%embedding f32[tokens, 64] = embedding(%ids, @embedding.weight f32[160, 64] "
        "as int8/128 rotated by 64)"
    )
    assert lines[5] == (
        "%layers.0.attention.q f32[tokens, 64] = linear(%layers.0.input_norm, "
        "@layers.0.attention.q.weight f32[64, 64] as f32, -, -) {epilogue=''}"
    )
    assert lines[-1] == "output %logits f32[rows, 160]"
    assert len(lines) == 4 + len(network.nodes)


def test_the_same_network_prints_the_same() -> None:
    assert format_network(make_network("qwen3")) == format_network(make_network("qwen3"))
