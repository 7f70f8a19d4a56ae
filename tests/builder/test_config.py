"""BuildConfig refuses what it cannot mean, and survives JSON."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginewright.builder.config import GROUPS, HEAD_FORMATS, KV_DTYPES, WEIGHT_FORMATS, BuildConfig
from enginewright.runtime.errors import InputError
from tests.support.tiny import make_tiny_config

CONFIGS = st.builds(
    BuildConfig,
    isa=st.none() | st.just("avx512"),
    weights=st.sampled_from(WEIGHT_FORMATS),
    head_weights=st.none() | st.sampled_from(HEAD_FORMATS),
    group=st.sampled_from(GROUPS),
    kv_dtype=st.none() | st.sampled_from(KV_DTYPES),
    max_batch_size=st.integers(1, 100),
    max_num_tokens=st.integers(100, 10_000),
    max_seq_len=st.none() | st.integers(1, 100_000),
    cc=st.none() | st.just("gcc"),
    self_check=st.booleans(),
)

BAD: list[tuple[str, Any, str]] = [
    ("target", "tpu", "allowed are cpu"),
    ("weights", "int3", "allowed are f32, bf16, int8, fp8, int4"),
    ("weights", None, "allowed are f32, bf16, int8, fp8, int4"),
    ("head_weights", "fp4", "allowed are nothing, f32, bf16, int8, fp8"),
    ("head_weights", "int4", "allowed are nothing, f32, bf16, int8, fp8"),
    ("group", 33, "allowed are nothing, 64, 128, 192, 256"),
    ("group", 64.0, "allowed are nothing, 64, 128, 192, 256"),
    ("kv_dtype", "f64", "allowed are nothing, f32"),
    ("isa", "", "leave it out"),
    ("cc", 3, "leave it out"),
    ("max_batch_size", 0, "1 or more"),
    ("max_batch_size", True, "1 or more"),
    ("max_num_tokens", "many", "1 or more"),
    ("max_seq_len", -1, "1 or more"),
    ("self_check", 1, "allowed are True, False"),
]


@pytest.mark.parametrize(("field", "value", "allowed"), BAD)
def test_a_bad_field_is_named_with_what_is_allowed(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(InputError, match=allowed) as caught:
        BuildConfig(**{field: value})
    assert str(caught.value).startswith(f"{field} is {value!r}")


def test_a_batch_must_fit_a_step() -> None:
    with pytest.raises(InputError, match="max_num_tokens is 8, fewer than max_batch_size 9"):
        BuildConfig(max_num_tokens=8, max_batch_size=9)


@given(config=CONFIGS)
def test_json_gives_the_same_config_back(config: BuildConfig) -> None:
    assert BuildConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@given(
    fields=st.dictionaries(
        st.sampled_from([field.name for field in dataclasses.fields(BuildConfig)]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.none()),
    )
)
def test_any_fields_make_a_config_or_an_input_error(fields: dict[str, Any]) -> None:
    try:
        config = BuildConfig.from_json(fields)
    except InputError:
        return
    assert config.max_num_tokens >= config.max_batch_size


def test_unknown_options_are_refused() -> None:
    with pytest.raises(InputError, match="no option colour, size; there are target"):
        BuildConfig.from_json({"size": 1, "colour": 2})


def test_resolving_fills_in_what_depends_on_the_model() -> None:
    model = make_tiny_config(max_position_embeddings=131072)
    resolved = BuildConfig(weights="bf16").resolve(model)
    assert (resolved.seq_len, resolved.kv_dtype, resolved.head_weights) == (8192, "bf16", "bf16")
    assert resolved.resolve(model) == resolved
    asked = BuildConfig(max_seq_len=100_000, kv_dtype="f32", head_weights="f32").resolve(model)
    assert (asked.seq_len, asked.kv_dtype, asked.head_weights) == (100_000, "f32", "f32")


def test_a_model_is_not_stretched() -> None:
    with pytest.raises(InputError, match=r"max_seq_len is 257.*at most 256"):
        BuildConfig(max_seq_len=257).resolve(make_tiny_config())
