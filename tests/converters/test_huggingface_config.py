"""config.json: both spellings of rope settings, windows, and numbers that contradict each other."""

import math
from typing import Any

import pytest

from enginewright.builder.model_config import ModelConfig, RopeScaling
from enginewright.converters.fields import Fields
from enginewright.converters.huggingface_config import model_config
from enginewright.runtime.errors import CheckpointError, UnsupportedModelError

BASE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def read(generation: dict[str, Any] | None = None, **changes: Any) -> ModelConfig:
    values = {key: value for key, value in {**BASE, **changes}.items() if value != "absent"}
    extra = None if generation is None else Fields(generation, "generation_config.json")
    return model_config(Fields(values, "config.json"), extra)


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_rope_settings_of_earlier_files(key: str) -> None:
    config = read(rope_theta=500000.0, rope_scaling={key: "llama3", **LLAMA3})
    assert config.rope_theta == 500000.0
    assert config.rope_scaling == RopeScaling(
        "llama3", 8.0, 32, low_freq_factor=1.0, high_freq_factor=4.0
    )


def test_rope_settings_of_transformers_5() -> None:
    config = read(rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    assert (config.rope_theta, config.rope_scaling) == (1e6, None)
    linear = {"rope_type": "linear", "factor": 2, "rope_theta": 1e4}
    assert read(rope_parameters=linear).rope_scaling == RopeScaling("linear", 2.0)


def test_no_rope_settings_at_all() -> None:
    assert read(rope_scaling=None).rope_scaling is None
    assert read().rope_theta == 10000.0


def test_yarn_takes_its_defaults_and_its_attention_factor() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    assert read(rope_scaling=yarn).rope_scaling == RopeScaling(
        "yarn", 4.0, 32, beta_fast=32.0, beta_slow=1.0
    )
    scaling = read(rope_scaling={**yarn, "mscale": 0.5, "mscale_all_dim": 1.0}).rope_scaling
    assert scaling is not None
    expected = (0.05 * math.log(4) + 1) / (0.1 * math.log(4) + 1)
    assert scaling.attention_factor == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "window", "layers"),
    [
        ({"model_type": "llama", "sliding_window": 8}, None, None),
        ({"model_type": "mistral", "sliding_window": 8}, 8, None),
        ({"model_type": "mistral", "sliding_window": None}, None, None),
        ({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": False}, None, None),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 8,
                "use_sliding_window": True,
                "max_window_layers": 2,
            },
            8,
            (2,),
        ),
        (
            {
                "model_type": "qwen3",
                "sliding_window": 8,
                "use_sliding_window": True,
                "max_window_layers": 0,
            },
            8,
            None,
        ),
        (
            {
                "model_type": "qwen3",
                "sliding_window": 8,
                "use_sliding_window": True,
                "max_window_layers": 3,
            },
            None,
            None,
        ),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            8,
            (0, 2),
        ),
    ],
)
def test_windows(
    changes: dict[str, Any], window: int | None, layers: tuple[int, ...] | None
) -> None:
    config = read(**changes)
    assert (config.sliding_window, config.window_layers) == (window, layers)


def test_biases_and_head_sizes_of_each_family() -> None:
    assert read(model_type="qwen2").qkv_bias
    assert not read(model_type="qwen2").output_bias
    qwen3 = read(model_type="qwen3")
    assert (qwen3.head_dim, qwen3.qk_norm, qwen3.qkv_bias) == (128, True, False)
    assert read(model_type="qwen3", attention_bias=True).output_bias
    llama = read(attention_bias=True, mlp_bias=True)
    assert (llama.qkv_bias, llama.output_bias, llama.mlp_bias) == (True, True, True)
    assert not read(model_type="mistral", attention_bias=True).qkv_bias
    assert read(num_key_value_heads="absent").num_kv_heads == 4


def test_generation_config_decides_where_a_text_ends() -> None:
    assert read(eos_token_id=2).eos_token_ids == (2,)
    assert read({"eos_token_id": [3, 4]}, eos_token_id=2).eos_token_ids == (3, 4)
    assert read({}, eos_token_id=[2, 5]).eos_token_ids == (2, 5)
    assert read(pad_token_id=-1).pad_token_id is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "absent"}, "model_type is missing"),
        ({"hidden_size": "absent"}, "hidden_size is missing"),
        ({"hidden_size": 66}, "hidden_size 66 is not divisible by 4 attention heads"),
        ({"hidden_size": -64}, "hidden_size -64 is not divisible"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide'; expected an integer"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 key-value heads"),
        ({"num_key_value_heads": 0}, "num_kv_heads is 0"),
        ({"vocab_size": 2**40}, "vocab_size is 1099511627776"),
        ({"num_hidden_layers": 10**9}, "number of layers is 1000000000"),
        ({"head_dim": 15}, "head_dim is 15; rotary positions need an even number"),
        ({"rms_norm_eps": -1.0}, "epsilon is -1.0"),
        ({"rms_norm_eps": float("nan")}, "expected a finite number"),
        ({"rope_theta": 0}, "rope_theta is 0"),
        ({"eos_token_id": 256}, "token 256 lies outside the vocabulary of 256"),
        ({"eos_token_id": "end"}, "expected a token id or a list of token ids"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window is 0"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -2}}, "factor is -2"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "original_max.* is missing"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 8}}, "original_max.* is missing"),
        (
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 4.0}},
            "expected 0 < low < high",
        ),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'; expected an object"),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["full_attention"],
            },
            "layer_types lists 1 layers, but num_hidden_layers is 3",
        ),
    ],
)
def test_contradictions_are_one_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read(**changes)
    assert not isinstance(caught.value, UnsupportedModelError)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"type": "longrope"}}, "'longrope'.*default, linear, llama3, yarn"),
        ({"hidden_act": "gelu"}, "'gelu'; only silu"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized by 'gptq'"),
        ({"partial_rotary_factor": 0.5}, "part of each head"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "part of each head"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read(**changes)
