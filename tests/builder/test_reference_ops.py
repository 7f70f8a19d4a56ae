"""What each op means, against formulas written out for single elements."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginewright.builder.quantize.rotation import block_of, rotate
from enginewright.builder.reference_kv import ReferenceKv, StepFacts, round_keys, round_kv
from enginewright.builder.reference_ops import (
    MEANINGS,
    QuantizedRows,
    attention,
    kv_write,
    paged_attention,
    quantize,
)
from enginewright.runtime.session import Batch

RANDOM = np.random.default_rng(3)


def rows(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def mean(op: str, *inputs: Any, **attrs: Any) -> Any:
    return MEANINGS[op](*inputs, attrs)


def make_facts(past: list[int], new: list[int], tables: list[list[int]]) -> StepFacts:
    total = sum(new)
    batch = Batch(
        token_ids=np.zeros(total, np.int32),
        seq_starts=np.array([0, *np.cumsum(new)], np.int32),
        past_tokens=np.array(past, np.int32),
        block_tables=np.array(tables, np.int32),
        logit_rows=np.array([total - 1, 0], np.int32),
    )
    return StepFacts(batch, 1000)


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def test_embedding_takes_rows() -> None:
    table = rows(5, 3)
    assert np.array_equal(mean("embedding", np.array([4, 0]), table), table[[4, 0]])


@pytest.mark.parametrize("width", [12, 4])
def test_rms_norm_works_on_runs_of_the_weight(width: int) -> None:
    x, weight = rows(2, 12), rows(width)
    found = mean("rms_norm", x, weight, eps=0.1)
    for row in range(2):
        for i in range(12):
            run = x[row, i // width * width :][:width].astype(float)
            expected = x[row, i] / math.sqrt((run**2).mean() + 0.1) * weight[i % width]
            assert found[row, i] == pytest.approx(expected, rel=1e-5)


def test_linear_adds_bias_before_and_residual_after_the_epilogue() -> None:
    x, weight, bias, residual = rows(2, 5), rows(6, 5), rows(6), rows(2, 3)
    wide = x.astype(float) @ weight.T.astype(float) + bias
    plain = mean("linear", x, weight, bias, None, epilogue="")
    np.testing.assert_allclose(plain, wide, atol=1e-5)
    found = mean("linear", x, weight, bias, residual, epilogue="swiglu")
    for row in range(2):
        for i in range(3):
            expected = silu(wide[row, i]) * wide[row, 3 + i] + residual[row, i]
            assert found[row, i] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_linear_reads_quantized_rows_as_they_were_rounded() -> None:
    x = QuantizedRows(np.array([[2, -3, 4, 0]], np.int8), np.array([[0.5, 2.0]], np.float32), 2, 3)
    weight = np.array([[1, 1, 1]], np.float32)
    assert mean("linear", x, weight, None, None, epilogue="").tolist() == [[7.5]]


def test_elementwise_ops() -> None:
    a, b = rows(2, 4), rows(2, 4)
    assert np.array_equal(mean("add", a, b), a + b)
    assert np.array_equal(mean("mul", a, b), a * b)
    assert np.array_equal(mean("slice", a, start=1, size=2), a[:, 1:3])
    expected = [[silu(v) for v in row] for row in a.tolist()]
    np.testing.assert_allclose(mean("silu", a), expected, rtol=1e-5)
    gated = mean("swiglu", a)
    assert gated[0, 1] == pytest.approx(silu(a[0, 1]) * a[0, 3], rel=1e-5)


def test_silu_of_large_numbers_is_finite() -> None:
    extremes = np.array([[-1e4, -89.0, 0.0, 1e4]], np.float32)
    found = mean("silu", extremes)
    np.testing.assert_allclose(found, [[0, 0, 0, 1e4]], atol=1e-30)


def test_rope_turns_halves_of_each_head_by_the_tokens_position() -> None:
    facts = make_facts([5], [2], [[0]])
    angles = np.outer(np.arange(10), [1.0, 0.1])
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    x = rows(2, 8)
    found = MEANINGS["rope"](x, table, facts, {"head_dim": 4})
    for token in range(2):
        for head in range(2):
            for pair, speed in enumerate([1.0, 0.1]):
                i = head * 4 + pair
                turned = complex(x[token, i], x[token, i + 2]) * np.exp(1j * (5 + token) * speed)
                assert found[token, i] == pytest.approx(turned.real, abs=1e-5)
                assert found[token, i + 2] == pytest.approx(turned.imag, abs=1e-5)


def test_gather_rows_takes_what_is_wanted_in_that_order() -> None:
    x = rows(3, 2)
    facts = make_facts([0], [3], [[0]])
    assert np.array_equal(MEANINGS["gather_rows"](x, facts, {}), x[[2, 0]])


@given(
    values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40),
    group=st.sampled_from([4, 32]),
)
def test_quantize_errs_by_at_most_half_a_step(values: list[float], group: int) -> None:
    x = np.array([values], np.float32)
    found = quantize(x, {"group": group, "rotation": 0})
    assert found.scales.shape == (1, -(-len(values) // group))
    assert np.abs(found.values.astype(int)).max() <= 127
    assert found.values.shape[1] == found.scales.shape[1] * group
    steps = np.repeat(found.scales, group, axis=1)[:, : len(values)]
    assert np.all(np.abs(found.dequantize() - x) <= steps * 0.5001 + 1e-37)
    for begin in range(0, len(values), group):
        most = max(abs(value) for value in x[0, begin : begin + group].tolist())
        assert found.scales[0, begin // group] == pytest.approx(most / 127)


def test_a_rotated_outlier_costs_its_neighbours_little() -> None:
    x = np.random.default_rng(0).standard_normal((50, 100)).astype(np.float32)
    x[:, 30] = 60
    errors = [
        np.delete(quantize(x, {"group": 64, "rotation": r}).dequantize() - x, 30, axis=1).std()
        for r in (0, 64)
    ]
    assert errors[1] < errors[0] / 3


def test_fused_rounding_is_the_rounding_of_what_came_before() -> None:
    groups = {"group": 8, "rotation": 4}
    x, norm, weight, bias = rows(3, 16), rows(16), rows(20, 16), rows(20)
    plain = mean("rms_norm", x, norm, eps=0.1)
    fused = mean("rms_norm_quantize", x, norm, eps=0.1, **groups)
    assert np.array_equal(fused.dequantize(), quantize(plain, groups).dequantize())
    plain = mean("linear", x, weight, bias, None, epilogue="swiglu")
    fused = mean("linear_quantize", x, weight, bias, epilogue="swiglu", **groups)
    assert np.array_equal(fused.dequantize(), quantize(plain, groups).dequantize())


def test_quantize_rounds_halves_to_even() -> None:
    x = np.array([[127.0, 0.5, 1.5, -2.5]], np.float32)
    assert quantize(x, {"group": 4, "rotation": 0}).values.tolist() == [[127, 0, 2, -2]]


def naive_attention(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, attrs: dict[str, Any]
) -> np.ndarray:
    """One whole sequence, one score at a time: [tokens, heads, d], [tokens, kv_heads, d] twice."""
    result = np.zeros(q.shape)
    shared = attrs["num_heads"] // attrs["num_kv_heads"]
    for position in range(len(q)):
        first = max(0, position - attrs["window"] + 1) if attrs["window"] else 0
        for head in range(attrs["num_heads"]):
            seen = range(first, position + 1)
            scores = [
                attrs["scale"] * float(q[position, head] @ keys[j, head // shared]) for j in seen
            ]
            weights = np.exp(np.array(scores) - max(scores))
            weights /= weights.sum()
            for weight, j in zip(weights, seen, strict=True):
                result[position, head] += weight * values[j, head // shared]
    return result


@pytest.mark.parametrize("window", [0, 1, 6, 40])
def test_attention_is_causal_grouped_windowed_and_paged(window: int) -> None:
    attrs = {
        "layer": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "scale": 0.3,
        "window": window,
    }
    lengths = [45, 7]
    q, k, v = ([rows(n, heads * 8) for n in lengths] for heads in (4, 2, 2))
    kv = ReferenceKv("f32")
    tables = [[9, 3], [5, -1]]
    found: list[list[np.ndarray]] = [[], []]
    past = [0, 0]
    for new in ([20, 5], [24, 1], [1, 1]):  # blocks are crossed and chunks are uneven
        cut = [slice(p, p + n) for p, n in zip(past, new, strict=True)]
        parts = tuple(np.concatenate([x[s][cut[s]] for s in range(2)]) for x in (q, k, v))
        facts = make_facts(past, new, tables)
        mixed = paged_attention(parts[0], parts[1], parts[2], facts, attrs, kv=kv)
        for s, begin in enumerate((0, new[0])):
            found[s].append(mixed[begin : begin + new[s]])
        past = [p + n for p, n in zip(past, new, strict=True)]
    for s, length in enumerate(lengths):
        expected = naive_attention(
            q[s].reshape(length, 4, 8),
            k[s].reshape(length, 2, 8),
            v[s].reshape(length, 2, 8),
            attrs,
        )
        np.testing.assert_allclose(
            np.concatenate(found[s]), expected.reshape(length, 32), atol=1e-5
        )


def test_more_query_rows_than_are_scored_at_once() -> None:
    attrs = {
        "layer": 0,
        "num_heads": 1,
        "num_kv_heads": 1,
        "head_dim": 4,
        "scale": 0.5,
        "window": 0,
    }
    q, k, v = rows(300, 4), rows(300, 4), rows(300, 4)
    facts = make_facts([0], [300], [list(range(10))])
    kv = ReferenceKv("f32")
    found = paged_attention(q, k, v, facts, attrs, kv=kv)
    heads = [x.reshape(300, 1, 4) for x in (q, k, v)]
    expected = naive_attention(heads[0], heads[1], heads[2], attrs)
    np.testing.assert_allclose(found, expected.reshape(300, 4), atol=1e-5)


def test_a_write_is_seen_by_the_attention_of_its_layer_only() -> None:
    facts = make_facts([0], [2], [[0]])
    cache = {"num_kv_heads": 1, "head_dim": 4}
    attrs = {**cache, "num_heads": 1, "scale": 1.0, "window": 1}
    kv = ReferenceKv("f32")
    k, first, second = rows(2, 4), rows(2, 4), rows(2, 4)
    kv_write(k, first, facts, {**cache, "layer": 0}, kv=kv)
    kv_write(k, second, facts, {**cache, "layer": 1}, kv=kv)
    found = [attention(k, None, facts, {**attrs, "layer": layer}, kv=kv) for layer in (0, 1)]
    np.testing.assert_allclose(found, [first, second], rtol=1e-6)  # a window of 1 copies v


def test_the_cache_rounds_to_its_type() -> None:
    x = rows(3, 2, 8)
    assert np.array_equal(round_kv(x, "f32"), x)
    assert np.all(np.abs(round_kv(x, "bf16") - x) <= np.abs(x) * 2**-8)
    most = np.abs(x).max(axis=2, keepdims=True)
    assert np.all(np.abs(round_kv(x, "int8") - x) <= most / 127 * 0.5001)
    assert np.array_equal(round_keys(x, "bf16"), round_kv(x, "bf16"))
    turned = np.abs(rotate(x, block_of(x.shape[-1]))).max(axis=-1, keepdims=True)
    error = np.linalg.norm(round_keys(x, "int8") - x, axis=-1)
    assert np.all(error <= turned[..., 0] / 127 * 0.5001 * np.sqrt(x.shape[-1]))
    assert np.all(np.abs(round_kv(x, "f16") - x) <= np.abs(x) * 2**-11)
    assert np.all(np.abs(round_kv(x, "fp8") - x) <= np.abs(x) * 2**-4 + 2**-10)
    assert round_kv(np.full((1, 1, 1), 1e4, np.float32), "fp8") == 448
    with pytest.raises(ValueError, match="allowed are f32, bf16, f16, fp8, int8"):
        ReferenceKv("f64")
