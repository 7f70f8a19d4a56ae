"""Estimates follow from shapes, formats and limits."""

from dataclasses import replace

import numpy as np
import pytest

from enginewright.builder.config import BuildConfig
from enginewright.builder.estimate import estimate

from ..support.tiny import as_tensors, make_tiny_config, make_tiny_weights

CONFIG = make_tiny_config("qwen2")
TENSORS = as_tensors(make_tiny_weights(CONFIG))


def test_an_f32_engine_holds_every_parameter_in_four_bytes() -> None:
    figures = estimate(CONFIG, TENSORS, BuildConfig(weights="f32"))
    parameters = sum(int(np.prod(tensor.shape)) for tensor in TENSORS.values())
    rope = 4 * CONFIG.max_position_embeddings * CONFIG.head_dim
    assert figures.parameters == parameters
    assert figures.weights == 4 * parameters + rope


@pytest.mark.parametrize("weights", ["bf16", "int8", "fp8", "int4"])
def test_narrow_formats_are_smaller(weights: str) -> None:
    wide = estimate(CONFIG, TENSORS, BuildConfig(weights="f32"))
    narrow = estimate(CONFIG, TENSORS, BuildConfig(weights=weights))
    assert narrow.weights < wide.weights
    assert narrow.kv_per_token < wide.kv_per_token


def test_fp8_has_one_scale_a_row() -> None:
    config = BuildConfig(weights="fp8", head_weights="fp8")
    figures = estimate(CONFIG, TENSORS, config)
    matrices = [t.shape for t in TENSORS.values() if len(t.shape) == 2]
    vectors = sum(int(np.prod(t.shape)) for t in TENSORS.values() if len(t.shape) == 1)
    expected = sum(rows * (columns + 2) for rows, columns in matrices) + 4 * vectors
    expected += 4 * CONFIG.max_position_embeddings * CONFIG.head_dim
    if not CONFIG.tie_word_embeddings:  # a table of its own is bf16
        expected += CONFIG.vocab_size * (CONFIG.hidden_size - 2)
    assert figures.weights == expected


def test_kv_grows_with_sequence_and_batch() -> None:
    config = replace(BuildConfig(weights="f32"), max_seq_len=64, max_batch_size=3)
    figures = estimate(CONFIG, TENSORS, config)
    kv_values = 2 * CONFIG.num_layers * CONFIG.num_kv_heads * CONFIG.head_dim
    assert figures.kv_per_token == 4 * kv_values
    assert figures.kv_per_sequence == 64 * figures.kv_per_token
    assert figures.kv_full == 3 * figures.kv_per_sequence
