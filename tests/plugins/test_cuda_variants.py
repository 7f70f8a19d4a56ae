"""What is computed about GPU kernels without one: constants, grids, the contract's arguments."""

from __future__ import annotations

import numpy as np
import pytest

from enginewright.plugins.cuda.launch import attention_grid, splits_of
from enginewright.plugins.cuda.variants import (
    SPLIT_KEYS,
    AttentionShape,
    Variant,
    attention_variant,
    kv_write_variant,
    merge_variant,
    norm_variant,
    power_of_two,
    sample_variant,
    session_variants,
)
from enginewright.runtime.cuda_contract import BLOCK_TOKENS, KV_STORE, SAMPLE

SHAPE = AttentionShape(14, 2, 64, "f16", "int8", scale=0.125, sinks=True)


def all_variants() -> list[Variant]:
    return [
        *session_variants("int8", 2, 64, True),
        attention_variant(SHAPE, False),
        attention_variant(SHAPE, True),
        merge_variant(SHAPE),
        kv_write_variant(SHAPE),
        kv_write_variant(SHAPE, rope=True),
        kv_write_variant(SHAPE, plugin=True),
        norm_variant(896, "f16", 1e-5, 32, True),
        norm_variant(896, "f16", 1e-5, 0, False),
    ]


@pytest.mark.parametrize("variant", all_variants(), ids=lambda v: f"{v.function}-{v.variant}")
def test_every_constant_has_a_value(variant: Variant) -> None:
    constants = {name for name, kind in variant.signature.items() if kind == "constexpr"}
    assert constants == set(variant.constants)
    assert variant.to_json()["signature"] == dict(variant.signature)


def test_session_kernels_take_the_arguments_of_the_contract() -> None:
    sample, kv, scale = session_variants("int8", 2, 64, True)
    assert sample.parameters == tuple(a.name for a in SAMPLE.arguments)
    for variant in (kv, scale):
        assert variant.parameters == tuple(a.name for a in KV_STORE.arguments)
    for spec, variant in ((SAMPLE, sample_variant()), (KV_STORE, kv)):
        for argument in spec.arguments:
            is_pointer = variant.signature[argument.name].startswith("*")
            assert is_pointer == (argument.kind == "pointer"), argument.name
    assert (kv.variant, scale.variant, scale.constants["WIDTH"]) == ("kv", "scale", 1)


def test_the_plugin_form_needs_no_copies() -> None:
    assert [variant.name for variant in session_variants("f16", 2, 64, False)] == ["sample"]


@pytest.mark.parametrize(
    ("kv_dtype", "element"), [("f32", "*i32"), ("bf16", "*i16"), ("fp8", "*i8")]
)
def test_copies_move_elements_of_the_cache_s_size(kv_dtype: str, element: str) -> None:
    assert session_variants(kv_dtype, 2, 64, True)[1].signature["cache"] == element


@pytest.mark.parametrize("generation", [False, True])
@pytest.mark.parametrize("heads", [1, 2, 6, 14, 32])
def test_tiles_cover_every_token_once(heads: int, generation: bool) -> None:
    """The kernel's own search, in numpy: sequence s begins at tile starts[s] // T + s."""
    shape = AttentionShape(heads, 1, 64, "f16", "f16")
    tile = shape.tokens(generation)
    assert tile * shape.group >= 16
    generator = np.random.default_rng(heads)
    for _ in range(20):
        counts = generator.integers(1, 90, generator.integers(1, 9))
        starts = np.concatenate([[0], np.cumsum(counts)])
        tiles, _, _ = attention_grid(shape, int(starts[-1]), len(counts))
        if generation:
            tiles, _, _ = attention_grid(shape, int(starts[-1]), len(counts), 1)
        firsts = starts[:-1] // tile + np.arange(len(counts))
        covered = np.zeros(starts[-1], int)
        for index in range(tiles):
            s = int(np.searchsorted(firsts, index, side="right")) - 1
            begin = starts[s] + (index - firsts[s]) * tile
            covered[begin : min(begin + tile, starts[s + 1])] += 1
        assert (covered == 1).all()


def test_splits_are_of_a_fixed_size() -> None:
    assert SPLIT_KEYS % BLOCK_TOKENS == 0
    whole = SPLIT_KEYS // BLOCK_TOKENS
    assert [splits_of(n) for n in (1, whole, whole + 1, 10 * whole)] == [1, 1, 2, 10]


@pytest.mark.parametrize(("count", "power"), [(1, 1), (2, 2), (3, 4), (24, 32), (64, 64)])
def test_powers_of_two(count: int, power: int) -> None:
    assert power_of_two(count) == power
